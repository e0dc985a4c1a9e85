"""Grading a batch: plain numbers at once in this process, everything else in the worker pool."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from rewards.grading.compare import Unparsable, equal, equation_sides
from rewards.grading.exact import TooCostly
from rewards.grading.extract import (
    Extraction,
    boxed_answer,
    cut_at_end_of_turn,
    tagged_answer,
)
from rewards.grading.pool import Pool
from rewards.grading.symbolic import check
from rl.errors import UserError
from rl.rollouts import Parsed

AnswerFormat = Literal["boxed", "think_answer"]
AnswerRegion = Literal["after_thinking", "anywhere"]
Reason = Literal[
    "correct", "wrong", "no_box", "unclosed_box", "unparsable", "timeout", "error", "truncated", "ungraded"
]

# One case for each part of the grader that a broken environment takes away (a percent sign under another antlr).
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
_SELF_TEST_TRIES = 5  # on a machine so busy that a comparison of milliseconds outlives its limit


@dataclass(frozen=True)
class Sample:
    """One completion to grade against its gold."""

    parsed: Parsed
    gold: str


@dataclass(frozen=True)
class Verdict:
    """What one completion earned, and why.

    correct: None where no reward needs it, so that nothing was compared. format: the answer stands in the wanted
    format, right or wrong. extracted: the answer as the model wrote it.
    seconds: the time that the comparison took.
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
    """Grades completions by one policy (docs/grading.md), with the same verdict from any thread or process.

    answer_format: ``boxed`` takes the last ``\\boxed{}``, ``think_answer`` the one ``<answer>`` block.
    answer_region: where a box counts: ``after_thinking``, or ``anywhere`` in the completion.
    workers: processes for what is not a plain number; they start with the first such answer, or with `start`.
    """

    answer_format: AnswerFormat = "boxed"
    answer_region: AnswerRegion = "after_thinking"
    workers: int = 2
    _pool: Pool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._pool = Pool(self.workers)

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the first worker in the background; a batch that needs more starts them."""
        self._pool.start()

    def close(self) -> None:
        """Ends the workers."""
        self._pool.close()

    def grade(self, samples: Sequence[Sample]) -> list[Verdict]:
        """One verdict a sample, in order. Never raises on what a model wrote, and never takes 1 s for one sample."""
        found = [self._extract(sample.parsed) for sample in samples]
        answered = [(s.gold, e.answer) for s, e in zip(samples, found, strict=True) if e.answer is not None]
        outcomes = iter(self.compare(answered))
        return [
            _missing(sample, extraction)
            if extraction.answer is None
            else _graded(sample, extraction, *next(outcomes))
            for sample, extraction in zip(samples, found, strict=True)
        ]

    def extract(self, samples: Sequence[Sample]) -> list[Verdict]:
        """Verdicts on the format alone, in order: the answers are found and not compared."""
        found = [self._extract(sample.parsed) for sample in samples]
        return [
            Verdict(None, extraction.format, extraction.answer, sample.gold, "ungraded", 0.0)
            for sample, extraction in zip(samples, found, strict=True)
        ]

    def expect(self, samples: Sequence[Sample]) -> None:
        """Begins with what of the next `grade` takes a worker; returns at once."""
        found = ((sample.gold, self._extract(sample.parsed).answer) for sample in samples)
        pairs = [(gold, answer) for gold, answer in found if answer is not None]
        self._pool.expect([(gold, answer) for gold, answer in pairs if compare_here(gold, answer) is None])

    def compare(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[Reason, float]]:
        """(reason, seconds) for each (gold, answer): here as far as exact arithmetic goes, else by a worker."""
        here = [compare_here(gold, answer) for gold, answer in pairs]
        deferred = [pair for pair, outcome in zip(pairs, here, strict=True) if outcome is None]
        elsewhere = iter(self._pool.compare(deferred) if deferred else ())
        return [outcome or cast(tuple[Reason, float], next(elsewhere)) for outcome in here]

    def self_test(self) -> None:
        """Compares a handful of known answers. Raises UserError when this installation gets one wrong."""
        for _ in range(_SELF_TEST_TRIES):
            outcomes = self.compare([(gold, answer) for answer, gold, _ in _SELF_TEST])
            if all(reason != "timeout" for reason, _ in outcomes):
                break
        for (answer, gold, expected), (reason, _) in zip(_SELF_TEST, outcomes, strict=True):
            if (reason == "correct") is not expected:
                raise UserError(
                    f"the grader's self-test fails: {answer} against {gold} is {reason}; reinstall math-verify and the"
                    " antlr4-python3-runtime that it was built for"
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


def compare_here(gold: str, answer: str) -> tuple[Reason, float] | None:
    """The outcome where numbers and the shape of the answer decide it; None where a worker must."""
    start = time.perf_counter()
    reason: Reason
    try:
        reason = "correct" if equal(gold, answer, _defer) else "wrong"
    except _Deferred:
        return None
    except Unparsable:
        reason = "unparsable"
    except TooCostly:
        reason = "timeout"
    except Exception:  # a mistake of ours must cost one sample, not the run; it is counted as an error
        reason = "error"
    return reason, time.perf_counter() - start


def _defer(gold: str, answer: str) -> bool:
    """Refuses what is costly or unreadable before a worker sees it."""
    for side in equation_sides(answer):
        check(side)
    try:
        for side in equation_sides(gold):
            check(side)
    except Unparsable:
        return False  # a readable answer that is not the gold's text
    raise _Deferred
