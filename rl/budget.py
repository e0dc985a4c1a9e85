"""The token budget of each step: `budget=constant`, or `budget=tighten`, which shrinks it down to `max_tokens`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl.errors import UserError


class BudgetSchedule(Protocol):
    """Derives each step's budget from the step before, so that metrics.jsonl is enough to resume."""

    def first(self, max_tokens: int) -> int:
        """The budget of step 1, the largest of the run."""

    def next(self, budget: int, truncated: float, max_tokens: int) -> int:
        """The next budget, after a step in which the share `truncated` of completions was cut at `budget`."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """`max_tokens` at every step."""

    def first(self, max_tokens: int) -> int:
        return max_tokens

    def next(self, budget: int, truncated: float, max_tokens: int) -> int:
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

    def next(self, budget: int, truncated: float, max_tokens: int) -> int:
        return max(max_tokens, int(budget * self.factor)) if truncated <= self.max_truncated else budget


@dataclass
class Budget:
    """The schedule of one run. tokens: the budget of the next step."""

    schedule: BudgetSchedule
    max_tokens: int
    tokens: int

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Updates the budget from the metrics of the step just finished."""
        self.tokens = self.schedule.next(self.tokens, metrics["frac_truncated"], self.max_tokens)


def budget_after(schedule: BudgetSchedule, max_tokens: int, rows: Sequence[Mapping[str, Any]]) -> Budget:
    """The budget after the steps in `rows` of metrics.jsonl; the schedule's first budget without rows."""
    if not rows:
        return Budget(schedule, max_tokens, schedule.first(max_tokens))
    budget = Budget(schedule, max_tokens, int(rows[-1]["budget"]))
    budget.observe(rows[-1])
    return budget
