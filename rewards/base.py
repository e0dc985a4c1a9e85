"""What a reward is, and what a reward set does with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rl.rollouts import Rollout


class Reward(Protocol):
    """Scores a batch of rollouts.

    A reward is called with the N rollouts of a batch, each already parsed and graded (`rollout.verdict`), and returns
    N numbers in [0, 1]. It contributes `weight * (value - baseline)` to `rollout.reward`: with `baseline=1` it is a
    penalty that is 0 when all is well. Metrics report the value before weighting.

    A reward that does not read `verdict.correct` may set `needs_grading = False`. Where no reward of a set needs it,
    answers are not compared with their golds: `verdict.correct` is None, and metrics of correctness are absent.
    """

    weight: float
    baseline: float

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]: ...
