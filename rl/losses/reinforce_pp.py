"""REINFORCE++ with baseline: "Stabilizing Critic-Free Policy Optimization with Global Normalization" (arXiv:2501.03262)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rl.losses.groups import ClippedGroupLoss, token_mean

VARIANCE_EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlus(ClippedGroupLoss):
    """Weight (R - mu) / (s sum T): mu of the group, s the deviation of R - mu over the batch; PPO clip.

    s^2 = sum (R - mu)^2 / (N - 1) + 1e-8, over rollouts. The mean of R - mu over rollouts is 0, so whitening subtracts
    nothing and a uniform group keeps a weight of exactly 0.
    """

    name: str = "reinforce_pp"

    def divisors(self, lengths: Sequence[int], budget: int) -> list[float]:
        return token_mean(lengths)

    def advantages(self, rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
        """[N] rewards minus their group's mean, over the deviation of these differences in the batch."""
        centred = super().advantages(rewards, groups)
        variance = math.fsum(value**2 for value in centred) / max(len(centred) - 1, 1)
        deviation = math.sqrt(variance + VARIANCE_EPSILON)
        return [value / deviation for value in centred]

    def spread(self, rewards: Sequence[float]) -> float:
        return 1.0
