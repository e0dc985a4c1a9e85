"""`length=kimi`: the shortest completion of a group gains, the longest loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rewards.length.base import require_range
from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class Kimi:
    """Adds weight * lambda to a right answer and weight * min(0, lambda) to a wrong one.

    lambda = 0.5 - (n - min) / (max - min) over the lengths of the group; 0 where all are equal. Kimi k1.5
    (arXiv:2501.12599, section 2.3.3), which trains without it first and publishes no weight.
    """

    weight: float = 1.0
    name: str = "kimi"

    needs_groups: ClassVar[bool] = True
    needs_grading: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_range("weight", self.weight, 0, 100, 1.0)

    def __call__(self, group: Sequence[Rollout]) -> list[float]:
        lengths = [rollout.length for rollout in group]
        shortest, longest = min(lengths), max(lengths)
        if shortest == longest:
            return [0.0] * len(group)
        lambdas = [0.5 - (n - shortest) / (longest - shortest) for n in lengths]
        return [
            self.weight * (value if rollout.verdict.correct else min(0.0, value))
            for rollout, value in zip(group, lambdas, strict=True)
        ]
