"""The shape of a tidied answer: equations, lists, tuples, sets, unions, matrices, intervals and inequalities."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from rewards.grading.exact import NotRational, TooCostly, evaluate
from rewards.grading.text import WORD_MARK

NAME = re.compile(
    # a variable or a word: x_1, \theta, Area, f(x), P(A), \overline{AB}, 答え
    rf"(?:\\(?:overline|overrightarrow|vec|hat|bar)\s*\{{[^{{}}]*\}}|\\(?!frac|sqrt)[A-Za-z]++|{WORD_MARK}?[A-Za-z]++"
    r"|[ぁ-ゖァ-ヺー一-鿿々]++|[\s|])++(?:_(?:\{[^{}]*\}|\w))?(?:\s*\([^()=<>]*\))?'*\s*"
    r"|\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)\s*"  # (x, y)
)

_EQUALS = re.compile(r"(?<![<>!=])=(?!=)")
_APPROX = re.compile(r"\\approx(?![A-Za-z])")
_RELATION = re.compile(r"<=|>=|<|>")
# Before a collection: "x \\in", "(x, y) ="
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![A-Za-z])\s*|\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)\s*=\s*")
_CUP = re.compile(r"\\cup(?![A-Za-z])")
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])")
_CONNECTIVE = rf"{WORD_MARK}?(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|または|(?<=\d)と(?=[-\d])"
_SEPARATOR = re.compile(rf"[,;]\s*(?:{_CONNECTIVE})?|{_CONNECTIVE}")
# In a text with ", ", a comma directly before three digits is part of a number: 1,000, 2,000.
_LOOSE_SEPARATOR = re.compile(rf"(?:(?<!\d),|,(?!\d{{3}}(?!\d))|;)\s*(?:{_CONNECTIVE})?|{_CONNECTIVE}")
_MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix)\}(.*)\\end\{\1\}", re.DOTALL)
# The real line without some points: x \\ne 1, (-\\infty,\\infty) \\setminus \\{1, 2\\}
_PUNCTURED = re.compile(
    r"[A-Za-z]\s*\\ne(?![A-Za-z])(?P<point>.+)"
    r"|\(-\\infty,\s*\\infty\)\s*(?:\\(?:setminus|smallsetminus|backslash)(?![A-Za-z])|-)\s*\\\{(?P<points>.+)\\\}"
)
_BRACKET = re.compile(r"\\begin(?=\{)|\\end(?=\{)|\\\\|\\[{}]|[()\[\]{}]")
_OPENING = ("(", "[", "{", r"\{", r"\begin")
_INTERVALS = ("()", "[]", "[)", "(]")
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True)
class Collection:
    """Several values. kind: their brackets; "" for a bare list, ``cup`` for a union, ``matrix`` of ``row``s."""

    kind: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Interval:
    """The numbers between two ends. brackets: "[)" includes the lower end; name: the variable of an inequality."""

    brackets: str
    ends: tuple[str, str]
    name: str | None = None


def equation_sides(text: str) -> list[str]:
    """The sides of an equation chain; the whole text as one side if it is not an equation."""
    return _split(text, _EQUALS)


def approximation_sides(text: str) -> list[str]:
    """The parts between approximately signs."""
    return _split(text, _APPROX)


def is_relation(text: str) -> bool:
    """Whether the text contains an inequality sign."""
    return bool(_RELATION.search(text))


def is_system(text: str) -> bool:
    """Whether the text lists several equations: x = 1, y = 2."""
    return sum(bool(_EQUALS.search(part)) for part in _split(text, _separator(text))) > 1


def read_collection(text: str) -> Collection | None:
    """The values that the text lists; None for a single value, even in parentheses."""
    if match := _MATRIX.fullmatch(text):
        rows = [row.strip() for row in match[2].split(r"\\") if row.strip()]
        return Collection("vmatrix" if match[1][0] in "vV" else "matrix", tuple(f"{row} &" for row in rows))
    if text.endswith("&"):
        return Collection("row", tuple(cell.strip() for cell in text[:-1].split("&")))
    text = _MEMBER.sub("", text, count=1) if _MEMBER.match(text) else text
    if text[:1] in ("(", "[") and _is_bracketed(text) and _MATRIX.fullmatch(matrix := text[1:-1].strip()):
        return read_collection(matrix)
    if punctured := _PUNCTURED.fullmatch(text):
        return _punctured(punctured["point"] or punctured["points"])
    if len(parts := _split(text, _CUP)) > 1:
        return Collection("cup", tuple(parts))
    if len(parts := _split(text, _separator(text))) > 1:
        return Collection("", tuple(parts))
    if _PLUS_MINUS.search(text):
        return Collection("", (_PLUS_MINUS.sub("+", text), _PLUS_MINUS.sub("-", text)))
    if not _is_bracketed(text):
        return None
    start, end = (2 if text.startswith("\\") else 1), (-2 if text.endswith(r"\}") else -1)
    parts, kind = _split(text[start:end], _separator(text)), (text[:start] + text[end:]).replace("\\", "")
    return Collection(kind, tuple(parts)) if len(parts) > 1 or kind == "{}" else None


def _punctured(listed: str) -> Collection | None:
    """The intervals that remain of the real line without the listed points; None if the points cannot be ordered."""
    points = _split(listed.strip(), _separator(listed))
    try:
        points = sorted(points, key=evaluate) if len(points) > 1 else points
    except (NotRational, TooCostly):
        return None
    ends = [r"-\infty", *points, r"\infty"]
    return Collection("cup", tuple(f"({low},{high})" for low, high in itertools.pairwise(ends)))


def read_interval(text: str) -> Interval | None:
    """The interval given by a pair of brackets or by an inequality in one variable, or None."""
    sides, operators = _split(text, _RELATION), _RELATION.findall(text)
    if not operators:
        listed = read_collection(text)
        if listed is None or listed.kind not in _INTERVALS or len(listed.parts) != 2:
            return None
        return Interval(listed.kind, (listed.parts[0], listed.parts[1]))
    if len(sides) != len(operators) + 1:
        return None
    if operators[0].startswith(">"):
        sides, operators = sides[::-1], [_FLIPPED[operator] for operator in operators[::-1]]
    if len(sides) == 2:  # x < 3 and 3 < x have one end at infinity
        if NAME.fullmatch(sides[0]):
            sides, operators = [r"-\infty", *sides], ["<", *operators]
        else:
            sides, operators = [*sides, r"\infty"], [*operators, "<"]
    if (
        len(sides) != 3
        or not NAME.fullmatch(sides[1])
        or any(operator.startswith(">") for operator in operators)
    ):
        return None
    low, name, high = sides
    brackets = "(["[operators[0].endswith("=")] + ")]"[operators[1].endswith("=")]
    return Interval(brackets, (low, high), name)


def _is_bracketed(text: str) -> bool:
    """Whether one pair of brackets encloses the whole text."""
    if not text.startswith(("(", "[", r"\{")) or not text.endswith((")", "]", r"\}")):
        return False
    if text.startswith(r"\{") != text.endswith(r"\}"):
        return False
    depth = 0
    for match in _BRACKET.finditer(text):
        if match[0] != r"\\":
            depth += 1 if match[0] in _OPENING else -1
            if depth == 0:
                return match.end() == len(text)
    return False


def _separator(text: str) -> re.Pattern[str]:
    return _LOOSE_SEPARATOR if ", " in text or re.search(_CONNECTIVE, text) else _SEPARATOR


def _split(text: str, separator: re.Pattern[str]) -> list[str]:
    """The parts between the separators that are outside of all brackets."""
    if not separator.search(text):
        return [text]
    brackets = iter([*((m.start(), m[0]) for m in _BRACKET.finditer(text) if m[0] != r"\\"), (len(text), "")])
    place, token = next(brackets)
    parts, start, depth = [], 0, 0
    for match in separator.finditer(text):
        while place < match.start():
            depth += 1 if token in _OPENING else -1
            place, token = next(brackets)
        if depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    return [*parts, text[start:].strip()]
