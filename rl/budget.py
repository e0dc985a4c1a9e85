"""The token budget in force at each step: `budget=constant`, or `budget=tighten` from a wide one down to `max_tokens`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl.errors import UserError


class BudgetSchedule(Protocol):
    """Decides each step's budget from the step before: nothing but metrics.jsonl is needed to resume."""

    def first(self, max_tokens: int) -> int:
        """The budget of step 1; also the widest of the run."""

    def next(self, budget: int, truncated: float, max_tokens: int) -> int:
        """The budget after a step in which `budget` cut the share `truncated` of the completions."""


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

    The model first earns rewards with the answers that it gives anyway and is then asked for shorter ones, as in the
    length schedules of "Kimi k1.5" (arXiv:2501.12599, section 2.3.3) and "ThinkPrune" (arXiv:2504.01296), which
    lengthen a penalty and shorten a limit in rounds.
    """

    start: float = 2.0
    max_truncated: float = 0.2
    factor: float = 0.9

    def __post_init__(self) -> None:
        if not 1 <= self.start < math.inf:
            raise UserError(
                f"budget.start={self.start}: expected how many times max_tokens the first budget is, 1 or more; e.g. 2.0"
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
    """The schedule of one run and the `tokens` it allows at the step to come."""

    schedule: BudgetSchedule
    max_tokens: int
    tokens: int

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Takes note of how many completions the step just done had cut."""
        self.tokens = self.schedule.next(self.tokens, metrics["frac_truncated"], self.max_tokens)


def budget_after(schedule: BudgetSchedule, max_tokens: int, rows: Sequence[Mapping[str, Any]]) -> Budget:
    """The budget after the steps in `rows` of metrics.jsonl; the schedule's first one when there are none."""
    if not rows:
        return Budget(schedule, max_tokens, schedule.first(max_tokens))
    budget = Budget(schedule, max_tokens, int(rows[-1]["budget"]))
    budget.observe(rows[-1])
    return budget
