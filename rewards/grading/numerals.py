"""Whole numbers in words: eighteen, one hundred and five, 十八."""

from __future__ import annotations

import re

from rewards.grading.text import WORD_MARK
from rewards.grading.vocabulary import JAPANESE_SCALES, NUMBER_WORDS, SCALES

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
