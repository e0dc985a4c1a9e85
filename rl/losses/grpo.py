"""GRPO: DeepSeekMath (arXiv:2402.03300) section 4.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from rl.errors import UserError
from rl.losses.base import PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

STD_EPSILON = 1e-4


@dataclass(frozen=True, kw_only=True)
class GRPO(PolicyLoss):
    """Group-relative advantages scaled by the group's sample standard deviation, clipped, averaged by sequence.

    clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high]; 1 and inf leave it as it is.
    """

    name: str = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.clip_low <= 1:
            raise UserError(
                f"loss.clip_low={self.clip_low}: expected a number in (0, 1]; e.g. loss.clip_low=0.2"
            )
        if not self.clip_high > 0:
            raise UserError(
                f"loss.clip_high={self.clip_high}: expected a positive number; e.g. loss.clip_high=0.2"
            )

    def weights(
        self, rewards: Sequence[float], groups: Sequence[int], lengths: Sequence[int], budget: int
    ) -> list[float]:
        """(R - mu) / (sigma N T_n), with mu and sigma of the group."""
        count = len(rewards)
        return [
            advantage / (count * length)
            for advantage, length in zip(self.advantages(rewards, groups), lengths, strict=True)
        ]

    def advantages(self, rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
        """[N] rewards minus their group's mean, over the group's `spread`."""
        members: dict[int, list[float]] = {}
        for reward, group in zip(rewards, groups, strict=True):
            members.setdefault(group, []).append(reward)
        means = {group: fmean(values) for group, values in members.items()}
        # A uniform group's advantage is exactly 0: rounding in the mean must not become signal once divided by the spread.
        spreads = {
            group: 0.0 if len(set(values)) == 1 else self.spread(values) for group, values in members.items()
        }
        return [
            (reward - means[group]) / spreads[group] if spreads[group] else 0.0
            for reward, group in zip(rewards, groups, strict=True)
        ]

    def spread(self, rewards: Sequence[float]) -> float:
        """What a group's centred rewards are divided by."""
        return stdev(rewards) + STD_EPSILON

    def objective(self, logprobs: Tensor, log_ratio: Tensor, coefficients: Tensor, mask: Tensor) -> Tensor:
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return (coefficients * ratio).minimum(coefficients * clipped)
