"""`length=linear`: each token costs, the more so the more of the group is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from rewards.length.base import require_range
from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Subtracts weight * mean(c) * n / max n from right and wrong answers, before a loss centres the rewards.

    The linear length penalty of PrimeIntellect's prime-rl (algorithm `grpo`, `num_output_tokens_weight`). Its terms
    for input tokens and turns are equal for all completions of a one-turn problem, so centring removes them. Its code
    takes the mean of the rewards for mean(c): the same for rewards of 0 and 1.
    """

    weight: float = 0.25
    name: str = "linear"

    needs_groups: ClassVar[bool] = True
    needs_grading: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_range("weight", self.weight, 0, 100, 0.25)

    def __call__(self, group: Sequence[Rollout]) -> list[float]:
        lengths = [rollout.length for rollout in group]
        scale = self.weight * fmean(r.verdict.correct for r in group) / (max(lengths) or 1)
        return [-scale * n for n in lengths]
