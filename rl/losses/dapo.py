"""DAPO: "An open-source LLM reinforcement learning system at scale" (arXiv:2503.14476) section 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.losses.groups import token_mean
from rl.losses.grpo import GRPO

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DAPO(GRPO):
    """GRPO with a wider upper clip (section 3.1) and a mean over the tokens of the batch (section 3.3, equation 12).

    Weight (R - mu) / (sigma sum T), with the sum over the batch: a long answer weighs as much as its tokens.
    The paper's other two parts are choices of the run: dynamic sampling, and the length reward `overlong`.
    """

    name: str = "dapo"
    clip_high: float = 0.28

    def divisors(self, lengths: Sequence[int], budget: int) -> list[float]:
        return token_mean(lengths)

    def metrics(self, log_ratio: Tensor, coefficients: Tensor) -> dict[str, float]:
        """`clipped/low`, `clipped/high`: shares of the tokens that the clip keeps from moving further down, or up."""
        ratio = log_ratio.exp()
        low = (ratio < 1 - self.clip_low) & (coefficients < 0)
        high = (ratio > 1 + self.clip_high) & (coefficients > 0)
        return {"clipped/low": low.float().mean().item(), "clipped/high": high.float().mean().item()}
