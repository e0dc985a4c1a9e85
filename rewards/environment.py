"""The reward that the environment itself gives: a game's result, or a tool class's `get_reward()`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rl.errors import UserError
from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class EnvironmentReward:
    """`Rollout.earned`, 0 where the environment failed; a trajectory counts as correct when it earned 1 or more.

    Raises UserError for an environment that gives no reward of its own.
    """

    weight: float = 1.0
    baseline: float = 0.0
    needs_grading: ClassVar[bool] = False
    from_environment: ClassVar[bool] = True

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        if any(rollout.earned is None and rollout.ended != "error" for rollout in rollouts):
            raise UserError(
                "the environment gave no reward; return a number from get_reward() in your class, or type rewards=boxed"
                " to grade the last answer"
            )
        return [rollout.earned or 0.0 for rollout in rollouts]
