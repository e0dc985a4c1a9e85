"""Whole numbers in words (eighteen, 十八), and Japanese scales and fractions with digits (1億2000万, 百分の1)."""

from __future__ import annotations

import re
from fractions import Fraction

from rewards.grading.exact import NotRational, as_text, evaluate
from rewards.grading.text import WORD_MARK
from rewards.grading.vocabulary import JAPANESE_SCALE_VARIANTS, JAPANESE_SCALES, NUMBER_WORDS, SCALES

_DIGITS = {digit: value for value, digit in enumerate("〇一二三四五六七八九")} | {"零": 0}
_SCALES = {scale: 10**power for scale, power in JAPANESE_SCALES.items()} | {"十": 10}
_MYRIAD = 10_000


def spoken_number(text: str) -> int | None:
    """The number written in English words or kanji numerals; None for any other text."""
    text = text.replace(WORD_MARK, "").lower().strip()
    if not text:
        return None
    if set(text) <= {*_DIGITS, *_SCALES}:
        tokens = [(_DIGITS.get(character), _SCALES.get(character)) for character in text]
        return _added(tokens, _MYRIAD)
    found = [word for word in re.split(r"[\s-]+", text) if word != "and"]
    if not found or not all(word in NUMBER_WORDS or word in SCALES for word in found):
        return None
    return _added([(NUMBER_WORDS.get(word), 10 ** SCALES.get(word, 0)) for word in found], 1000)


def _added(tokens: list[tuple[int | None, int | None]], section_end: int) -> int:
    """The sum of (digit, scale) tokens; a scale of `section_end` or more multiplies the whole section before it."""
    total = section = digit = 0
    for value, scale in tokens:
        if value is not None:
            digit += value
        elif scale is not None and scale < section_end:
            section, digit = section + (digit or 1) * scale, 0
        elif scale is not None:
            total, section, digit = total + ((section + digit) or 1) * scale, 0, 0
    return total + section + digit


def ja_fraction(match: re.Match[str]) -> str:
    r"""百分の1 as \frac{1}{100}; 十, 百, 千 and 万 are the only kanji numerals that are read."""
    denominator = match[1] if match[1][0].isdecimal() else spoken_number(match[1])
    return rf"\frac{{{match[2]}}}{{{denominator}}}"


def ja_number(match: re.Match[str]) -> str:
    """1億2000万 in digits; the unchanged text if the scales are out of order."""
    try:
        return as_text(_ja_value(match[0]))
    except NotRational:
        return match[0]


def _ja_value(text: str) -> Fraction:
    for variant, scale in JAPANESE_SCALE_VARIANTS.items():
        text = text.replace(variant, scale)
    for scale, power in JAPANESE_SCALES.items():
        if scale in text:
            head, rest = text.split(scale, 1)
            if scale in rest:
                raise NotRational("two numbers side by side")
            return _ja_value(head) * 10**power + (_ja_value(rest) if rest else 0)
    return evaluate(text.strip())
