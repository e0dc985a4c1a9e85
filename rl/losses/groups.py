"""What losses that compare the completions of one problem share: group baselines, the PPO clip, the KL penalty's weight."""

from __future__ import annotations

from abc import abstractmethod
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
class GroupLoss(PolicyLoss):
    """A token's coefficient is its rollout's advantage over the rollout's divisor.

    kl_beta: weight of the KL divergence to the reference policy (rl/losses/kl.py); 0 turns it off.
    """

    kl_beta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.kl_beta < float("inf"):
            raise UserError(f"loss.kl_beta={self.kl_beta}: expected 0 (off) or more; e.g. loss.kl_beta=0.04")

    @property
    def needs_reference(self) -> bool:  # type: ignore[override]
        return self.kl_beta > 0

    def weights(
        self, rewards: Sequence[float], groups: Sequence[int], lengths: Sequence[int], budget: int
    ) -> list[float]:
        """[N] advantage / divisor."""
        return [
            advantage / divisor
            for advantage, divisor in zip(
                self.advantages(rewards, groups), self.divisors(lengths, budget), strict=True
            )
        ]

    def kl_weights(self, lengths: Sequence[int], budget: int) -> list[float]:
        """[N] kl_beta / divisor: the KL penalty is averaged over tokens and rollouts as the objective is."""
        return [self.kl_beta / divisor for divisor in self.divisors(lengths, budget)]

    @abstractmethod
    def divisors(self, lengths: Sequence[int], budget: int) -> list[float]:
        """[N] what a rollout's advantage is divided by: the loss's mean over tokens and rollouts. Shapes as in `weights`."""

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

    @abstractmethod
    def spread(self, rewards: Sequence[float]) -> float:
        """What the centred rewards of a group [G] are divided by; 0: the group carries no signal."""


@dataclass(frozen=True, kw_only=True)
class ClippedGroupLoss(GroupLoss):
    """A group loss with PPO's clipped objective.

    clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high]; 1 and inf leave it as it is.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.clip_low <= 1:
            raise UserError(
                f"loss.clip_low={self.clip_low}: expected a number in (0, 1]; e.g. loss.clip_low=0.2"
            )
        require_clip_high(self.clip_high)

    def objective(self, logprobs: Tensor, log_ratio: Tensor, coefficients: Tensor, mask: Tensor) -> Tensor:
        return self.clipped(log_ratio.exp(), coefficients)

    def clipped(self, ratio: Tensor, coefficients: Tensor) -> Tensor:
        """min(coefficient * ratio, coefficient * clipped ratio), elementwise."""
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return (coefficients * ratio).minimum(coefficients * clipped)


def require_clip_high(clip_high: float) -> None:
    """Raises UserError unless the upper clip is positive."""
    if not clip_high > 0:
        raise UserError(f"loss.clip_high={clip_high}: expected a positive number; e.g. loss.clip_high=0.2")


def group_deviation(rewards: Sequence[float]) -> float:
    """The sample standard deviation (divisor G - 1) plus 1e-4, as TRL has it."""
    return stdev(rewards) + STD_EPSILON


def sequence_means(lengths: Sequence[int]) -> list[float]:
    """[N] N T_n: the mean over each rollout's tokens, then over the N rollouts."""
    return [len(lengths) * length for length in lengths]


def token_mean(lengths: Sequence[int]) -> list[float]:
    """[N] sum T: the mean over all tokens of the batch."""
    return [sum(lengths)] * len(lengths)
