"""Data sets: rows become problems; unusable rows are rejected and counted.

`load` checks every row once and keeps only row numbers; a problem is read again when it is needed, so memory hardly
grows with the number of rows. Nothing here imports torch, and JSONL needs no `datasets` either.
"""

from __future__ import annotations

import functools
import itertools
import logging
from array import array
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, overload

from rl import progress
from rl.data.checks import LoadReport, SplitReport
from rl.data.config import DataConfig
from rl.data.curriculum import Curriculum
from rl.data.reading import RowReader, SourceRows
from rl.data.sources import Rows, open_local, open_rows
from rl.errors import UserError
from rl.rollouts import Message, Problem
from rl.schema import locate

log = logging.getLogger("tanka")

__all__ = ["DataConfig", "Peek", "ProblemSet", "Problems", "load", "peek"]


class Problems(Sequence[Problem]):
    """Problems read on access: `read(number)` for each of `numbers`."""

    def __init__(self, read: Callable[[int], Problem], numbers: Sequence[int]) -> None:
        self.read = read
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Problem: ...

    @overload
    def __getitem__(self, index: slice) -> Problems: ...

    def __getitem__(self, index: int | slice) -> Problem | Problems:
        if isinstance(index, slice):
            return Problems(self.read, self.numbers[index])
        return self.read(self.numbers[index])


@dataclass
class ProblemSet:
    """A loaded data set: train and test problems, how they are asked, and their order.

    evaluations: the sets of `eval_data` by name, without train problems.
    """

    config: DataConfig
    train: Problems
    test: Sequence[Problem]
    report: LoadReport
    curriculum: Curriculum | None = None
    evaluations: dict[str, ProblemSet] = field(default_factory=dict)

    def messages(self, problem: Problem) -> list[Message]:
        """The conversation that asks for an answer; see `DataConfig.messages`."""
        return self.config.messages(problem)

    def order(self, seed: int, epoch: int) -> Sequence[int]:
        """The indices of the train problems in the order of an epoch: a pure function of (seed, epoch)."""
        return _permutation(len(self.train), seed, epoch) if self.config.shuffle else range(len(self.train))

    def steps_per_epoch(self, batch_size: int, with_remainder: bool = False) -> int:
        """Full batches in an epoch. The remainder is dropped; each epoch's order drops other problems.

        A set smaller than one batch becomes one smaller batch, with a warning. with_remainder: it is a batch too.
        """
        size = len(self.train)
        if size < batch_size:
            log.warning(
                "%s has %d train problems: batches of %d, not %d", self.config.name, size, size, batch_size
            )
        return -(-size // batch_size) if with_remainder else max(1, size // batch_size)

    def batch(self, step: int, batch_size: int, seed: int) -> list[Problem]:
        """The P = `batch_size` problems of step 0, 1, 2, ...: a pure function of its arguments."""
        batch_size = min(batch_size, len(self.train))
        if self.curriculum:
            return [self.train[i] for i in self.curriculum.batch(step, batch_size, seed)]
        epoch, index = divmod(step, len(self.train) // batch_size)
        chosen = self.order(seed, epoch)[index * batch_size : (index + 1) * batch_size]
        return [self.train[i] for i in chosen]

    def fresh(self, step: int, count: int, seed: int, draw: int, taken: Collection[str]) -> list[Problem]:
        """`count` train problems whose id is not in `taken`, or as many as there are, for redraw 1, 2, ... of a step.

        A pure function of its arguments. step: counted from 0.
        """
        import numpy

        pool = self.curriculum.pool(step, 1) if self.curriculum else range(len(self.train))
        size = min(len(pool), count + len(taken))
        drawn = numpy.random.default_rng([seed, step, draw]).choice(len(pool), size, replace=False)
        problems = (self.train[pool[i]] for i in drawn)
        return list(itertools.islice((p for p in problems if p.id not in taken), count))

    def keep_short_prompts(self, prompt: Callable[[Problem], list[int]]) -> None:
        """Removes and counts the train problems whose prompt exceeds `data.max_prompt_tokens`; no limit: no change."""
        if limit := self.config.max_prompt_tokens:
            self.filter_by_prompt_length(lambda p: len(prompt(p)), limit)

    def filter_by_prompt_length(self, count_tokens: Callable[[Problem], int], limit: int) -> None:
        """Removes the train problems whose prompt has more than `limit` tokens; the test split is unchanged.

        Raises UserError when no train problem is left.
        """
        report, numbers = self.report.splits["train"], array("q")
        pairs = zip(self.train.numbers, self.train, strict=True)
        for number, problem in progress.counted(pairs, "counting prompt tokens", len(self.train), "problems"):
            tokens = count_tokens(problem)
            if tokens <= limit:
                numbers.append(number)
            else:
                report.reject("prompt_too_long", f"{problem.id}: {tokens} tokens")
        report.kept = len(numbers)
        if not numbers:
            raise UserError(
                f"data.max_prompt_tokens={limit}: every train prompt of {self.config.name} is longer;"
                " type a larger number"
            )
        self.train = Problems(self.train.read, numbers)


class Peek(NamedTuple):
    """A data set before it is loaded: its first usable problem and number of train rows, where known.

    note: what is still missing, e.g. a download; "" for nothing.
    """

    problem: Problem | None
    rows: int | None
    note: str


def load(config: DataConfig, seed: int, eval_data: Mapping[str, DataConfig] | None = None) -> ProblemSet:
    """Reads and checks the data set, and the test splits of `eval_data`; `seed` is for generated problems only.

    Raises UserError for a missing or broken file, when no train row is usable, and when train rows are also in a test
    split (same question, original question or original number), unless `allow_leak`.
    """
    tested: dict[Hashable, str] = {}
    evaluations = {}
    for name, each in (eval_data or {}).items():
        found: dict[Hashable, str] = {}
        evaluations[name] = load_test(each, seed, found)
        # Only the questions: numbers of original rows mean nothing in another data set.
        tested |= {key: f"{name} {twin}" for key, twin in found.items() if isinstance(key, int)}
    if config.generator:
        return replace(_generated_set(config, seed), evaluations=evaluations)
    report = LoadReport(config.name, {"train": SplitReport()})
    if config.train_split is None:
        return load_test(config, seed, tested)
    test = _read_test(config, report, tested)
    rows = open_rows(config, config.train_split)
    source = SourceRows(config, config.source.path) if config.source.path else None
    reader, numbers = RowReader(config, "train", rows, source), array("q")
    planned = config.planned_rows(len(rows))
    with checking(rows.label, planned, report.splits["train"]):
        for number, identities in reader.scan(report.splits["train"], planned, config.limit):
            numbers.append(number)
            if twin := next((tested[identity] for identity in identities if identity in tested), None):
                report.leaks[reader.problem_id(number)] = twin
    _require_usable(config, report, rows.label)
    return ProblemSet(config, Problems(reader, numbers), test, report, evaluations=evaluations)


def load_test(config: DataConfig, seed: int, tested: dict[Hashable, str] | None = None) -> ProblemSet:
    """The test problems of a data set, without its train problems.

    tested: gets an entry for each key by which a train row counts as one of them; see `RowReader.scan`.
    Raises UserError for a missing or broken file, and when there is no test problem.
    """
    report = LoadReport(config.name)
    if config.generator:
        test: Sequence[Problem] = _generate(config, "test", config.test_size or 0, seed)
        report.splits["test"] = SplitReport(read=len(test), kept=len(test))
    else:
        test = _read_test(config, report, {} if tested is None else tested)
    if not test:
        raise UserError(
            f"data={config.name}: has no test problems; name its test split, e.g. test_path=FILE.jsonl (docs/data.md)"
        )
    return ProblemSet(config, Problems(test.__getitem__, ()), test, report)


def _read_test(config: DataConfig, report: LoadReport, tested: dict[Hashable, str]) -> Sequence[Problem]:
    rows = open_test(config)
    if rows is None:
        return []
    reader, numbers = RowReader(config, "test", rows), array("q")
    report.splits["test"] = SplitReport()
    with checking(rows.label, len(rows), report.splits["test"]):
        for number, identities in reader.scan(report.splits["test"], len(rows), limit=None):
            numbers.append(number)
            tested.update(dict.fromkeys(identities, reader.problem_id(number)))
    return Problems(reader, numbers)


def peek(config: DataConfig) -> Peek:
    """A quick look for a plan: reads local rows up to the first usable one; never contacts the Hub.

    Raises UserError like `load`, for the rows that it reads.
    """
    if config.generator:
        return Peek(
            _generate(config, "train", 1, seed=0)[0], config.planned_problems(config.train_size or 0), ""
        )
    if config.id and not config.path:
        known = config.planned_problems(config.rows) if config.rows else None
        return Peek(None, known, f"needs the Hub: {config.id} (without network, type data.path=FILE.jsonl)")
    rows = open_rows(config, config.first_split)
    source = SourceRows(config, config.source.path) if config.source.path else None
    reader, report = (
        RowReader(config, "train", rows, source),
        LoadReport(config.name, {"train": SplitReport()}),
    )
    first = next(reader.scan(report.splits["train"], len(rows), limit=1), None)
    _require_usable(config, report, rows.label)
    return Peek(reader(first.number) if first else None, config.planned_problems(len(rows)), "")


def open_test(config: DataConfig) -> Rows | None:
    """The rows of the test split; None if the data set has none."""
    if config.test_path:
        return open_local(
            config, config.test_path, config.test_split or "test", "data.test_path", config.where or {}
        )
    if config.test_split is None:
        return None
    is_file = config.path is not None and Path(config.path).expanduser().is_file()
    # A single file holds the train rows, if there are any.
    return None if is_file and config.train_split else open_rows(config, config.test_split)


def checking(label: str, rows: int, report: SplitReport) -> AbstractContextManager[progress.Task]:
    """A task around checking a split's rows. label: their file, folder or Hub id."""
    return progress.task(f"checking {Path(label).name}", rows, "rows", lambda: report.read)


def _require_usable(config: DataConfig, report: LoadReport, label: str) -> None:
    """Raises UserError when there is nothing to train on, or when train rows leaked into the test split."""
    train = report.splits["train"]
    if not train.read:
        raise UserError(
            f"data={config.name}: {label} has no rows; expected {config.question} and {config.answer} in each"
        )
    if not train.kept:
        raise UserError(
            f"data={config.name}: {label} has no usable row ({train.summary()}); answers are read by"
            f" data.gold={config.gold} (marker: after ####, boxed: in the last \\boxed{{}}, plain: the bare value)"
        )
    if report.leaks and not config.allow_leak:
        leaked, twin = next(iter(report.leaks.items()))
        raise UserError(
            f"data={config.name}: {len(report.leaks):,} of {train.kept:,} train rows are in a test split too"
            f" (first: {leaked} equals {twin}); remove them, or type data.allow_leak=true"
        )


def _generated_set(config: DataConfig, seed: int) -> ProblemSet:
    train = _generate(config, "train", config.planned_problems(config.train_size or 0), seed)
    test = _generate(config, "test", config.test_size, seed) if config.test_size else []
    report = LoadReport(config.name)
    for split, problems in {"train": train, "test": test}.items():
        report.splits[split] = SplitReport(read=len(problems), kept=len(problems))
    return ProblemSet(config, Problems(train.__getitem__, range(len(train))), test, report)


def _generate(config: DataConfig, split: str, count: int, seed: int) -> list[Problem]:
    generate = locate(str(config.generator), "data.generator")
    return generate(split=split, count=count, seed=seed, language=config.language)


@functools.lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> array[int]:
    import numpy

    return array("q", numpy.random.default_rng([seed, epoch]).permutation(size).astype(numpy.int64).tobytes())
