"""`length=efficient`: a right answer costs more the longer it is beside the group's other right answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import ClassVar

from rewards.length.base import require_range
from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class Efficient:
    """c (1 - alpha sigmoid((n - mean) / sd)), mean and sd over the finished right answers of the group.

    A completion that the budget cut earns 0, right or not. Where sd is 0 the sigmoid is 1/2. "Training Language Models
    to Reason Efficiently" (arXiv:2502.04463). Its code (reward_server/math_server.py) takes the population's standard
    deviation, as here, and adds 1e-7 to it; it counts lengths without special tokens, here the stop token counts.
    """

    alpha: float = 0.1
    name: str = "efficient"

    needs_groups: ClassVar[bool] = True
    needs_grading: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_range("alpha", self.alpha, 0, 1, 0.1)

    def __call__(self, group: Sequence[Rollout]) -> list[float]:
        right = [r.length for r in group if r.verdict.correct and not r.truncated]
        mean, deviation = (fmean(right), pstdev(right)) if right else (0.0, 0.0)

        def change(rollout: Rollout) -> float:
            if not rollout.verdict.correct:
                return 0.0
            if rollout.truncated:
                return -1.0
            z = (rollout.length - mean) / deviation if deviation else 0.0
            return -self.alpha / (1 + math.exp(-z))

        return [change(rollout) for rollout in group]
