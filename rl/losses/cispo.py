"""CISPO: MiniMax-M1 (arXiv:2506.13585) section 3.1; its upper bound from ScaleRL (arXiv:2510.13786)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.losses.groups import GroupLoss, group_deviation, require_clip_high, token_mean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CISPO(GroupLoss):
    """Weight (R - mu) / (sigma sum T); objective sg[min(rho, 1 + clip_high)] log p: every token keeps a gradient.

    clip_high: the importance weight is at most 1 + clip_high. MiniMax-M1 gives no value; 4 makes ScaleRL's bound of 5.
    """

    name: str = "cispo"
    clip_high: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_clip_high(self.clip_high)

    def divisors(self, lengths: Sequence[int], budget: int) -> list[float]:
        return token_mean(lengths)

    def spread(self, rewards: Sequence[float]) -> float:
        return group_deviation(rewards)

    def objective(self, logprobs: Tensor, log_ratio: Tensor, coefficients: Tensor, mask: Tensor) -> Tensor:
        return coefficients * log_ratio.detach().exp().clamp(max=1 + self.clip_high) * logprobs
