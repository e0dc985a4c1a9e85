"""One number with what may stand around it: a short lead-in, currency, units, counters, percent, scale words.

Units are dropped, never converted; scale words (million, 万, 億) are part of the value; kanji numerals are no numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from rewards.grading import words
from rewards.grading.exact import NotRational, as_text, evaluate
from rewards.grading.text import WORD_MARK

_JA = "ぁ-ゖァ-ヺー一-鿿々〇"
_WORD = rf"{WORD_MARK}?[A-Za-z]+"

_JA_POWERS = (("兆", 12), ("億", 8), ("万", 4), ("千", 3), ("百", 2))
_JA_NUMBER = re.compile(r"\d[\d,.]*+[百千万億兆](?:[百千万億兆]|\d[\d,.]*+)*+")
_JA_FRACTION = re.compile(r"(\d+)\s*分の\s*(\d+)")

_SCALE = re.compile(
    rf"[\s-]*+{WORD_MARK}?({'|'.join(words.SCALES)})(?![A-Za-z])|(k)(?![A-Za-z])", re.IGNORECASE
)
_PERCENT = rf"\s*+(?:%|{WORD_MARK}?per\s?{WORD_MARK}?cent(?![A-Za-z])|パーセント)"
_SHARES = (
    (re.compile(_PERCENT, re.IGNORECASE), Fraction(1, 100)),
    (re.compile(r"\s*+‰"), Fraction(1, 1000)),
    (re.compile(r"\s*+割(?=$|です)"), Fraction(1, 10)),
)

# Where the number may end and its unit begin.
_CORE_END = re.compile(
    rf"[\d)}}\]!](?![\d.])|\.(?!\d)|\\pi(?![A-Za-z])|(?<![A-Za-z{WORD_MARK}])[A-Za-z](?=\s*{WORD_MARK})"
)
# What a unit is made of: words with powers; slashes, hyphens and brackets between and around them.
_UNIT = re.compile(
    rf"(?:{_WORD}(?:\s*+\^\{{?-?\d\}}?|[23](?!\d))?+|[{_JA}]++|°\s*+[CF]?|[\s/*.,'’()\[\]-])++"
)
_UNIT_WORD = re.compile(rf"({WORD_MARK}?)([A-Za-z]+)")
_NO_JA_UNIT = re.compile("|".join((*words.NO_JAPANESE_UNIT, f"[{_JA}]{{21}}")))

_NEGATIVE = re.compile(rf"マイナス|{WORD_MARK}?\b(?:minus|negative)\b", re.IGNORECASE)
_ABOUT = re.compile(r"\s*+(?:=|\\approx(?![A-Za-z]))\s*+")
_HEAD = re.compile(r"(?:[^\d\\({\[.+-]|\.(?!\d)){1,60}+(?=[\d\\({\[.+-])")
_JA_HEAD = re.compile(
    rf"[{_JA}]{{1,12}}|[{_JA}A-Za-z{WORD_MARK}\s,:]*(?:{'|'.join(words.JAPANESE_INTRODUCING)})[\s,:]*"
)
_NO_JA_HEAD = re.compile("|".join(words.NO_JAPANESE_INTRODUCING))
_PROSE = re.compile(rf"[A-Za-z{WORD_MARK}\s'’.,:]*")


@dataclass(frozen=True)
class Quantity:
    """An exact value; `share` is what one unit of it is worth when it is a percentage (1/100), else None."""

    value: Fraction
    share: Fraction | None = None

    def equals(self, other: Quantity) -> bool:
        """By value: 50 % equals 50 and 0.5, while a bare 50 does not equal a bare 0.5."""
        if self.share is not None and other.share is not None:
            return self.value * self.share == other.value * other.share
        if self.value == other.value:
            return True
        if self.share is not None:
            return self.value * self.share == other.value
        return other.share is not None and self.value == other.value * other.share


@lru_cache(maxsize=8192)
def read_quantity(text: str, letters: bool = True) -> Quantity | None:
    """The one quantity that a tidied answer states, or None.

    letters: a bare letter after the number may be a unit (18m). Off for golds, where 2m is twice a variable.
    Raises exact.TooCostly.
    """
    text = strip_lead_in(text)
    if text.startswith("(") and text.endswith(")") and "," not in text and ")" not in text[:-1]:
        text = text[1:-1]
    for match in _CORE_END.finditer(text):
        core, tail = text[: match.end()], text[match.end() :]
        if (unit := _read_unit(tail, letters)) is None or (core.startswith("(") and "," in core):
            continue
        try:
            value = evaluate(core)
        except NotRational:
            return None
        share, scale = unit
        return Quantity(value * 10**scale, share)
    return None


def strip_unit(text: str) -> str:
    """A tidied expression without the unit behind it: 36\\pi cm^2 is 36\\pi. A clock time keeps its AM or PM."""
    if ":" in text:
        return text
    for match in _CORE_END.finditer(text):
        if match.end() < len(text) and _read_unit(text[match.end() :], letters=False) == (None, 0):
            return text[: match.end()]
    return text


def strip_lead_in(text: str) -> str:
    """A tidied answer without a short introduction ("the answer is", 約), its Japanese scales written out in digits."""
    if not text.isascii():
        text = _JA_FRACTION.sub(r"\\frac{\2}{\1}", _JA_NUMBER.sub(_ja_number, text))
    text = _NEGATIVE.sub("-", _strip_sign(text))
    head = _HEAD.match(text)
    return _strip_sign(text[head.end() :]) if head and _introduces(head[0]) else text


def _strip_sign(text: str) -> str:
    """Without a leading equals or approximately sign."""
    match = _ABOUT.match(text)
    return text[match.end() :] if match else text


def _introduces(head: str) -> bool:
    if not head.isascii():
        return bool(_JA_HEAD.fullmatch(head)) and not _NO_JA_HEAD.search(head)
    said = re.findall("[a-z]+", head.lower())
    if not said or not _PROSE.fullmatch(head) or words.NO_INTRODUCING.intersection(said):
        return False
    return head.rstrip().endswith(":") or said[-1] in words.INTRODUCING


def _read_unit(tail: str, letters: bool) -> tuple[Fraction | None, int] | None:
    """(share, power of ten) of what follows a number; None when that is not a unit."""
    share, scale = None, 0
    while match := _SCALE.match(tail):
        scale += words.SCALES.get((match[1] or "thousand").lower(), 0)
        tail = tail[match.end() :]
    for pattern, worth in _SHARES:
        if match := pattern.match(tail):
            share, tail = worth, tail[match.end() :]
            break
    return (share, scale) if not tail or _is_unit(tail, letters) else None


def _is_unit(tail: str, letters: bool) -> bool:
    """Whether words, counters and signs behind a number leave its value as it is."""
    start = tail.lstrip()
    if not _UNIT.fullmatch(tail) or _NO_JA_UNIT.search(tail) or not re.search(rf"[A-Za-z{_JA}°]", tail):
        return False
    if start[0] in "*-.,'’)]" or any(tail.count(a) != tail.count(b) for a, b in ("()", "[]")):
        return False
    text = re.sub(r"°\s*[CF]?", "", tail)
    found = list(_UNIT_WORD.finditer(text))
    return all(_is_unit_word(match, text, letters, alone=len(found) == 1) for match in found)


def _is_unit_word(match: re.Match[str], text: str, letters: bool, alone: bool) -> bool:
    marked, word, place = match[1], match[2], match.start()
    if word.lower() == "times":  # eighteen of them, but no factor
        return not text[match.end() :].strip()
    if word.lower() in words.NO_UNIT:
        return False
    if marked or word.lower() in words.SHORT_UNITS:
        return True
    if place > 0 and not alone and word.lower() in words.INNER_WORDS:
        return True
    if len(word) == 1:  # a variable, unless it is a unit's letter: 18 m, 5 km/h
        follows = not text[:place].strip() or text[place - 1] == "/" != text.lstrip()[0]
        return letters and word in words.LETTER_UNITS and follows
    return len(word) >= (
        4 if place == 0 else 3
    )  # right behind the digits, a short one is a product of variables


def _ja_number(match: re.Match[str]) -> str:
    """1億2000万 in digits; the text itself where the scales are out of order."""
    try:
        return as_text(_ja_value(match[0]))
    except NotRational:
        return match[0]


def _ja_value(text: str) -> Fraction:
    for scale, power in _JA_POWERS:
        if scale in text:
            head, rest = text.split(scale, 1)
            if scale in rest:
                raise NotRational("two numbers side by side")
            return _ja_value(head) * 10**power + (_ja_value(rest) if rest else 0)
    return evaluate(text)
