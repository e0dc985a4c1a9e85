"""Grades a batch: plain numbers in this process, everything else in the worker pool."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from rewards.grading.compare import Unparsable, close, equal, equation_sides
from rewards.grading.exact import TooCostly
from rewards.grading.extract import (
    Extraction,
    boxed_answer,
    cut_at_end_of_turn,
    tagged_answer,
)
from rewards.grading.pool import Pool
from rewards.grading.symbolic import check
from rl import progress
from rl.errors import UserError
from rl.rollouts import Parsed

AnswerFormat = Literal["boxed", "think_answer"]
AnswerRegion = Literal["after_thinking", "anywhere"]
Reason = Literal[
    "correct", "wrong", "no_box", "unclosed_box", "unparsable", "timeout", "error", "truncated", "ungraded"
]

# (answer, gold, equal): one case for each part that a broken installation loses, such as % under another antlr version.
_SELF_TEST = (
    ("50\\%", "50", True),
    ("１，２００円", "1200", True),
    ("2万", "2", False),
    ("9007199254740993", "9007199254740992", False),
    ("\\frac{\\sqrt{3}}{\\frac{1}{2}}", "2\\sqrt{3}", True),
    ("(x+1)^2", "x^2+2x+1", True),
    ("x^2+1", "x^2+2x+1", False),
    ("\\sqrt{12}", "2\\sqrt{2}", False),
)
_SELF_TEST_TRIES = 5  # on a busy machine even a short comparison may time out


@dataclass(frozen=True)
class Sample:
    """One completion to grade against its gold."""

    parsed: Parsed
    gold: str


@dataclass(frozen=True)
class Verdict:
    """The grade of one completion and its reason.

    correct: None if no reward needs grading, so nothing was compared. format: the answer has the required format,
    whether right or wrong. extracted: the answer as the model wrote it. seconds: duration of the comparison.
    """

    correct: bool | None
    format: bool
    extracted: str | None
    gold: str
    reason: Reason
    seconds: float


class _Deferred(Exception):
    """The comparison needs a worker."""


@dataclass
class Grader:
    """Grades completions as docs/grading.md says; verdicts are the same from any thread or process.

    answer_format: ``boxed`` takes the last ``\\boxed{}``, ``think_answer`` the one ``<answer>`` block.
    answer_region: where a box counts: ``after_thinking``, or ``anywhere`` in the completion.
    tolerance: how far a number may be from the gold number, as a share of it; 0: exact.
    workers: processes for answers that are not plain numbers; they start at the first such answer, or in `start`.
    """

    answer_format: AnswerFormat = "boxed"
    answer_region: AnswerRegion = "after_thinking"
    workers: int = 2
    tolerance: float = 0.0
    _pool: Pool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._pool = Pool(self.workers)

    def reading(self, answer_region: AnswerRegion, tolerance: float) -> Grader:
        """A grader with other settings that shares the workers of this one."""
        other = replace(self, answer_region=answer_region, tolerance=tolerance)
        other._pool = self._pool
        return other

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the first worker in the background; batches that need more workers start them later."""
        self._pool.start()

    def close(self) -> None:
        """Ends the workers."""
        self._pool.close()

    def grade(self, samples: Sequence[Sample]) -> list[Verdict]:
        """One verdict a sample, in order. No completion makes it raise or takes it 1 s or more."""
        found = [
            self._extract(sample.parsed)
            for sample in progress.counted(samples, "finding answers", len(samples), "completions")
        ]
        answered = [(s.gold, e.answer) for s, e in zip(samples, found, strict=True) if e.answer is not None]
        outcomes = iter(self.compare(answered))
        return [
            _missing(sample, extraction)
            if extraction.answer is None
            else _graded(sample, extraction, *next(outcomes))
            for sample, extraction in zip(samples, found, strict=True)
        ]

    def extract(self, samples: Sequence[Sample]) -> list[Verdict]:
        """Verdicts without `correct`, in order: answers are extracted but not compared."""
        found = [self._extract(sample.parsed) for sample in samples]
        return [
            Verdict(None, extraction.format, extraction.answer, sample.gold, "ungraded", 0.0)
            for sample, extraction in zip(samples, found, strict=True)
        ]

    def expect(self, samples: Sequence[Sample]) -> None:
        """Starts the comparisons of the next `grade` call that need a worker; returns at once."""
        found = ((sample.gold, self._extract(sample.parsed).answer) for sample in samples)
        pairs = [(gold, answer) for gold, answer in found if answer is not None]
        self._pool.expect(
            [(gold, answer) for gold, answer in pairs if compare_here(gold, answer, self.tolerance) is None]
        )

    def compare(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[Reason, float]]:
        """(reason, seconds) for each (gold, answer), in this process if exact arithmetic decides, else in a worker."""
        here = [
            compare_here(gold, answer, self.tolerance)
            for gold, answer in progress.counted(pairs, "comparing numbers", len(pairs), "answers")
        ]
        deferred = [pair for pair, outcome in zip(pairs, here, strict=True) if outcome is None]
        elsewhere = iter(self._pool.compare(deferred) if deferred else ())
        return [outcome or cast(tuple[Reason, float], next(elsewhere)) for outcome in here]

    def self_test(self) -> None:
        """Compares a few known answers. Raises UserError when this installation gets one wrong."""
        for _ in range(_SELF_TEST_TRIES):
            outcomes = self.compare([(gold, answer) for answer, gold, _ in _SELF_TEST])
            if all(reason != "timeout" for reason, _ in outcomes):
                break
        for (answer, gold, expected), (reason, _) in zip(_SELF_TEST, outcomes, strict=True):
            if (reason == "correct") is not expected:
                raise UserError(
                    f"the grader's self-test failed: {answer} against {gold} is {reason}; reinstall math-verify and the"
                    " version of antlr4-python3-runtime that it needs"
                )

    def _extract(self, parsed: Parsed) -> Extraction:
        if self.answer_format == "think_answer":
            return tagged_answer(parsed.raw, parsed.prefilled)
        text = parsed.text if self.answer_region == "after_thinking" else parsed.raw
        return boxed_answer(cut_at_end_of_turn(text))


def _missing(sample: Sample, extraction: Extraction) -> Verdict:
    reason = "truncated" if sample.parsed.ended == "length" else cast(Reason, extraction.missing)
    return Verdict(False, extraction.format, None, sample.gold, reason, 0.0)


def _graded(sample: Sample, extraction: Extraction, reason: Reason, seconds: float) -> Verdict:
    return Verdict(reason == "correct", extraction.format, extraction.answer, sample.gold, reason, seconds)


def compare_here(gold: str, answer: str, tolerance: float = 0.0) -> tuple[Reason, float] | None:
    """(reason, seconds) if numbers or the answer's form decide the comparison; None if it needs a worker."""
    start = time.perf_counter()
    reason: Reason
    try:
        same = equal(gold, answer, _defer) or (tolerance > 0 and close(gold, answer, tolerance))
        reason = "correct" if same else "wrong"
    except _Deferred:
        return None
    except Unparsable:
        reason = "unparsable"
    except TooCostly:
        reason = "timeout"
    except Exception:  # a bug in the grader costs one sample, not the run; the reason `error` counts it
        reason = "error"
    return reason, time.perf_counter() - start


def _defer(gold: str, answer: str) -> bool:
    """Rejects costly or unreadable expressions before they reach a worker."""
    for side in equation_sides(answer):
        check(side)
    try:
        for side in equation_sides(gold):
            check(side)
    except Unparsable:
        return False  # the gold cannot be read as mathematics, so only the same text equals it
    raise _Deferred
