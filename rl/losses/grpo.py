"""GRPO: DeepSeekMath (arXiv:2402.03300) section 4.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl.losses.groups import ClippedGroupLoss, group_deviation, sequence_means


@dataclass(frozen=True, kw_only=True)
class GRPO(ClippedGroupLoss):
    """Weight (R - mu) / (sigma N T_n), with mu and sigma of the group; PPO clip.

    scale_rewards: divide by sigma, the group's sample standard deviation; false: (R - mu) / (N T_n).
    """

    name: str = "grpo"
    scale_rewards: bool = True

    def divisors(self, lengths: Sequence[int], budget: int) -> list[float]:
        return sequence_means(lengths)

    def spread(self, rewards: Sequence[float]) -> float:
        return group_deviation(rewards) if self.scale_rewards else 1.0
