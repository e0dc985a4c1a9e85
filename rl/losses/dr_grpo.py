"""Dr.GRPO: "Understanding R1-Zero-like training" (arXiv:2503.20783) section 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl.losses.grpo import GRPO


@dataclass(frozen=True, kw_only=True)
class DrGRPO(GRPO):
    """GRPO without its two biases: weight (R - mu) / (N budget), so neither the spread nor the length divides."""

    name: str = "dr_grpo"
    scale_rewards: bool = False

    def divisors(self, lengths: Sequence[int], budget: int) -> list[float]:
        return [len(lengths) * budget] * len(lengths)
