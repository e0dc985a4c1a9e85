"""RLOO: "Back to Basics: Revisiting REINFORCE-Style Optimization" (arXiv:2402.14740) section 2.3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.losses.groups import GroupLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RLOO(GroupLoss):
    """REINFORCE with a leave-one-out baseline: weight G/(G-1) (R - mu) / N; objective rho, nothing clipped.

    R minus the mean of the G-1 other rewards is G/(G-1) (R - mu). Every token of a rollout weighs the same: the objective
    is a sum over tokens, the log-probability of the whole completion. On policy the gradient of rho is that of log p.
    """

    name: str = "rloo"

    def divisors(self, lengths: Sequence[int], budget: int) -> list[float]:
        return [len(lengths)] * len(lengths)

    def spread(self, rewards: Sequence[float]) -> float:
        return (len(rewards) - 1) / len(rewards)

    def objective(self, logprobs: Tensor, log_ratio: Tensor, coefficients: Tensor, mask: Tensor) -> Tensor:
        return coefficients * log_ratio.exp()
