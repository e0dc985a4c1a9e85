"""The exact value of a rational expression of integers, decimals, fractions, roots and powers; never a float."""

from __future__ import annotations

import math
import re
from fractions import Fraction

MAX_BITS = 40_000  # about the size of 3500!; larger results are rejected before they are computed
MAX_DEPTH = 40

_TOKEN = re.compile(
    r"""\s*(?:
    # 3\frac{1}{2} and 3 1/2 are mixed numbers, unless a power or factorial follows
    (?P<mixed> \d[\d,]* (?: \s*\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\} | \s+\d+\s*/\s*\d+(?!\d) ) (?!\s*[\^!]) )
    | (?P<repeating> \d*\.\d*\\overline\{\d+\} )
    # thousands in groups of three after commas or blanks, decimals, an exponent as in 1.2e3
    | (?P<number> (?: [1-9]\d{0,2}(?:,\d{3})+(?![\d,]) | [1-9]\d{0,2}(?:[ ]\d{3})+(?![\d/]) | \d+ )
        (?:\.\d*)? (?:[eE][+-]?\d{1,4}(?!\d))? | \.\d+ )
    | (?P<operator> \\frac(?![A-Za-z]) | \\sqrt(?![A-Za-z]) | \*\* | [-+*/^!(){}\[\]] )
    )""",
    re.VERBOSE | re.ASCII,
)
_DIGITS = r"\d[\d,]*(?:\.\d*)?"
_FRACTION = r"(?:\d+\s*/\s*\d+|\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})"
_LITERAL = re.compile(
    rf"[+-]?\s*(?:\d[\d, ]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|\d*\.\d*\\overline\{{\d+\}}|(?:\d[\d,]*\s*)?{_FRACTION})",
    re.ASCII,
)
# Ranges and dates: 18-20, 1/2 - 3/4, 2024-05-01, 2024/05/01, 05/01. A fraction has one slash and no leading 0.
_SPAN = re.compile(
    rf"-?{_DIGITS}(?:/\d+)?(?:\s*-\s*-?{_DIGITS}(?:/\d+)?)+|\d+(?:\s*/\s*\d+){{2,}}|0\d+/\d+|\d+/0\d+",
    re.ASCII,
)
_PLAIN = re.compile(r"[+-]?\d{1,300}(?:\.\d{1,300})?", re.ASCII)


class NotRational(ValueError):
    """The text is not a rational expression that this module can read."""


class TooCostly(ValueError):
    """The text is well formed, but computing its value would take too long."""


def evaluate(text: str) -> Fraction:
    """The exact value of `text`, which `text.tidy` has tidied.

    Raises NotRational unless it is one rational value, TooCostly for power towers, large factorials and the like.
    """
    return Fraction(text) if _PLAIN.fullmatch(text) else _Parser(text).value()


def is_literal(text: str) -> bool:
    """Whether this is a plain number, fraction or mixed number rather than a calculation."""
    return bool(_LITERAL.fullmatch(text))


def is_span(text: str) -> bool:
    """Whether this is a range or a date, which `evaluate` would take for a difference or a quotient."""
    return bool(_SPAN.fullmatch(text))


class _Parser:
    """Recursive descent with the usual operator precedence; the tokenizer already turns numbers into Fractions."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str | Fraction] = []
        self.position = 0
        self.depth = 0
        end = 0
        while end < len(text):
            match = _TOKEN.match(text, end)
            if match is None:
                raise NotRational(text)
            token = match[0].strip()
            self.tokens.append(
                token if match.lastgroup == "operator" else _READERS[match.lastgroup or ""](token)
            )
            end = match.end()

    def value(self) -> Fraction:
        value = self.sum()
        if self.position < len(self.tokens):
            raise NotRational("something after the value")
        return value

    def peek(self) -> str | Fraction:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.peek()
        if not isinstance(token, str) or token not in wanted:
            raise NotRational(f"no {' or '.join(wanted)}")
        self.position += 1
        return token

    def sum(self) -> Fraction:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotRational("nested too deeply")
        value = self.product()
        while self.peek() in ("+", "-"):
            value = value + self.product() if self.take("+", "-") == "+" else value - self.product()
            _check_size(value)
        self.depth -= 1
        return value

    def product(self) -> Fraction:
        value = self.signed()
        while self.peek() in ("*", "/", "(", "{", "\\frac", "\\sqrt"):
            operator = self.take("*", "/") if self.peek() in ("*", "/") else "*"  # juxtaposition
            factor = self.signed()
            value = value * factor if operator == "*" else _divide(value, factor)
            _check_size(value)
        return value

    def signed(self) -> Fraction:
        sign = 1
        while self.peek() in ("+", "-"):
            sign = -sign if self.take("+", "-") == "-" else sign
        return sign * self.power()

    def power(self) -> Fraction:
        base = self.atom()
        while self.peek() == "!":
            self.take("!")
            base = _factorial(base)
        if self.peek() not in ("^", "**"):
            return base
        self.take("^", "**")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotRational("nested too deeply")
        exponent = self.signed()
        self.depth -= 1
        return _power(base, exponent)

    def atom(self) -> Fraction:
        token = self.peek()
        if isinstance(token, Fraction):
            self.position += 1
            return token
        self.take("(", "{", "\\frac", "\\sqrt")
        if token == "\\frac":
            return _divide(self.group(), self.group())
        if token == "\\sqrt":
            index = Fraction(2)
            if self.peek() == "[":
                self.take("[")
                index = self.sum()
                self.take("]")
            return _root(self.group(), index)
        value = self.sum()
        self.take(")" if token == "(" else "}")
        return value

    def group(self) -> Fraction:
        self.take("{")
        value = self.sum()
        self.take("}")
        return value


def _mixed(token: str) -> Fraction:
    whole, numerator, denominator = map(Fraction, re.findall(r"\d+", token.replace(",", "")))
    if 0 < numerator < denominator:
        return whole + numerator / denominator
    if "\\" in token:  # an improper fraction is a factor
        return whole * _divide(numerator, denominator)
    raise NotRational("two numbers side by side")


def _number(token: str) -> Fraction:
    digits = token.replace(",", "").replace(" ", "")
    mantissa, _, exponent = digits.lower().partition("e")
    if len(mantissa) > 1000:
        raise TooCostly("a number of more than 1,000 digits")
    value = Fraction(mantissa.rstrip(".") if mantissa.endswith(".") else mantissa)
    return value * Fraction(10) ** int(exponent) if exponent else value


def _repeating(token: str) -> Fraction:
    """0.1\\overline{6} is 1/6."""
    once, again = token.rstrip("}").split("\\overline{")
    places = len(once.partition(".")[2])
    return Fraction(f"0{once}0") + Fraction(int(again), (10 ** len(again) - 1) * 10**places)


_READERS = {"mixed": _mixed, "repeating": _repeating, "number": _number}


def _divide(value: Fraction, divisor: Fraction) -> Fraction:
    if divisor == 0:
        raise NotRational("division by zero")
    return value / divisor


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if base == 0 and exponent <= 0:
        raise NotRational("a power of zero")
    if exponent.denominator != 1:
        return _power(_root(base, Fraction(exponent.denominator)), Fraction(exponent.numerator))
    if base not in (0, 1, -1) and exceeds(base, int(MAX_BITS / max(Fraction(1), abs(exponent)))):
        raise TooCostly("a large power")
    if abs(exponent) > MAX_BITS:
        exponent = exponent % 2  # of 0, 1 or -1
    return base**exponent.numerator


def _root(value: Fraction, index: Fraction) -> Fraction:
    """The rational root. Raises NotRational if there is none."""
    if value < 0 or index.denominator != 1 or not 2 <= index <= 64:
        raise NotRational("a root without a rational value")
    numerator, denominator = (_integer_root(n, int(index)) for n in (value.numerator, value.denominator))
    return Fraction(numerator, denominator)


def _integer_root(value: int, index: int) -> int:
    if index == 2:
        root = math.isqrt(value)
    else:
        low, high = 0, 1 << (value.bit_length() // index + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**index <= value else (low, middle - 1)
        root = low
    if root**index != value:
        raise NotRational("an irrational root")
    return root


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or value < 0:
        raise NotRational("a factorial of something other than a whole number")
    if value > 3000:
        raise TooCostly("a large factorial")
    return Fraction(math.factorial(int(value)))


def exceeds(value: Fraction, bits: int) -> bool:
    """Whether the numerator or the denominator is longer than `bits`."""
    return max(value.numerator.bit_length(), value.denominator.bit_length()) > bits


def _check_size(value: Fraction) -> None:
    if exceeds(value, MAX_BITS):
        raise TooCostly("a large number")


def as_text(value: Fraction) -> str:
    """The shortest exact spelling: an integer, a finite decimal, or p/q."""
    if value.denominator == 1:
        return str(value.numerator)
    places = 0
    remainder = value.denominator
    while remainder % 10 == 0 or remainder % 2 == 0 or remainder % 5 == 0:
        remainder //= 10 if remainder % 10 == 0 else 2 if remainder % 2 == 0 else 5
        places += 1
    if remainder != 1:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:].rstrip('0')}"
