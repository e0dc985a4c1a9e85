"""Compares expressions with math-verify: surds, polynomials, functions, equations.

Model text is parsed by a LaTeX grammar, never evaluated as Python. `check` rejects costly expressions before anything
is computed. Run `same` in a process that may be killed, because a comparison can still take too long.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING

from rewards.grading.compare import Unparsable, equation_sides
from rewards.grading.exact import NotRational, TooCostly, evaluate
from rewards.grading.text import closing

if TYPE_CHECKING:
    from sympy import Expr

_MAX_CHARS = 300
_MAX_DEPTH = 12
_MAX_EXPONENT = 1000  # also the largest number in a factorial or binomial
_MAX_POLYNOMIAL = 40  # the highest degree after expansion, and the most brackets in one expression
_COSTLY = re.compile(r"\\(?:sum|prod|i{1,3}nt|oint|lim)(?![A-Za-z])")
_MACRO = re.compile(
    r"\\(?:frac|sqrt|binom|pi|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|lg|exp|[lr](?:floor|ceil)|vert|mid"
    r"|[Gg]amma|[Dd]elta|[Tt]heta|[Ll]ambda|[Ss]igma|[Pp]hi|[Pp]si|[Oo]mega|alpha|beta|(?:var)?epsilon|zeta|eta|kappa|mu"
    r"|nu|xi|rho|tau|varphi|chi)(?![A-Za-z])"
)
_MALFORMED = re.compile(r"(?<!_)\d\s+\d|\d\s*_|\\(?:frac|sqrt)\s*[^\s{\[]")
_BRACED_ARGUMENT = re.compile(
    r"(\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|ln|log|exp)(?:_(?:\w|\{[^{}]*\}))?(?:\^(?:\w|\{[^{}]*\}))?)\s*\{([^{}]*)\}"
)


def check(text: str) -> None:
    """Raises compare.Unparsable unless `text` is plain LaTeX mathematics, exact.TooCostly if it may take too long."""
    if _COSTLY.search(text) or len(text) > _MAX_CHARS or text.count("(") > _MAX_POLYNOMIAL:
        raise TooCostly(text[:80])
    if "\\" in _MACRO.sub("", text) or _MALFORMED.search(text):
        raise Unparsable(text[:80])
    depths = [
        0,
        *itertools.accumulate(1 if bracket in "{(" else -1 for bracket in re.findall(r"[{}()]", text)),
    ]
    if min(depths) < 0 or depths[-1] != 0:
        raise Unparsable("unbalanced brackets")
    if max(depths) > _MAX_DEPTH:
        raise TooCostly("nested deeply")
    _check_numbers(text)


def _check_numbers(text: str) -> None:
    """Raises exact.TooCostly for powers, factorials and binomials with a large value or expansion."""
    if re.search(r"\d{100}", text):
        raise TooCostly("a long number")
    expansion = 1.0
    for match in re.finditer(r"(\S)\s*\^\s*(\{|\d+)", text):
        exponent = _group(text, match.start(2)) if match[2] == "{" else match[2]
        if _size(exponent) > _MAX_EXPONENT or exponent.count("^") > 1:
            raise TooCostly("a large power")
        if match[1] in ")}":
            expansion *= max(1.0, _size(exponent))
    if expansion > _MAX_POLYNOMIAL:
        raise TooCostly("a large polynomial")
    for match in re.finditer(r"(\d+)\s*!|\\binom\s*(?=\{)", text):
        if _size(match[1] or _group(text, match.end())) > _MAX_EXPONENT:
            raise TooCostly("a large factorial or binomial")
    if re.search(r"[)}]\s*!", text) and not re.search(r"(?<!\\)\b[a-z]\b", text):
        raise TooCostly("a factorial of a computed number")


def _group(text: str, start: int) -> str:
    return text[start + 1 : closing(text, start)]


def _size(text: str) -> int:
    """The absolute value of a number, rounded up; 0 for other text."""
    try:
        return math.ceil(abs(evaluate(text.strip())))
    except NotRational:
        return 0


def same(gold: str, answer: str) -> bool:
    """Whether two tidied expressions, or two equations, are equal. Raises Unparsable, TooCostly."""
    from math_verify import verify

    is_real = not re.search(r"(?<![A-Za-z\\])i(?![A-Za-z])", f"{gold} {answer}")
    sides = [equation_sides(text) for text in (gold, answer)]
    for text in sides[0] + sides[1]:
        check(text)
    (wanted, *wanted_right), (given, *given_right) = (
        [_parse(side, is_real) for side in pair] for pair in sides
    )
    if wanted_right and given_right:
        return _proportional(wanted - wanted_right[0], given - given_right[0])
    if not wanted.free_symbols | given.free_symbols and not (wanted.is_zero or given.is_zero):
        return _same_constant(wanted, given)
    # Decimals were parsed as fractions, so nothing is rounded; the precision keeps tiny numbers apart.
    return bool(verify(wanted, given, numeric_precision=100, timeout_seconds=None, raise_on_error=True))


def _parse(text: str, is_real: bool) -> Expr:
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from sympy import I

    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(\d*)\.(\d+)", lambda m: rf"\frac{{{m[1]}{m[2]}}}{{1{'0' * len(m[2])}}}", text)
    text = _BRACED_ARGUMENT.sub(r"\1(\2)", text)  # with braces the grammar extends the argument too far
    try:
        parsed = latex2sympy(
            text, is_real=is_real, conversion_config=ConversionConfig(lowercase_symbols=False)
        )
    except MemoryError:
        raise
    except Exception as error:  # the parser raises bare exceptions
        raise Unparsable(text) from error
    if is_real:
        return parsed
    return parsed.subs({symbol: I for symbol in parsed.free_symbols if symbol.name == "i"})


def _same_constant(left: Expr, right: Expr) -> bool:
    """Whether two constants agree to 60 digits; sympy cannot prove every such equality, and is slow at it."""
    values = [side.evalf(80) for side in (left, right)]
    if not all(value.is_number and value.is_finite for value in values):
        return False
    return bool(abs(values[0] - values[1]) <= max(map(abs, values)) / 10**60)


def _proportional(left: Expr, right: Expr) -> bool:
    """Whether the equations `left = 0` and `right = 0` differ by a constant factor only."""
    from sympy import simplify

    ratio = simplify(left / right)
    return bool(ratio.is_number and ratio.is_finite and not ratio.is_zero)
