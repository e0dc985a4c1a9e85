"""Units and currencies that a translation brought in: a sign that it converted a quantity."""

from __future__ import annotations

import functools
import re
import unicodedata

_WORDS: dict[str, tuple[str, str]] = {  # name: (English, Japanese)
    "dollar": (r"dollars?\b|bucks?\b|USD\b", "ドル"),
    "cent": (r"cents?\b|¢", "セント|¢"),
    "yen": (r"yen\b|JPY\b", "円(?![形周盤柱錐弧])|JPY"),
    "euro": (r"euros?\b|EUR\b", "ユーロ"),
    "mile": (r"miles?\b|mi\b|mph\b", "マイル"),
    "kilometre": (r"kilomet(?:er|re)s?\b|kms?\b|kmh\b|kph\b", "キロメートル|km|㎞|キロ(?!グラム|リットル|カロリー|ワット|バイト)"),
    "metre": (r"met(?:er|re)s?\b|m\b", "メートル|m(?![a-z])"),
    "centimetre": (r"centimet(?:er|re)s?\b|cms?\b", "センチ|cm"),
    "foot": (r"feet\b|foot\b|ft\b", "フィート|フット"),
    "inch": (r"inch(?:es)?\b|in\.", "インチ"),
    "yard": (r"yards?\b|yds?\b", "ヤード"),
    "gram": (r"grams?\b|g\b", "グラム|g(?![a-z])"),
    "kilogram": (r"kilograms?\b|kilos?\b|kgs?\b", "キログラム|kg|㎏|キロ(?!メートル|リットル|カロリー|ワット|バイト)"),
    "ounce": (r"ounces?\b|oz\b", "オンス"),
    "pound": (r"pounds?\b|lbs?\b|quid\b", "ポンド"),
    "gallon": (r"gallons?\b|gal\b", "ガロン"),
    "litre": (r"lit(?:er|re)s?\b|L\b", "リットル|L(?![a-z])"),
    "Fahrenheit": (r"(?:degrees? )?fahrenheit\b|°F\b", "華氏"),
    "Celsius": (r"(?:degrees? )?(?:celsius|centigrade)\b|°C\b", "摂氏"),
}  # fmt: skip
_SIGNS = {
    "dollar": re.compile(r"\$"),
    "yen": re.compile("¥"),
    "euro": re.compile("€"),
    "pound": re.compile("£"),
}
_ALSO = {"kilometre": "kilogram", "kilogram": "kilometre"}  # キロ is either
_NUMBER = r"[\d一二三四五六七八九十百千万億半数%]"
_SQUARE = r"[ -]?(?:square |cubic |sq\.? |平方|立方)?"
# A scale stands before its number in Japanese.
_SCALES = {"Fahrenheit": re.compile(r"華氏|°[Ff]"), "Celsius": re.compile(r"摂氏|°[Cc]")}


def added_units(source: str, translation: str, source_language: str, to: str) -> list[str]:
    """Units that stand beside a number in the translation and are nowhere in the source, by English name."""
    found = _units(translation, to, _patterns(to, anywhere=False))
    # Only for those that were found: this runs for every answer.
    there = _units(source, source_language, [
        (name, pattern)
        for name, pattern in _patterns(source_language, anywhere=True)
        if name in found or _ALSO.get(name) in found
    ])  # fmt: skip
    there |= {_ALSO[name] for name in there & _ALSO.keys()}
    return [name for name in _WORDS if name in found - there]


def _units(text: str, language: str, patterns: list[tuple[str, re.Pattern[str]]]) -> set[str]:
    folded = unicodedata.normalize("NFKC", text.replace("℃", "摂氏").replace("℉", "華氏"))
    if language == "en":
        folded = folded.lower()
    return {name for name, pattern in patterns if pattern.search(folded)}


@functools.cache
def _patterns(language: str, anywhere: bool) -> list[tuple[str, re.Pattern[str]]]:
    """Each unit's pattern: anywhere in a text, or only beside a number; signs and scales always count."""
    start = r"(?<![A-Za-z])" if anywhere else rf"(?<={_NUMBER}){_SQUARE}"
    words = {
        name: japanese if language == "ja" else english.lower()
        for name, (english, japanese) in _WORDS.items()
    }
    found = [(name, re.compile(f"{start}(?:{pattern})")) for name, pattern in words.items()]
    return [*found, *_SIGNS.items(), *_SCALES.items()]
