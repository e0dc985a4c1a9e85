"""The canonical gold answer in a raw data-set field, or the reason why the row must be rejected."""

from __future__ import annotations

import re
from typing import Literal

from rewards.grading.compare import MAX_CHARS
from rewards.grading.exact import TooCostly, as_text, exceeds
from rewards.grading.extract import last_box
from rewards.grading.quantity import read_quantity
from rewards.grading.text import fold, tidy
from rewards.grading.words import PERCENT

Layout = Literal["marker", "boxed", "plain"]
GoldReason = Literal["missing_marker", "different_markers", "unreadable_gold"]

_MARKER = re.compile(r"#{4,}")
_CALCULATION = re.compile(r"<<[^<>]*>>")  # GSM8K's calculator marks
_RANGE = re.compile(r"(?<=\d)\s*~\s*(?=\d)")  # TeX's blank between thousands, were it not plain text
_DIMENSIONS = re.compile(r"\d\s*[xX]\s*(?!10\s*\^)\d")  # neither a number nor a product; 3 x 10^8 is one
_FORMULA = re.compile(r"[\\^/%％*!(]")  # kept as it is written
_NOTE = re.compile(r"\s*[(\[](?:[^()\[\]0-9]*|[^()\[\]]*(?:訳|注|[Nn]ote)[^()\[\]]*)[)\]].*", re.DOTALL)
_MAX_BITS = 1024
_CODE_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)


class GoldError(ValueError):
    """A row whose gold cannot be read; it is counted and left out, never trained on."""

    def __init__(self, reason: GoldReason) -> None:
        super().__init__(reason)
        self.reason = reason


def canonical_gold(field: str, layout: Layout) -> str:
    """The gold of one row.

    layout: ``marker`` takes the number after GSM8K's ``####`` (a plain number: separators, units, currency and
    percent sign dropped); ``boxed`` the content of the last ``\\boxed{}`` outside code fences; ``plain`` the field, a
    number in its shortest spelling. What is not one number (a range, a date, an expression) stays as it is written, but
    for ``marker``, where it is no gold. Raises GoldError with the reason.
    """
    if layout == "marker":
        return _after_marker(field)
    if layout == "boxed":
        box = last_box(_CODE_FENCE.sub("", field))
        if box is None:
            raise GoldError("missing_marker")
        field = box.content or ""
    gold = field.strip()
    if layout == "plain":
        gold = _RANGE.sub("〜", gold)
        if _DIMENSIONS.search(fold(gold)) and "\\" not in gold:
            raise GoldError("unreadable_gold")
    if len(gold) > MAX_CHARS:  # can be compared as text only
        return gold
    if not re.search(r"\w", tidy(gold)):
        raise GoldError("unreadable_gold")
    if (
        layout == "plain"
        and not _FORMULA.search(gold)
        and (number := _number(gold, behind_marker=False)) is not None
    ):
        return number
    return gold


def canonical_raw_gold(field: str) -> str:
    """The gold of a field whose layout is not known: of the marker ``####`` and the box, the one that stands last."""
    prose = fold(_CODE_FENCE.sub("", field))
    boxed = max(prose.rfind(r"\boxed"), prose.rfind(r"\fbox"))
    return canonical_gold(field, "boxed" if boxed > prose.rfind("####") else "marker")


def _after_marker(field: str) -> str:
    _, *values = _MARKER.split(fold(field))
    if not values:
        raise GoldError("missing_marker")
    numbers = [
        _number(_RANGE.sub("〜", line), behind_marker=True)
        for value in values
        if (line := _first_line(value))
    ]
    if not numbers or numbers[-1] is None:
        raise GoldError("unreadable_gold")
    if len({number for number in numbers if number is not None}) > 1:
        raise GoldError("different_markers")
    return numbers[-1]


def _first_line(value: str) -> str:
    """The first line with text, without calculator marks, asterisks and a translator's note."""
    line, *_ = [*_CALCULATION.sub("", value).strip("* \r\n\t").splitlines(), ""]
    return _NOTE.sub("", line) if len(line) <= MAX_CHARS else line


def _number(text: str, behind_marker: bool) -> str | None:
    """A number in its shortest spelling; a fraction stays the reduced p/q unless it was written as a decimal.

    None for what would have to be computed, and for parts and groups (5割, 2 dozen), which may mean two numbers.
    behind_marker: a percent sign is dropped, and a bare letter is a unit (see `read_quantity`).
    """
    if len(text) > MAX_CHARS:
        return None
    try:
        quantity = read_quantity(tidy(text), letters=behind_marker, literal=True)
    except TooCostly:
        return None
    if quantity is None or exceeds(quantity.value, _MAX_BITS):
        return None
    if quantity.share is not None and not (behind_marker and quantity.share == PERCENT):
        return None
    value = quantity.value
    return (
        f"{value.numerator}/{value.denominator}" if "/" in text and value.denominator > 1 else as_text(value)
    )
