"""The answer field of a row: its solution, which is translated, and its gold line, which never is."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from rewards.grading.exact import NotRational, TooCostly, evaluate
from rewards.grading.golds import GoldError, Layout, canonical_gold

_MARKER_LINE = re.compile(r"[ \t]*[#＃]{4,}.*\Z", re.DOTALL)
_MARKER = re.compile(r"[#＃]{4,}")
CALCULATION = re.compile(r"<<([^<>]*)>>")
_TOLERANCE = Fraction(1, 100)  # of a rounded result, e.g. 10/3=3.33


@dataclass(frozen=True)
class Answer:
    """solution: what is translated; "" if the field is only the gold. last: the rest, e.g. ``#### 72``; "" in a boxed answer."""

    solution: str
    last: str


def split_answer(field: str, layout: Layout) -> Answer:
    """The parts of an answer field; GSM8K's last line is cut off, a box stays in the solution as a formula."""
    if layout == "plain":
        return Answer("", field)
    if layout == "boxed":
        return Answer(field, "")
    match = _MARKER.search(field)
    return (
        Answer(field[: match.start()].rstrip(), field[match.start() :].strip())
        if match
        else Answer(field, "")
    )


def join_answer(solution: str, last: str) -> str:
    """The answer field again."""
    return f"{solution.rstrip()}\n{last}" if solution and last else solution or last


def single_marker(last: str, layout: Layout) -> str:
    """A gold line that states the same value twice, with the value once; any other as it is."""
    doubled = layout == "marker" and len(_MARKER.findall(last)) > 1
    gold = gold_of(last, layout) if doubled else None
    return f"#### {gold}" if gold is not None else last


def without_markers(solution: str) -> str:
    """A translated solution without gold lines that the translator made up."""
    return _MARKER_LINE.sub("", solution).rstrip() if _MARKER.search(solution) else solution


def gold_of(field: str, layout: Layout) -> str | None:
    """The canonical gold; None if the field has none that can be read."""
    try:
        return canonical_gold(field, layout)
    except GoldError:
        return None


def calculations(text: str) -> list[str]:
    """The contents of ``<<...>>``, without blanks and in half width, in order."""
    return [tidy_calculation(content) for content in CALCULATION.findall(text)]


def tidy_calculation(content: str) -> str:
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", content)).replace(",", "")


def sides(calculation: str) -> tuple[Fraction, Fraction] | None:
    """The values of both sides of ``a=b``; None if they are not plain arithmetic."""
    left, equals, right = calculation.rpartition("=")
    if not equals:
        return None
    values = [value_of(side) for side in (left, right)]
    return None if values[0] is None or values[1] is None else (values[0], values[1])


def value_of(expression: str) -> Fraction | None:
    """The value of plain arithmetic such as 12/60*2 or 20%; None for anything else."""
    plain = re.sub(r"[$€£¥]", "", expression).replace("×", "*").replace("÷", "/").replace("x", "*")
    plain = re.sub(r"(\d+(?:\.\d+)?|\.\d+)%", r"(\1/100)", re.sub(r"(?<![\d.])0+(?=\d)", "", plain))
    plain = re.sub(r"(?<![\d.])\.(?=\d)", "0.", plain)
    if len(plain) > 200 or not re.fullmatch(r"[\d.+*/()^-]+", plain):
        return None
    try:
        return evaluate(plain)
    except (NotRational, TooCostly, ValueError, ZeroDivisionError):
        return None


def disagree(calculation: str) -> bool:
    """Whether the two sides of ``a=b`` differ by more than rounding; False if one is not plain arithmetic."""
    values = sides(calculation)
    return values is not None and not close(*values)


def close(one: Fraction, other: Fraction) -> bool:
    """Equal except for rounding: within 1 %, or to the next whole number of a result above 10."""
    return abs(one - other) <= _TOLERANCE * max(abs(one), abs(other)) or (
        other.denominator == 1 and abs(one) > 10 and abs(one - other) < 1
    )
