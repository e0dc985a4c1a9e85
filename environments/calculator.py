"""A calculator: one tool, exact arithmetic."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from fractions import Fraction

from environments.tool_class import ToolConfig, ToolError

MOST_CHARACTERS = 200  # of an expression
MOST_BITS = 2000  # of a result's numerator and denominator
_DIGITS = 12  # shown of a number that has no short decimal form
_SIGNS = str.maketrans("×÷−", "*/-", ",=")
_EXPECTED = "expected numbers with + - * / // % ** and brackets"


class Calculator:
    """The tool class, in the contract that environments/tool_class.py describes."""

    def reset(self, **row: object) -> None:
        """Nothing to prepare."""

    def calculate(self, expression: str) -> str:
        """Calculates.

        Args:
            expression: Like 12 * (3 + 4).
        """
        if len(expression) > MOST_CHARACTERS:
            raise ToolError(f"error: more than {MOST_CHARACTERS} characters")
        text = expression.translate(_SIGNS).replace("^", "**")
        try:
            return shown(_value(ast.parse(text.strip(), mode="eval").body))
        except ZeroDivisionError:
            raise ToolError("error: division by zero") from None
        except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError):
            raise ToolError(f"error: {expression[:40]!r} cannot be calculated; {_EXPECTED}") from None


def shown(value: Fraction) -> str:
    """The exact decimal number where it is short, otherwise 12 significant digits."""
    if value.denominator == 1:
        return str(value.numerator)
    rest = value.denominator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    if rest == 1 and value.denominator < 10**_DIGITS:
        places = next(n for n in range(1, 64) if (value * 10**n).denominator == 1)
        whole, part = divmod(abs(value.numerator) * 10**places // value.denominator, 10**places)
        return f"{'-' if value < 0 else ''}{whole}.{part:0{places}d}"
    return f"{float(value):.{_DIGITS}g}"


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if not isinstance(node, ast.BinOp):
        raise ValueError(type(node).__name__)
    left, right = _value(node.left), _value(node.right)
    return _small(_combined(node.op, left, right))


def _combined(operator: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return Fraction(left // right)
        case ast.Mod():
            return left % right
        case ast.Pow() if right.denominator == 1 and _bits(left) * abs(right) <= MOST_BITS:
            return left ** int(right)
    raise ValueError(type(operator).__name__)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _small(value: Fraction) -> Fraction:
    if _bits(value) > MOST_BITS:
        raise OverflowError
    return value


@dataclass(frozen=True, kw_only=True)
class CalculatorConfig(ToolConfig):
    """The calculator ends by itself in an instant: no call needs a time limit."""

    @property
    def waits_for_calls(self) -> bool:
        return False

    def new_tools(self) -> Calculator:
        return Calculator()
