"""Groups the completions of a problem by equal answers, as the grader compares them, for majority votes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rewards.grading.compare import MAX_CHARS
from rewards.grading.exact import TooCostly
from rewards.grading.grader import Grader, Verdict, compare_here
from rewards.grading.quantity import Quantity, read_quantity
from rewards.grading.text import tidy

RIGHT = 0


def votes_of(grader: Grader, problems: Sequence[Sequence[Verdict]]) -> list[list[int | None]]:
    """[P][n] votes for the verdicts [P][n]: RIGHT, one number for each wrong value, None without an answer.

    Two wrong answers get the same vote if the grader finds them equal, directly or through a third (50 % links 50 and
    0.5). If no completion is right, or all are, nothing is compared, because the votes cannot change who wins.
    """
    polls = [_Poll(verdicts) for verdicts in problems]
    undecided = [(poll, pair) for poll in polls for pair in poll.undecided()]
    outcomes = grader.compare([pair for _, pair in undecided])
    for (poll, pair), (reason, _) in zip(undecided, outcomes, strict=True):
        if reason == "correct":
            poll.join(*pair)
    return [poll.votes() for poll in polls]


class _Poll:
    """The answers to one problem, grouped by value (union-find)."""

    def __init__(self, verdicts: Sequence[Verdict]) -> None:
        self._verdicts = verdicts
        wrong = [v for v in verdicts if v.extracted is not None and not v.correct]
        self._parent = {v.extracted: v.extracted for v in wrong if v.extracted is not None}
        self._readable = list(
            dict.fromkeys(v.extracted for v in wrong if v.reason != "timeout" and v.extracted)
        )
        self._contested = any(v.correct for v in verdicts)

    def undecided(self) -> list[tuple[str, str]]:
        """Joins answers that this process can compare; returns the pairs that need a worker."""
        if not self._contested:
            return []
        values = {answer: _value(answer) for answer in self._readable}
        firsts: dict[Quantity, str] = {}
        for answer, value in values.items():
            if value is not None and firsts.setdefault(value, answer) != answer:
                self.join(answer, firsts[value])
        distinct = [a for a, value in values.items() if value is None or firsts[value] == a]
        pairs = []
        for one, other in itertools.combinations(distinct, 2):
            mine, theirs = values[one], values[other]
            if mine is not None and theirs is not None:
                if mine.equals(theirs):
                    self.join(one, other)
                continue
            outcomes = {pair: compare_here(*pair) for pair in ((one, other), (other, one))}
            if any(outcome and outcome[0] == "correct" for outcome in outcomes.values()):
                self.join(one, other)
            else:
                pairs += [pair for pair, outcome in outcomes.items() if outcome is None][:1]
        return pairs

    def join(self, one: str, other: str) -> None:
        self._parent[self._root(one)] = self._root(other)

    def _root(self, answer: str) -> str:
        while (parent := self._parent[answer]) != answer:
            answer = parent
        return answer

    def votes(self) -> list[int | None]:
        numbers: dict[str, int] = {}

        def vote(verdict: Verdict) -> int | None:
            if verdict.correct:
                return RIGHT
            if verdict.extracted is None:
                return None
            return numbers.setdefault(self._root(verdict.extracted), RIGHT + 1 + len(numbers))

        return [vote(verdict) for verdict in self._verdicts]


def _value(answer: str) -> Quantity | None:
    try:
        return read_quantity(tidy(answer)) if len(answer) <= MAX_CHARS else None
    except TooCostly:
        return None
