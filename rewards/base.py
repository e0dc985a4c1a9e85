"""The contract of a reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rl.rollouts import Rollout


class Reward(Protocol):
    """Scores a batch of rollouts.

    A reward is called with the N rollouts of a batch, each already parsed and graded (`rollout.verdict`), and returns
    N numbers in [0, 1]. It adds `weight * (value - baseline)` to `rollout.reward`: with `baseline=1` it is a penalty
    that is 0 at its best. Metrics report the value before weighting.

    A reward that does not read `verdict.correct` may set `needs_grading = False`. If no reward of a set needs grading,
    answers are not compared with golds: `verdict.correct` is None, and metrics of correctness are absent.
    """

    weight: float
    baseline: float

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]: ...
