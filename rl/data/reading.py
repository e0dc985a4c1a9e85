"""A row becomes a problem, or is rejected with a reason."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from rewards.grading.golds import GoldError, Layout, canonical_gold
from rl.data.checks import SplitReport, is_refusal, normalized
from rl.data.config import DataConfig
from rl.data.sources import Row, Rows, open_local
from rl.errors import UserError, nearest
from rl.rollouts import Problem

# Matches nearly every GSM8K answer, already canonical: halves the time to read a million rows.
_PLAIN_MARKER = re.compile("[^#＃]*#### (0|-?[1-9][0-9]{0,17})")


class RowError(Exception):
    """A row that is rejected; `reason` is the key it is counted under."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Usable(NamedTuple):
    """The number of a usable row, and the keys by which another row counts as the same problem."""

    number: int
    identities: list[Hashable]


class SourceRows:
    """The original rows of a translated data set, found by row number or by the column `config.source.id`."""

    def __init__(self, config: DataConfig, path: str) -> None:
        self._rows = open_local(config, path, config.first_split, "data.source.path")
        self._column = config.source.id
        self._numbers: dict[str, int] = {}
        if not len(self._rows):
            raise UserError(f"data.source.path={path}: has no rows; expected the original of each train row")
        names = (config.question, config.answer)
        if not any(name in self._rows[0] for name in names):
            raise UserError(
                f"data.source.path={path}: has no column {' or '.join(names)}; it has {', '.join(self._rows[0])}; use the"
                " column names of the translated rows"
            )
        if self._column:
            if self._column not in self._rows[0]:
                raise UserError(
                    f"data.source.id={self._column}: no such column in data.source.path={path}; it has"
                    f" {', '.join(self._rows[0])}"
                )
            self._numbers = {str(row.get(self._column)): number for number, row in enumerate(self._rows)}

    def original(self, row: Row, number: int) -> Row:
        """The original of a translated row; {} when there is none."""
        if self._column:
            number = self._numbers.get(str(row[self._column]), len(self._rows))
        return self._rows[number] if number < len(self._rows) else {}


class RowReader:
    """Reads the problems of one split; calling it with a row's number gives that row's problem."""

    def __init__(self, config: DataConfig, split: str, rows: Rows, source: SourceRows | None = None) -> None:
        self._config = config
        self._split = split
        self._rows = rows
        self._source = source

    def __call__(self, number: int) -> Problem:
        row = self._rows[number]
        question, answer, gold, _ = self._trusted(row, number)
        return Problem(
            id=self.problem_id(number),
            question=question,
            answer=gold,
            language=self._config.language_of(question),
            source=self._config.name,
            steps=_steps(answer) if self._config.gold == "marker" else 0,
            extra={column: row[column] for column in self._config.columns},
        )

    def problem_id(self, number: int) -> str:
        return f"{self._split}-{number}"

    def texts(self, number: int) -> tuple[str, str]:
        """The question and the whole answer field of a row, as they are in the data set."""
        row = self._rows[number]
        return (
            self._text(row, number, "question", self._config.question),
            self._text(row, number, "answer", self._config.answer),
        )

    def originals(self, number: int) -> tuple[str, str]:
        """The original question and answer of a translated row; "" where unknown."""
        row = self._rows[number]
        return self._original(row, number, "question"), self._original(row, number, "answer")

    def scan(self, report: SplitReport, read: int, limit: int | None) -> Iterator[Usable]:
        """Up to `limit` usable rows among the first `read`; every row read is counted in `report`.

        Raises UserError for a row without a configured column, or with a cell of the wrong type.
        """
        seen = set()
        for number, row in enumerate(itertools.islice(self._rows, read)):
            report.read += 1
            try:
                question, _, _, note = self._trusted(row, number)
                identities = self._identities(row, number, question)
                if identities[0] in seen:
                    raise RowError("duplicate")
            except RowError as error:
                report.reject(error.reason, self._example(row, number))
                continue
            seen.add(identities[0])
            if note:
                report.note(note, self._example(row, number))
            report.kept += 1
            yield Usable(number, identities)
            if report.kept == limit:
                return

    def _trusted(self, row: Row, number: int) -> tuple[str, str, str, str]:
        """The row's question, answer field, gold, and what is to be noted about the gold ("" for nothing)."""
        question = self._text(row, number, "question", self._config.question)
        answer = self._text(row, number, "answer", self._config.answer)
        for column in self._config.columns:
            self._require_column(row, number, "columns", column)
        if self._source and (numbering := self._config.source.id):
            self._require_column(row, number, "source.id", numbering)
        if not any(map(str.isalnum, question)):
            raise RowError("empty_question")
        if not _is_unicode(question):
            raise RowError("broken_text")
        if is_refusal(question) or is_refusal(answer):
            raise RowError("refusal")
        return question, answer, *self._gold(answer, self._original(row, number, "answer"))

    def _gold(self, answer: str, original: str) -> tuple[str, str]:
        layout = self._config.gold
        try:
            expected = _canonical(original, layout) if original else None
        except GoldError:
            expected = None
        try:
            gold = _canonical(answer, layout)
        except GoldError as error:
            if error.reason == "missing_marker" and expected is not None:
                return expected, "gold_from_source"
            raise RowError(error.reason) from None
        return gold, "" if expected in (None, gold) else "gold_differs_from_source"

    def _identities(self, row: Row, number: int, question: str) -> list[Hashable]:
        identities: list[Hashable] = [hash(normalized(question))]
        if original := self._original(row, number, "question"):
            identities.append(hash(normalized(original)))
        if (column := self._config.source.id) and column in row:
            identities.append((column, str(row[column])))
        return identities

    def _original(self, row: Row, number: int, part: str) -> str:
        """The original question or answer of a translated row; "" when unknown."""
        original = self._source.original(row, number) if self._source else {}
        value = original.get(getattr(self._config, part))
        if value in (None, "") and (column := getattr(self._config.source, part)):
            value = row.get(column)
        return "" if value is None else str(value)

    def _text(self, row: Row, number: int, part: str, column: str) -> str:
        """The row's question or answer as text; null becomes "", and a number in the answer column becomes text."""
        self._require_column(row, number, part, column)
        value: Any = row[column]
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if isinstance(value, float) and not math.isfinite(value):
            return ""  # what pandas writes for an empty cell
        if part == "answer" and isinstance(value, int | float) and not isinstance(value, bool):
            return format(Decimal(repr(value)), "f")
        raise UserError(
            f"data.{part}={column}: {self._at(number)} holds a {type(value).__name__}; expected text"
        )

    def _require_column(self, row: Row, number: int, key: str, column: str) -> None:
        if column not in row:
            close = (nearest(column, row) or ["COLUMN"])[0]
            given, instead = (f"[{column}]", f"[{close}]") if key == "columns" else (column, close)
            raise UserError(
                f"data.{key}={given}: no such column in {self._at(number)}; it has {', '.join(row)};"
                f" type data.{key}={instead}"
            )

    def _at(self, number: int) -> str:
        return f"{self._rows.label}, {self._rows.place(number)}"

    def _example(self, row: Row, number: int) -> str:
        question = " ".join(str(row.get(self._config.question) or "").split())
        shown = question if len(question) <= 60 else f"{question[:59]}…"
        return f"{self._rows.place(number)}: {shown or '(empty)'}"


def _canonical(answer: str, layout: Layout) -> str:
    if layout == "marker" and (plain := _PLAIN_MARKER.fullmatch(answer)):
        return plain[1]
    return canonical_gold(answer, layout)


def _steps(solution: str) -> int:
    """Steps of a GSM8K solution: one per line, before the #### line."""
    lines = solution.replace("＃", "#").partition("####")[0].splitlines()
    return sum(map(bool, map(str.strip, lines)))


def _is_unicode(text: str) -> bool:
    """False for lone surrogates: JSON can contain them, tokenizers reject them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
