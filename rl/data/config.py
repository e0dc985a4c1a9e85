"""The choices for a data set (the `data` node), checked before anything is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from rl.errors import UserError
from rl.rollouts import Message, Problem

_KANA_OR_KANJI = re.compile("[\u3041-\u30ff\u3400-\u9fff]")


@dataclass
class FewShot:
    """One worked example, shown to the model as an earlier turn of the conversation."""

    question: str
    answer: str


@dataclass
class SourceConfig:
    """The original of a translated row: it repairs a missing gold answer and reveals one that the translation changed.

    question, answer: columns of the same row that hold the original text.
    path: a file of original rows (columns named as the data set's own), aligned with the train rows; preferred to columns.
    id: the column that numbers the original row, unique over train and test together; null: rows are aligned by position.
    """

    question: str | None = None
    answer: str | None = None
    path: str | None = None
    id: str | None = None


@dataclass
class DataConfig:
    """A data set: where its rows are, which columns are read, how a question becomes a prompt.

    Rows come from `generator` (a function `(split, count, seed, language) -> list[Problem]`), else from
    `path` (JSONL, Parquet, a folder of `<split>.jsonl` or `<split>-*.parquet`, a saved `datasets` folder),
    else from the Hub's `id`. A set for evaluation has no `train_split`. `fraction` reads the first part of the train
    rows, `limit` keeps the first usable ones; the test split stays whole. `columns` are read into each problem's `extra`. Each key is explained in conf/data/shared/base.yaml.
    `instruction` is no choice of the data: a length rule states each problem's target length with it.
    """

    name: str
    id: str | None = None
    config: str | None = None
    revision: str | None = None
    path: str | None = None
    test_path: str | None = None
    train_split: str | None = "train"
    test_split: str | None = "test"
    generator: str | None = None
    train_size: int | None = None
    test_size: int | None = None
    rows: int | None = None
    question: str = "question"
    answer: str = "answer"
    columns: list[str] = field(default_factory=list)
    gold: Literal["marker", "boxed", "plain"] = "marker"
    where: dict[str, str] | None = None
    source: SourceConfig = field(default_factory=SourceConfig)
    language: Literal["en", "ja", "both"] = "both"
    suffix: dict[str, str] | None = None
    answer_region: Literal["after_thinking", "anywhere"] = "after_thinking"
    tolerance: float = 0.0
    system_prompt: str | None = None
    few_shot: list[FewShot] = field(default_factory=list)
    fraction: float = 1.0
    limit: int | None = None
    max_prompt_tokens: int | None = None
    shuffle: bool = True
    allow_leak: bool = False
    instruction: Callable[[Problem], str] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UserError(
                f"data.fraction={self.fraction}: expected a share in (0, 1], e.g. data.fraction=0.05"
            )
        if not 0 <= self.tolerance < 1:
            raise UserError(
                f"data.tolerance={self.tolerance}: expected a share of the gold number in [0, 1); e.g. data.tolerance=1e-5"
            )
        if self.train_split is None and self.test_split is None:
            raise UserError(
                "data.train_split, data.test_split: both are null; name one, e.g. data.test_split=test"
            )
        for key in ("train_size", "rows", "limit", "max_prompt_tokens"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise UserError(f"data.{key}={value}: expected an integer of 1 or more, or null for no limit")
        if self.test_size is not None and self.test_size < 0:
            raise UserError(f"data.test_size={self.test_size}: expected an integer of 0 or more")
        if self.generator and self.train_size is None:
            raise UserError(
                f"data.generator={self.generator}: needs the number of problems, e.g. data.train_size=1000"
            )
        for language in self.suffix or {}:
            if language not in ("en", "ja"):
                raise UserError(
                    f"data.suffix.{language}: expected a language, data.suffix.en or data.suffix.ja"
                )

    @property
    def first_split(self) -> str:
        """The train split; of a set for evaluation, its test split."""
        return str(self.train_split or self.test_split)

    def planned_rows(self, rows: int) -> int:
        """How many of `rows` train rows are read: the first `fraction` of them, rounded, at least one."""
        return max(1, round(rows * self.fraction)) if rows else 0

    def planned_problems(self, rows: int) -> int:
        """The most train problems that `rows` train rows can give."""
        planned = self.planned_rows(rows)
        return planned if self.limit is None else min(planned, self.limit)

    def language_of(self, question: str) -> str:
        """The configured language; with ``both``, ``ja`` for a question with kana or kanji, else ``en``."""
        if self.language != "both":
            return self.language
        return "ja" if _KANA_OR_KANJI.search(question) else "en"

    def messages(self, problem: Problem) -> list[Message]:
        """System prompt, worked examples, question with suffix and, with some length rules, the target length."""
        messages = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        for example in self.few_shot:
            asked = self._asked(example.question, self.language_of(example.question))
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": example.answer}]
        asked = self._asked(problem.question, problem.language)
        if self.instruction is not None:
            asked += self.instruction(problem)
        return [*messages, {"role": "user", "content": asked}]

    def _asked(self, question: str, language: str) -> str:
        return question + (self.suffix or {}).get(language, "")
