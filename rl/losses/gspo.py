"""GSPO: "Group Sequence Policy Optimization" (arXiv:2507.18071) section 4.1; clip ranges from section 5.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.losses.grpo import GRPO

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class GSPO(GRPO):
    """GRPO with one ratio a sequence, exp(mean_t log rho), clipped as a whole: weight (R - mu) / (sigma N T_n)."""

    name: str = "gspo"
    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def objective(self, logprobs: Tensor, log_ratio: Tensor, coefficients: Tensor, mask: Tensor) -> Tensor:
        mean = log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
        return self.clipped(mean.exp(), coefficients)
