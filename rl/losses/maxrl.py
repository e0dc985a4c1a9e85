"""MaxRL: "Maximum Likelihood Reinforcement Learning" (arXiv:2602.02710)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rl.losses.groups import ClippedGroupLoss, sequence_means


@dataclass(frozen=True, kw_only=True)
class MaxRL(ClippedGroupLoss):
    """Weight (R - mu) / (mu N T_n), 0 where mu <= 0; PPO clip.

    Dividing by the group's mean reward weighs a problem by one over its pass rate, as the gradient of log(pass rate) does.
    Made for rewards of 0 and 1; rewards below 0 can bring mu close to 0 and the weights far up.
    """

    name: str = "maxrl"

    def divisors(self, lengths: Sequence[int], budget: int) -> list[float]:
        return sequence_means(lengths)

    def spread(self, rewards: Sequence[float]) -> float:
        return max(fmean(rewards), 0.0)
