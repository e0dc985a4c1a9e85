"""Whether an answer states the gold value.

Numbers are compared exactly and collections part by part. Surds, polynomials and functions go to a `leaf` comparison,
which may be expensive.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from rewards.grading.quantity import Quantity, read_quantity, read_span, strip_lead_in, strip_unit
from rewards.grading.shapes import (
    NAME,
    Collection,
    Interval,
    approximation_sides,
    equation_sides,
    is_relation,
    is_system,
    read_collection,
    read_interval,
)
from rewards.grading.text import WORD_MARK, tidy
from rewards.grading.vocabulary import NOUNS, PROSE, SHORT_UNITS

Leaf = Callable[[str, str], bool]

MAX_CHARS = 1000  # a longer answer is compared as text only
MAX_PARTS = 24

_WORD = re.compile(r"\(?([A-Za-zぁ-ゖァ-ヺー一-鿿々.'-]+)\)?")
_CLOCK_TIME = re.compile(r"0?(\d{1,2}(?::\d\d)?)([ap])\.?m\.?", re.IGNORECASE)
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*°")
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
# A letter or a short run of letters, or a Greek letter, which may be an unknown; macros such as \\frac are none.
_UNKNOWN = re.compile(
    rf"(?<![A-Za-z\\{WORD_MARK}])[A-Za-z]{{1,3}}(?![A-Za-z])"
    r"|\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|phi|psi|omega)(?![A-Za-z])"
)
# x+1 = 8 (the one sum that is read), P(X=2) = 1/2, ∠A = 30°
_NAMED_VALUE = re.compile(
    r"[A-Za-z]\s*[+-]\s*\d+|[A-Z]\s*\(.*\)|m?\s*(?:[∠△]|\\(?:measured)?angle|\\triangle)\s*[A-Z]{1,3}"
)
_BINDS = re.compile(r"\\(?:int|sum|prod|lim)(?![A-Za-z])")
_ABSOLUTE = re.compile(
    r"(?:\||\\[lr]?[Vv]ert|\\[lr](?:floor|ceil)).*|\\(?:sin|cos|tan|cot|sec|csc|log|ln|lg|exp|arc\w+)(?![A-Za-z]).*"
)
_PLAIN_DECIMAL = re.compile(
    r"^[^\d^*/]*\d[\d,]*?(?:\.(?P<places>\d+)|(?P<zeros>0+))?(?![\d.,])(?!\s*(?:\*|\\|\^|/|e\d))"
)
_VARIABLE = re.compile(r"(?:[a-z]|\\[a-z]+)(?:_.*)?")
_ORDERED = ({"", "()"}, {"[]"}, {"()"}, {"[)"}, {"(]"}, {"matrix"}, {"vmatrix"}, {"row"})
_UNORDERED = ({""}, {"{}"}, {"", "{}"}, {"cup"}, {"", "cup"})


class Unparsable(ValueError):
    """The answer cannot be read as mathematics."""


def equal(gold: str, answer: str, leaf: Leaf) -> bool:
    """Whether the answer states the value of the gold.

    leaf(gold, answer) compares two expressions, or two equations, that are neither rational numbers nor collections.
    Raises Unparsable when the answer cannot be read, exact.TooCostly when its value is too expensive to compute.
    """
    if max(len(gold), len(answer)) > MAX_CHARS:
        if gold.strip() == answer.strip():
            return True
        raise Unparsable("too long")
    gold = tidy(gold)
    return gold != "" and _equal(gold, tidy(answer), leaf)  # no answer equals an empty gold


def close(gold: str, answer: str, tolerance: float) -> bool:
    """Whether both state one number, and the answer's is within the share `tolerance` of the gold's."""
    gold, answer = tidy(gold), tidy(answer)
    if read_span(gold) is not None or read_span(answer) is not None:
        return False
    wanted, given = read_quantity(gold, letters=False), read_quantity(answer)
    if wanted is None or given is None or wanted.share != given.share:
        return False
    return abs(given.value - wanted.value) <= abs(wanted.value) * Fraction(tolerance)


def _equal(gold: str, answer: str, leaf: Leaf) -> bool:
    if _key(gold) == _key(answer):
        return True
    if (span := read_span(gold)) is not None:
        return span == read_span(answer)
    wanted, given = read_quantity(gold, letters=False), read_quantity(answer)
    if wanted is not None and given is not None:
        return wanted.equals(given)
    gold, answer = strip_lead_in(gold), strip_lead_in(answer)
    if is_relation(gold) or is_relation(answer):
        admitted, claimed = read_interval(gold), read_interval(answer)
        if admitted and claimed:
            return _same_interval(admitted, claimed, leaf)
        return _same_collection(gold, answer, leaf)
    if (
        not is_system(gold)
        and not is_system(answer)
        and (verdict := _same_claim(gold, answer, leaf)) is not None
    ):
        return verdict
    if read_collection(gold) or read_collection(answer):
        return _same_collection(gold, answer, leaf)
    return _same_expression(gold, answer, leaf)


@lru_cache(maxsize=8192)
def _key(text: str) -> str:
    """A key that spellings of one text share: blanks only between digits, no text marks, words in one case."""
    text = re.sub(rf"(?<![0-9])\s+|\s+(?![0-9])|{WORD_MARK}", "", text)
    if word := _WORD.fullmatch(text):
        return word[1].rstrip(".").casefold()
    if clock := _CLOCK_TIME.fullmatch(text):
        return f"{clock[1].removesuffix(':00')}{clock[2].lower()}m"
    if ":" in text:  # a clock time or a ratio
        return text.removeprefix("0").replace(".", "").casefold()
    return re.sub(r"([\^_])\{(\w)\}", r"\1\2", text)


# -- equations ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Claim:
    """What an equation says: a value and the name it is assigned to. value: None if it only relates expressions."""

    value: str | None
    name: str | None = None


def _same_claim(gold: str, answer: str, leaf: Leaf) -> bool | None:
    """The verdict if the gold or the answer is an equation or an approximation, else None."""
    stated, rounded = _approximated(gold), _approximated(answer)
    if rounded == []:
        return False  # a wrong rounding states nothing
    if stated is not None or rounded is not None:
        exact = approximation_sides(gold)[0] if stated == [] else (stated or [gold])[0]
        return any(_equal(exact, value, leaf) for value in rounded or [answer])
    gold_sides, answer_sides = equation_sides(gold), equation_sides(answer)
    if len(gold_sides) == len(answer_sides) == 1:
        return None
    wanted, given = _claim(gold_sides), _claim(answer_sides)
    if wanted is None or given is None:
        return False  # a false equation states nothing
    if wanted.value is not None and given.value is not None:
        if wanted.name and given.name and _differ(wanted.name, given.name):
            return False
        return _equal(wanted.value, given.value, leaf)
    if len(answer_sides) == 1:
        return False
    if len(gold_sides) == 1:
        # An expression and its value, as in x+1=8. With 0 on the right it is an equation to solve, not a value.
        result = None if _is_open(answer_sides[0]) else read_quantity(answer_sides[-1])
        return result is not None and result.value != 0 and _equal(gold, answer_sides[-1], leaf)
    solved = any(claim.value is not None and read_quantity(claim.value) for claim in (wanted, given))
    return len(gold_sides) == len(answer_sides) == 2 and not solved and leaf(gold, answer)


def _is_open(side: str) -> bool:
    """Whether the side of an equation has unknowns, so that the other side is not its value: 2x, x^2, x+y, |x|."""
    if _NAMED_VALUE.fullmatch(side) or _BINDS.search(side):
        return False
    return any(
        run[0].startswith("\\") or run[0].lower() not in SHORT_UNITS | NOUNS
        for run in _UNKNOWN.finditer(side)
    )


def _claim(sides: list[str]) -> _Claim | None:
    """What an equation chain says; None if its numbers contradict each other."""
    if len(sides) == 1:
        return _Claim(sides[0])
    names = [side for side in sides if side and NAME.fullmatch(side) and not _ABSOLUTE.fullmatch(side)]
    values = [side for side in sides if side not in names] or sides[-1:]
    numbers = [number for value in values if (number := read_quantity(value)) is not None]
    if not all(number.equals(numbers[0]) for number in numbers):
        return None
    if names:
        return _Claim(values[-1], names[0])
    return _Claim(sides[-1] if len(numbers) == len(sides) else None)


def _approximated(text: str) -> list[str] | None:
    """For "exact ≈ rounded": the exact value, and the rounded one if it is a correct rounding; [] if it is a wrong one.

    None for other texts. A rounding to tens or hundreds is correct, but only the exact value is returned for it.
    """
    sides = approximation_sides(text)
    if len(sides) != 2 or not all(sides):
        return None
    exact, rounded = sides
    if NAME.fullmatch(exact):
        return [rounded]
    exact_value, rounded_value = read_quantity(exact), read_quantity(rounded)
    if exact_value is None or rounded_value is None:
        return [exact]
    if not (match := _PLAIN_DECIMAL.search(rounded)):
        return [exact] if exact_value.equals(rounded_value) else []
    step = (
        Fraction(1, 10 ** len(match["places"]))
        if match["places"]
        else Fraction(10) ** len(match["zeros"] or "")
    )
    if rounded_value.share is not None and exact_value.share is None:
        exact_value = Quantity(exact_value.value / rounded_value.share)
    elif exact_value.share is not None and rounded_value.share is None and abs(rounded_value.value) <= 1:
        exact_value = Quantity(exact_value.value * exact_value.share)
    if abs(exact_value.value - rounded_value.value) * 2 > step:
        return []
    return [exact, rounded] if step <= 1 else [exact]


def _differ(name: str, other: str) -> bool:
    """Whether two names are different variables. A word such as Area may mean the same as a variable."""
    name, other = _key(name), _key(other)
    return name != other and bool(_VARIABLE.fullmatch(name)) and bool(_VARIABLE.fullmatch(other))


# -- collections -------------------------------------------------------------------------------------------------------


def _same_interval(wanted: Interval, given: Interval, leaf: Leaf) -> bool:
    if wanted.brackets != given.brackets or (wanted.name and given.name and _differ(wanted.name, given.name)):
        return False
    return all(_equal(*ends, leaf) for ends in zip(wanted.ends, given.ends, strict=True))


def _same_collection(gold: str, answer: str, leaf: Leaf) -> bool:
    wanted = read_collection(gold) or Collection("{}", (gold,))  # one value is a set of one
    given = read_collection(answer) or Collection("{}", (answer,))
    kinds = {wanted.kind, given.kind}
    if (
        len(wanted.parts) != len(given.parts)
        or len(wanted.parts) > MAX_PARTS
        or (gold, answer) == (*wanted.parts, *given.parts)
    ):
        return False
    if kinds not in _UNORDERED:
        return kinds in _ORDERED and all(map(_equal, wanted.parts, given.parts, [leaf] * len(wanted.parts)))
    rest = list(given.parts)
    for part in wanted.parts:
        match = next((other for other in rest if _equal(part, other, leaf)), None)
        if match is None:
            return False
        rest.remove(match)
    return True


# -- expressions -------------------------------------------------------------------------------------------------------


def _same_expression(gold: str, answer: str, leaf: Leaf) -> bool:
    gold, answer = strip_unit(_in_radians(gold)), strip_unit(_in_radians(answer))
    if _key(gold) == _key(answer):
        return True
    if not _is_formula(gold):
        return False
    if not _is_formula(answer):
        raise Unparsable("words")
    if r"\infty" in gold or r"\infty" in answer:
        return False
    return leaf(gold, answer)


def _is_formula(text: str) -> bool:
    """Symbols, not words: no prose, letter runs of at most 3 (a product of variables), no digits after a letter."""
    if not text.isascii() or WORD_MARK in text:
        return False
    bare = re.sub(r"\\[A-Za-z]+", " ", text)
    if re.search(r"[A-Za-z]\d|[^A-Za-z0-9\s+\-*/^_(){}\[\]!.|\\,=]", bare):
        return False
    if len(text) > 1 and text.isalpha():
        return False
    return all(len(run) <= 3 and run not in PROSE for run in re.findall(r"\b[A-Za-z]{2,}", bare))


def _in_radians(text: str) -> str:
    """Converts degrees to radians if there is a trigonometric function; otherwise ° is a unit."""
    return _DEGREES.sub(r"(\1\\frac{\\pi}{180})", text) if _TRIGONOMETRIC.search(text) else text
