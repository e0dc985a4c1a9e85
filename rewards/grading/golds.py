"""The canonical gold answer of a raw data-set field, or the reason why the row must be rejected."""

from __future__ import annotations

import re
from typing import Literal

from rewards.grading.compare import MAX_CHARS
from rewards.grading.exact import TooCostly, as_text, exceeds
from rewards.grading.extract import last_box
from rewards.grading.quantity import read_quantity
from rewards.grading.text import fold, tidy
from rewards.grading.vocabulary import PERCENT

Layout = Literal["marker", "boxed", "plain"]
GoldReason = Literal["missing_marker", "different_markers", "unreadable_gold"]

_MARKER = re.compile(r"#{4,}")
_CALCULATION = re.compile(r"<<[^<>]*>>")  # GSM8K's calculator marks
_RANGE = re.compile(r"(?<=\d)\s*~\s*(?=\d)")  # in plain text ~ is a range; in TeX it is a blank
_DIMENSIONS = re.compile(r"\d\s*[xX]\s*(?!10\s*\^)\d")  # 3 x 4 is not a number; 3 x 10^8 is
_FORMULA = re.compile(r"[\\^/／⁄∕÷%％*!(]")  # a gold with one of these is kept as written
_NOTE_LABEL = re.compile(r"(?<=[(\[])(?:訳注|訳者注|注|[Nn]ote)\s*:\s*")  # what follows must be a unit
_EMPTY_NOTE = re.compile(r"\s*[(\[](?:訳注|訳者注|割り切れる)[)\]]$")
_MAX_BITS = 1024
_CODE_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)


class GoldError(ValueError):
    """The gold of a row cannot be read. Such rows are counted and left out of training."""

    def __init__(self, reason: GoldReason) -> None:
        super().__init__(reason)
        self.reason = reason


def canonical_gold(field: str, layout: Layout) -> str:
    """The gold of one row.

    layout: ``marker`` takes the number after GSM8K's ``####``, without separators, units, currency and percent sign;
    ``boxed`` the content of the last ``\\boxed{}`` outside code fences; ``plain`` the whole field, with a number in its
    shortest spelling. A field that is not one number (a range, a date, an expression) is kept as written, except with
    ``marker``, which rejects it. Raises GoldError with the reason.
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
    if len(gold) > MAX_CHARS:  # such a gold is compared as text only
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
    """The gold of a field of unknown layout: what the last marker ``####`` or box gives, whichever comes later."""
    prose = fold(_CODE_FENCE.sub("", field))
    boxed = max(prose.rfind(r"\boxed"), prose.rfind(r"\fbox"))
    return canonical_gold(field, "boxed" if boxed > prose.rfind("####") else "marker")


def _after_marker(field: str) -> str:
    _, *values = _MARKER.split(fold(field.replace("÷", r"\div ")))
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
    """The first non-empty line, without calculator marks, asterisks and a note that changes nothing."""
    line, *_ = [*_CALCULATION.sub("", value).strip("* \r\n\t").splitlines(), ""]
    return _EMPTY_NOTE.sub("", _NOTE_LABEL.sub("", line)) if len(line) <= MAX_CHARS else line


def _number(text: str, behind_marker: bool) -> str | None:
    """A number in its shortest spelling; one written as a fraction becomes the reduced p/q.

    None for calculations, and for shares and groups (5割, 2 dozen), which may mean two numbers.
    behind_marker: a percent sign is dropped, and a bare letter is a unit (see `read_quantity`).
    """
    if len(text) > MAX_CHARS or r"\div" in text:
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
