"""Dr.GRPO: "Understanding R1-Zero-like training" (arXiv:2503.20783) section 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl.losses.grpo import GRPO


@dataclass(frozen=True, kw_only=True)
class DrGRPO(GRPO):
    """GRPO without its two biases: no division by the spread, and the token budget as the constant divisor."""

    name: str = "dr_grpo"

    def weights(
        self, rewards: Sequence[float], groups: Sequence[int], lengths: Sequence[int], budget: int
    ) -> list[float]:
        """(R - mu) / (N budget)."""
        count = len(rewards)
        return [advantage / (count * budget) for advantage in self.advantages(rewards, groups)]

    def spread(self, rewards: Sequence[float]) -> float:
        return 1.0
