"""The token budget of each step: `budget=constant`, or a schedule that lowers it to `max_tokens` (`tighten`, `thinkprune`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from environments.base import EnvironmentConfig
from rl.errors import UserError


class BudgetSchedule(Protocol):
    """Derives each step's budget from the step before, so that metrics.jsonl is enough to resume."""

    def first(self, max_tokens: int) -> int:
        """The budget of step 1, the largest of the run."""

    def next(self, budget: int, truncated: float, max_tokens: int, done: int, total: int) -> int:
        """The next budget, after a step in which the share `truncated` of completions was cut at `budget`.

        done: steps trained so far. total: steps of the run.
        """


@dataclass(frozen=True, kw_only=True)
class Constant:
    """`max_tokens` at every step."""

    def first(self, max_tokens: int) -> int:
        return max_tokens

    def next(self, budget: int, truncated: float, max_tokens: int, done: int, total: int) -> int:
        return max_tokens


@dataclass(frozen=True, kw_only=True)
class Tighten:
    """Starts at `start` times `max_tokens`; each step that cuts at most `max_truncated` multiplies it by `factor`.

    The model first earns rewards at its usual length and is then pushed to be shorter, as in the length schedules of
    "Kimi k1.5" (arXiv:2501.12599, section 2.3.3), which phases in a length penalty, and "ThinkPrune"
    (arXiv:2504.01296), which lowers the limit in rounds.
    """

    start: float = 2.0
    max_truncated: float = 0.2
    factor: float = 0.9

    def __post_init__(self) -> None:
        if not 1 <= self.start < math.inf:
            raise UserError(
                f"budget.start={self.start}: expected a multiple of max_tokens, 1 or more; e.g. 2.0"
            )
        if not 0 <= self.max_truncated <= 1:
            raise UserError(
                f"budget.max_truncated={self.max_truncated}: expected a share of the completions in [0, 1]; e.g. 0.2"
            )
        if not 0 < self.factor < 1:
            raise UserError(f"budget.factor={self.factor}: expected a number in (0, 1); e.g. 0.9")

    def first(self, max_tokens: int) -> int:
        return round(self.start * max_tokens)

    def next(self, budget: int, truncated: float, max_tokens: int, done: int, total: int) -> int:
        return max(max_tokens, int(budget * self.factor)) if truncated <= self.max_truncated else budget


@dataclass(frozen=True, kw_only=True)
class ThinkPrune:
    """One budget after the other, each for an equal share of the run's steps.

    rounds: budgets in tokens, falling, the last one `max_tokens`; None: 2, 1.5 and 1 times max_tokens, the published
    4,000, 3,000 and 2,000 for 2,000. "ThinkPrune" (arXiv:2504.01296) runs its rounds one after another from the weights
    that the round before gave, and a completion that is cut earns 0; it does not publish when a round ends.
    """

    rounds: list[int] | None = None

    def __post_init__(self) -> None:
        rounds = self.rounds
        if rounds is not None and not (
            rounds and rounds == sorted(set(rounds), reverse=True) and rounds[-1] >= 1
        ):
            raise UserError(
                f"budget.rounds={rounds}: expected falling token budgets; e.g. budget.rounds=[4000,3000,2000]"
            )

    def budgets(self, max_tokens: int) -> list[int]:
        """The budget of each round. Raises UserError when the last one is not `max_tokens`."""
        if self.rounds is None:
            return [2 * max_tokens, round(1.5 * max_tokens), max_tokens]
        if self.rounds[-1] != max_tokens:
            raise UserError(
                f"budget.rounds={self.rounds}: the last round is {self.rounds[-1]} tokens, but max_tokens={max_tokens}, which"
                f" evaluations use; type max_tokens={self.rounds[-1]} too"
            )
        return self.rounds

    def first(self, max_tokens: int) -> int:
        return self.budgets(max_tokens)[0]

    def next(self, budget: int, truncated: float, max_tokens: int, done: int, total: int) -> int:
        budgets = self.budgets(max_tokens)
        return budgets[min(done * len(budgets) // total, len(budgets) - 1)]


@dataclass
class Budget:
    """The schedule of one run. tokens: the budget of the next step. done, total: steps trained, and of the run."""

    schedule: BudgetSchedule
    max_tokens: int
    tokens: int
    done: int
    total: int

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Updates the budget from the metrics of the step just finished."""
        self.done += 1
        self.tokens = self.schedule.next(
            self.tokens, metrics["frac_truncated"], self.max_tokens, self.done, self.total
        )


def budget_after(
    schedule: BudgetSchedule, max_tokens: int, rows: Sequence[Mapping[str, Any]], total: int
) -> Budget:
    """The budget after the steps in `rows` of metrics.jsonl; the schedule's first budget without rows.

    total: steps of the run.
    """
    if not rows:
        return Budget(schedule, max_tokens, schedule.first(max_tokens), 0, total)
    budget = Budget(schedule, max_tokens, int(rows[-1]["budget"]), rows[-1]["step"] - 1, total)
    budget.observe(rows[-1])
    return budget


def check_thinking_tokens(
    thinking_tokens: int | None, budgets: Mapping[str, Sequence[int]], environment: EnvironmentConfig
) -> None:
    """Raises UserError unless the reasoning's own budget is smaller than every budget; `budgets` has them by key.

    A budget that is not larger would cut the reasoning itself and leave nothing for an answer.
    """
    if thinking_tokens is None:
        return
    if thinking_tokens < 1:
        raise UserError(
            f"thinking_tokens={thinking_tokens}: expected a positive integer, or null; e.g. thinking_tokens=48"
        )
    if not environment.single_turn:
        raise UserError(
            f"thinking_tokens={thinking_tokens}: environment={environment.name} has several turns, and this budget is for one"
            " reasoning before one answer; type thinking_tokens=null, or environment=single_turn"
        )
    for key, values in budgets.items():
        if (smallest := min(values)) <= thinking_tokens:
            raise UserError(
                f"thinking_tokens={thinking_tokens}: expected fewer than {key}, so that tokens are left for the answer, and"
                f" {key} has {smallest}; type a smaller thinking_tokens, or {key} above {thinking_tokens}"
            )
