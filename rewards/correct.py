"""1 for a correct answer, 0 for any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class Correct:
    """Whether the extracted answer states the gold value (docs/grading.md)."""

    weight: float = 1.0
    baseline: float = 0.0

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        return [float(rollout.verdict.correct) for rollout in rollouts]
