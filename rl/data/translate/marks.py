r"""Marks that keep numbers and formulas out of a translator's hands: ``[[3]]`` leaves, the source's own text comes back.

In a solution a mark is opaque (``[[3]]``), so that no value can be changed and the gold answer is never sent. In a question it
shows the value (``[[3:2010]]``), because "in 2010" and "at 9:30" cannot be translated without it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from rewards.grading.exact import as_text
from rewards.grading.golds import Layout

_DIGITS = r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\d)\.\d+"
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_JA_SCALES = {"百": 100, "千": 1000, "万": 10**4, "億": 10**8, "兆": 10**12}
_SCALED = rf"(?:{_DIGITS})[ -](?:{'|'.join(_SCALES)})s?(?![A-Za-z])"
_JA_SCALED = rf"(?:{_DIGITS})(?:[百千万億兆]+(?:{_DIGITS})?)+(?!分の)"
_JA_FRACTION = r"\d+\s*分の\s*\d+"
_ORDINAL = r"\d+(?:st|nd|rd|th)(?![A-Za-z])"
_ATOM = rf"(?:<<[^<>]*>>\s*[$€£¥]?)?(?:{_DIGITS})%?|<<[^<>]*>>"
_OPERATOR = r"[ \t]*(?:[-+*/=:×÷^]|[xX](?=[ \t]*[\d($.]))[ \t]*"
# 48/2 = <<48/2=24>>24 is one piece: its parts mean nothing to a translator.
_FORMULA = rf"(?:\((?=[-\d$.(]))*(?:{_ATOM})\)*(?:{_OPERATOR}[-($€£¥]*(?:{_ATOM})\)*)*"
_BOX = r"\\boxed\s*\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_TEX = (
    r"```.*?(?:```|\Z)|\$\$.+?\$\$|\\\[.+?\\\]|\\\(.+?\\\)|\\begin\{(\w+\*?)\}.*?\\end\{\1\}"
    rf"|\$(?!\s)[^$\n]*[^$\s]\$(?!\d)|{_BOX}|\\[A-Za-z]+"
)
_NUMBERS = rf"{_ORDINAL}|{_SCALED}|{_JA_FRACTION}|{_JA_SCALED}|{_FORMULA}"
_PLAIN_PIECE = re.compile(rf"\[\[|\]\]|{_NUMBERS}")
_TEX_PIECE = re.compile(rf"{_TEX}|\[\[|\]\]|{_NUMBERS}", re.DOTALL)
# A percent sign is part of its number; a translator may write it again as a word behind the mark.
_MARK = re.compile(
    r"[\[［]{2}\s*(\d{1,4})\s*(?:[:：][^\[\]［］]*)?[\]］]{2}(?P<percent>\s*(?:パーセント|percent|[%％]))?"
)
_LEFT_MARK = re.compile(r"[\[［]{2}|[\]］]{2}")


@dataclass(frozen=True)
class Masked:
    """A text for the translator. pieces: what each mark stands for. single: marks that must come back exactly once."""

    text: str
    pieces: list[str]
    single: frozenset[int]


@dataclass(frozen=True)
class Restored:
    """A translation with the source's pieces. lost, repeated, unknown: numbers of marks that are wrong in it."""

    text: str
    lost: list[int]
    repeated: list[int]
    unknown: list[int]


def mask(text: str, layout: Layout, shown: bool) -> Masked:
    """`text` with a mark for each number, calculation and (unless GSM8K's layout) TeX formula and code block.

    shown: plain numbers stay readable inside their marks.
    """
    pieces: list[str] = []
    single: set[int] = set()

    def marked(match: re.Match[str]) -> str:
        piece = match[0]
        pieces.append(piece)
        number = len(pieces)
        is_number = re.fullmatch(_NUMBERS, piece) is not None
        if "<<" in piece or "=" in piece or not is_number:
            single.add(number)
        visible = shown and "<<" not in piece and not re.search(r"[\[\]［］\n:]", piece.replace(":", "", 1))
        return f"[[{number}:{piece}]]" if visible else f"[[{number}]]"

    pattern = _PLAIN_PIECE if layout == "marker" else _TEX_PIECE
    return Masked(pattern.sub(marked, text), pieces, frozenset(single))


def restore(translation: str, masked: Masked, to: str) -> Restored:
    """The translation with every mark replaced by the source's piece, written as the language `to` writes numbers."""
    found: Counter[int] = Counter()
    unknown: list[int] = []

    def replaced(match: re.Match[str]) -> str:
        number = int(match[1])
        if not 1 <= number <= len(masked.pieces):
            unknown.append(number)
            return match[0]
        found[number] += 1
        piece = in_language(masked.pieces[number - 1], to)
        return piece if piece.endswith("%") else piece + (match["percent"] or "")

    text = _MARK.sub(replaced, translation)
    everywhere = range(1, len(masked.pieces) + 1)
    return Restored(
        text,
        [number for number in everywhere if not found[number]],
        [number for number in sorted(masked.single) if found[number] > 1],
        unknown,
    )


def without_marks(text: str) -> str:
    """The words of a masked text or of its translation, for length and language checks."""
    return _LEFT_MARK.sub(" ", _MARK.sub(" ", text))


def in_language(piece: str, to: str) -> str:
    """A number as the language writes it: 2nd is 2 and 1.5 million is 1,500,000 in Japanese; 3分の2 is 2/3 in English."""
    plain = unicodedata.normalize("NFKC", piece) if not piece.isascii() else piece
    if to == "ja":
        if re.fullmatch(_ORDINAL, plain):
            return plain[:-2]
        if re.fullmatch(_SCALED, plain):
            number, scale, _ = re.split(rf"[ -]({'|'.join(_SCALES)})s?", plain)
            return _grouped(Fraction(number.replace(",", "")) * _SCALES[scale])
        return piece
    if re.fullmatch(_JA_FRACTION, plain):
        below, above = re.split(r"\s*分の\s*", plain)
        return f"{above}/{below}"
    if re.fullmatch(_JA_SCALED, plain):
        return _grouped(ja_scaled(plain))
    return plain if re.fullmatch(r"[\d\s.,%]+", plain) else piece


def ja_scaled(text: str) -> Fraction:
    """The value of 1億2000万 or 3千; digits and 百, 千, 万, 億, 兆 in falling order."""
    total = section = Fraction(0)
    number: Fraction | None = None
    for part in re.findall(rf"{_DIGITS}|[百千万億兆]", text):
        scale = _JA_SCALES.get(part)
        if scale is None:
            number = Fraction(part.replace(",", ""))
        elif scale < 10**4:
            section, number = section + (1 if number is None else number) * scale, None
        else:
            section += number or 0
            total, section, number = total + (section or 1) * scale, Fraction(0), None
    return total + section + (number or 0)


def _grouped(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else as_text(value)
