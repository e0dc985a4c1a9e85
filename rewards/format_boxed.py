"""1 for an answer that ends in a closed, filled box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class FormatBoxed:
    """Whether the last ``\\boxed{}`` of the graded text is closed and not empty; its content may be wrong."""

    weight: float = 1.0
    baseline: float = 0.0

    needs_grading: ClassVar[bool] = False
    answer_format: ClassVar[str] = "boxed"

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        return [float(rollout.verdict.format) for rollout in rollouts]
