"""Reads one number with its surroundings: a short lead-in, currency, units, counters, percent, scale words.

Units are dropped, never converted. Scale words (million, 万, 億) are part of the value. Kanji numerals are not read.
The units are a closed list (rewards/grading/vocabulary.py): an unknown word may change the value, so it makes the text
unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from rewards.grading import vocabulary
from rewards.grading.exact import NotRational, evaluate, is_literal, is_span
from rewards.grading.numerals import ja_fraction, ja_number, spoken_number
from rewards.grading.text import WORD_MARK

_JA = "ぁ-ゖァ-ヺー一-鿿々〇"
_WORD = rf"{WORD_MARK}?[A-Za-z]+"

_JA_SCALES = "".join([*vocabulary.JAPANESE_SCALES, *vocabulary.JAPANESE_SCALE_VARIANTS])
_JA_NUMBER = re.compile(rf"\d[\d,.]*+\s*+[{_JA_SCALES}](?:[{_JA_SCALES}]|\d[\d,.]*+)*+")
_JA_FRACTION = re.compile(r"(\d[\d,]*|[十百千万]+)\s*分の\s*(\d[\d,]*)")
_HALF = re.compile(rf"(?<=\d)\s+{WORD_MARK}?and\s+{WORD_MARK}?(?:a|one)\s+{WORD_MARK}?half(?![A-Za-z])")
_RANGE = re.compile(rf"(?<=\d)\s*(?:〜|から|{WORD_MARK}?(?<![A-Za-z])to(?![A-Za-z]))\s*(?=-?\d)")
_MIXED = re.compile(rf"(?<=\d)(?:\s*と|\s+{WORD_MARK}?and(?![A-Za-z]))\s*(?=\\frac|\d+\s*/)")


def _any(choices: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, choices), key=len, reverse=True))


_SCALE = re.compile(rf"[\s-]*+{WORD_MARK}?({_any(vocabulary.SCALES)})s?(?![A-Za-z])", re.IGNORECASE)
_SHORT_SCALE = re.compile(
    rf"{WORD_MARK}?(k)(?![A-Za-z])|\s*+{WORD_MARK}?({_any(vocabulary.SHORT_SCALES)})(?![A-Za-z])",
    re.IGNORECASE,
)
_DENOMINATOR = re.compile(
    rf"[\s-]*+{WORD_MARK}?({_any(vocabulary.DENOMINATORS)})s?(?![A-Za-z])", re.IGNORECASE
)
_SHARES = [
    (re.compile(rf"[\s-]*+{WORD_MARK}?(?:{name})(?![A-Za-z])", re.IGNORECASE), worth)
    for name, worth in vocabulary.SHARES.items()
]
_BELOW_ZERO = re.compile(rf"\s+{WORD_MARK}?below\s+{WORD_MARK}?zero$", re.IGNORECASE)

# Where the number may end and its unit begin.
_CORE_END = re.compile(
    rf"[\d)}}\]!](?![\d.])|\.(?!\d)|\\pi(?![A-Za-z])|(?<![A-Za-z{WORD_MARK}])[A-Za-z](?=\s*{WORD_MARK})"
)
# A unit: words with powers, and slashes, hyphens and brackets between and around them.
_UNIT = re.compile(
    rf"(?:{_WORD}(?:\s*+\^\{{?-?\d\}}?|[23](?!\d))?+|[{_JA}]++|°\s*+[CF]?|[\s/*.,'’()\[\]-])++"
)
_UNIT_WORD = re.compile(rf"({WORD_MARK}?)([A-Za-z]+)")
_UNIT_FRACTION = re.compile(rf"\\frac\{{({_WORD}[^{{}}]*)\}}\{{({_WORD}[^{{}}]*)\}}")
_EXCLAMATION = re.compile(
    rf"(?<=[A-Za-z{_JA}][A-Za-z{_JA}])!+$|(?<=[{_JA}])!+$"
)  # "18 apples!"; n! is a factorial
_JA_RUN = re.compile(f"[{_JA}]+")
_JA_UNIT = re.compile(
    rf"(?:{_any(vocabulary.COUNTERS)}){{0,3}}(?:(?<=[{_JA}])の(?:{_any(vocabulary.JAPANESE_NOUNS)}))?"
    rf"(?:{_any(vocabulary.JAPANESE_ENDINGS)}){{0,3}}"
)

_NEGATIVE = re.compile(
    rf"マイナス|{WORD_MARK}?\b(?:minus|negative)\b|(?:負の|氷点下|零下)(?=\s*[\d.])", re.IGNORECASE
)
_ABOUT = re.compile(r"\s*+(?:=|\\approx(?![A-Za-z]))\s*+")
_HEAD = re.compile(r"(?:[^\d\\({\[.+-]|\.(?!\d)){1,60}+(?=[\d\\({\[.+-])")
_JA_HEAD = re.compile(
    rf"(?:{_any(vocabulary.JAPANESE_NOUNS)}|{_any(vocabulary.JAPANESE_INTRODUCTION)}|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|[\s,:{WORD_MARK}])+"
)
_JA_HEAD_CHARS = 24
_LABEL = re.compile(r"[(\[【](?:答え?|解答?|正解)[)\]】]\s*:?\s*")
_PROSE = re.compile(rf"[A-Za-z{WORD_MARK}\s'’.,:]*")


@dataclass(frozen=True)
class Quantity:
    """An exact value. share: the worth of one unit of it, e.g. 1/100 for a percentage, 12 for dozens; else None."""

    value: Fraction
    share: Fraction | None = None

    def equals(self, other: Quantity) -> bool:
        """Equality by value: 50 % equals 50 and 0.5, but a bare 50 does not equal a bare 0.5."""
        if self.share is not None and other.share is not None:
            return self.value * self.share == other.value * other.share
        if self.value == other.value:
            return True
        if self.share is not None:
            return self.value * self.share == other.value
        return other.share is not None and self.value == other.value * other.share


@dataclass(frozen=True)
class Stated:
    """The number in an answer as written, and the factor and share that the words after it give."""

    core: str
    factor: Fraction
    share: Fraction | None


@lru_cache(maxsize=8192)
def read_quantity(text: str, letters: bool = True, literal: bool = False) -> Quantity | None:
    """The one quantity that a tidied answer states, or None.

    letters: a bare letter after the number may be a unit (18m). Off for golds, where 2m is twice a variable.
    literal: accept only a written number, no calculation. Raises exact.TooCostly.
    """
    if (glossed := _without_gloss(text)) is not None:
        number, said = glossed
        quantity = read_quantity(number, letters, literal)
        return quantity if quantity == Quantity(Fraction(said)) else None
    stated = _stated(text, letters)
    if stated is None or (literal and (is_span(stated.core) or not is_literal(stated.core))):
        return None
    try:
        value = evaluate(stated.core)
    except NotRational:
        return None
    if stated.factor < 0 and value < 0:
        return None
    return Quantity(value * stated.factor, stated.share)


@lru_cache(maxsize=8192)
def read_span(text: str) -> Stated | None:
    """A range or a date (18-20, 18 to 20, 2024/05/01), which arithmetic would read as a difference or a quotient."""
    stated = _stated(_RANGE.sub("-", text), letters=False)
    if stated is None or not is_span(stated.core):
        return None
    return replace(stated, core=re.sub(r"\s", "", stated.core))


def _stated(text: str, letters: bool) -> Stated | None:
    text = strip_lead_in(text)
    if text.startswith("(") and text.endswith(")") and "," not in text and ")" not in text[:-1]:
        text = text[1:-1]
    text = _MIXED.sub(" ", _HALF.sub(" 1/2", text))
    for match in _CORE_END.finditer(text):
        core, tail = text[: match.end()], text[match.end() :]
        if (unit := _read_unit(tail, letters)) is not None and not (core.startswith("(") and "," in core):
            return Stated(core, *unit)
    return None


def _without_gloss(text: str) -> tuple[str, int] | None:
    """("18", 18) for "18 (十八)" and "eighteen (18)"; None unless one of the two parts is a number in words."""
    if not text.endswith(")") or text.count("(") != 1:
        return None
    before, inside = (part.strip() for part in text[:-1].split("("))
    for number, words_ in ((before, inside), (inside, before)):
        if number and (said := spoken_number(words_)) is not None:
            return number, said
    return None


def strip_unit(text: str) -> str:
    """A tidied expression without its trailing unit: 36\\pi cm^2 gives 36\\pi. A clock time keeps its AM or PM."""
    if ":" in text:
        return text
    for match in _CORE_END.finditer(text):
        if match.end() < len(text) and _read_unit(text[match.end() :], letters=False) == (Fraction(1), None):
            return text[: match.end()]
    return text


def strip_lead_in(text: str) -> str:
    """A tidied answer without a short introduction ("the answer is", 約), with Japanese scales written as digits."""
    if not text.isascii():
        text = _JA_FRACTION.sub(ja_fraction, _JA_NUMBER.sub(ja_number, text))
    text = _LABEL.sub("", text, count=1) if _LABEL.match(text) else text
    text = _NEGATIVE.sub("-", _strip_sign(text))
    head = _HEAD.match(text)
    if not head or not _introduces(head[0]):
        return text
    rest = text[head.end() :]
    return text if rest.startswith("-") and _ends_with_a_name(head[0]) else _strip_sign(rest)


def _strip_sign(text: str) -> str:
    """The text without a leading equals or approximately sign."""
    match = _ABOUT.match(text)
    return text[match.end() :] if match else text


def _introduces(head: str) -> bool:
    if not head.isascii():
        # 全体の18 is a part of the whole; 正の18 is 18
        is_part = head.rstrip().endswith("の") and not head.rstrip().endswith("正の")
        return len(head) <= _JA_HEAD_CHARS and not is_part and bool(_JA_HEAD.fullmatch(head))
    said = re.findall("[a-z'’]+", head.lower())
    if not said or not _PROSE.fullmatch(head):
        return False
    for word, behind in zip(said, [*said[1:], ""], strict=True):
        if word in vocabulary.SUPERLATIVES:
            if not _is_noun(behind):
                return False
        elif len(word) > 1 and word not in vocabulary.INTRODUCTION and not _is_noun(word):
            return False
    return head.rstrip().endswith(":") or said[-1] in vocabulary.INTRODUCING or said[-2:] == ["equal", "to"]


def _ends_with_a_name(head: str) -> bool:
    """Whether a dash after this introduction may be a separator rather than a minus sign (Total - 18, 合計-18)."""
    head = head.rstrip()
    if not head.isascii():
        return head.endswith(tuple(vocabulary.JAPANESE_NOUNS)) and not head.endswith(
            tuple(vocabulary.JAPANESE_INTRODUCTION)
        )
    last = re.findall("[a-z]+", head.lower())[-1]
    return not head.endswith(":") and (last in vocabulary.TITLES or _is_noun(last))


def _is_noun(word: str) -> bool:
    """Whether the word or its singular is in the table of nouns."""
    return any(word.removesuffix(ending) in vocabulary.NOUNS for ending in ("", "s", "es"))


def _read_unit(tail: str, letters: bool) -> tuple[Fraction, Fraction | None] | None:
    """(factor, share) of the text after a number; None if it is not a unit."""
    if not tail:
        return Fraction(1), None
    tail = _EXCLAMATION.sub("", _UNIT_FRACTION.sub(r"\1/\2", tail))
    factor, share = Fraction(1), None
    if match := _BELOW_ZERO.search(tail):
        factor, tail = -factor, tail[: match.start()]
    scaled = False
    while match := _SCALE.match(tail):
        factor, tail, scaled = factor * 10 ** vocabulary.SCALES[match[1].lower()], tail[match.end() :], True
    if (match := _SHORT_SCALE.match(tail)) and (letters or (match[2] and not match[0][0].isalpha())):
        power = vocabulary.SHORT_SCALES[match[2].lower()] if match[2] else 3
        factor, tail = factor * 10**power, tail[match.end() :]
    if match := _DENOMINATOR.match(tail):
        if scaled:  # five hundred thousandths are two numbers
            return None
        factor, tail = factor / vocabulary.DENOMINATORS[match[1].lower()], tail[match.end() :]
    for pattern, worth in _SHARES:
        if match := pattern.match(tail):
            share, tail = worth, tail[match.end() :]
            break
    return (factor, share) if not tail or _is_unit(tail, letters) else None


def _is_unit(tail: str, letters: bool) -> bool:
    """Whether the text after a number consists of words, counters and signs that are known not to change its value."""
    start = tail.lstrip()
    if not _UNIT.fullmatch(tail) or not re.search(rf"[A-Za-z{_JA}°]", tail):
        return False
    if start[0] in "*-.,'’)]" or any(tail.count(a) != tail.count(b) for a, b in ("()", "[]")):
        return False
    if not all(len(run) <= _JA_HEAD_CHARS and _JA_UNIT.fullmatch(run) for run in _JA_RUN.findall(tail)):
        return False
    text = re.sub(r"°\s*[CF]?", "", tail)
    found = list(_UNIT_WORD.finditer(text))
    if found and found[-1][2].lower() in vocabulary.INCOMPLETE:
        return False
    return all(_is_unit_word(match, text, letters, alone=len(found) == 1) for match in found)


def _is_unit_word(match: re.Match[str], text: str, letters: bool, alone: bool) -> bool:
    marked, word, place = bool(match[1]), match[2], match.start()
    if word.lower() == "times":  # "18 times" is a count; "18 times 2" is a factor
        return not text[match.end() :].strip()
    if len(word) == 1 and word.lower() != "a":  # a variable, unless it is a unit's letter: 18 m, 5 km/h
        follows = not text[:place].strip() or text[place - 1] == "/" != text.lstrip()[0]
        return (
            word in vocabulary.TEXT_LETTER_UNITS
            if marked
            else letters and word in vocabulary.LETTER_UNITS and follows
        )
    if (
        _is_noun(word.lower())
        or word.lower() in vocabulary.SHORT_UNITS | vocabulary.DESCRIPTIONS | vocabulary.INCOMPLETE
    ):
        return True
    return place > 0 and not alone and word.lower() in vocabulary.INNER_WORDS
