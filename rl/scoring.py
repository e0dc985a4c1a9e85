"""Rewards of a step's rollouts."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from rl.errors import NotFinite
from rl.rollouts import Rollout
from rl.step import Run

log = logging.getLogger("tanka")


def score(run: Run, rollouts: Sequence[Rollout], *, watch: bool = True) -> None:
    """Rewards the rollouts. If any reward is not finite, all become NaN, so the batch moves no weights.

    watch: count them as a training step's batch (see RewardSet.score).
    """
    try:
        run.blueprint.rewards.score(rollouts, watch=watch)
    except NotFinite as error:
        log.warning("%s", error)
        for rollout in rollouts:
            rollout.reward = math.nan
            rollout.rewards = dict.fromkeys(run.blueprint.rewards.names, math.nan)
