"""`length=laser`: a bonus for right answers inside a target length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rewards.length.base import require_range
from rl.errors import UserError
from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class Laser:
    """c + bonus c 1[n <= target].

    max_tokens: the budget, tokens of a completion. target: tokens; None is half of max_tokens. LASER (arXiv:2505.15612),
    whose runs had budgets of 16,384 tokens and targets of 2,048, 4,096 and 8,192. Its code can also punish right answers
    beyond the target; its published runs do not.
    """

    max_tokens: int
    target: int | None = None
    bonus: float = 0.5
    name: str = "laser"

    needs_groups: ClassVar[bool] = False
    needs_grading: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_range("bonus", self.bonus, 0, 100, 0.5)
        if self.target is not None and self.target < 1:
            raise UserError(
                f"length.target={self.target}: expected a number of tokens, 1 or more, or null for half of max_tokens;"
                f" e.g. length.target={max(1, self.max_tokens // 2)}"
            )

    def __call__(self, group: Sequence[Rollout]) -> list[float]:
        target = self.target or max(1, self.max_tokens // 2)
        return [self.bonus * bool(r.verdict.correct and r.length <= target) for r in group]
