"""Measuring at stated target lengths: every prompt states the same one, as `length.eval_targets` asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rewards.length.l1 import TARGET
from rewards.reward_set import RewardSet
from rl.evaluation.measures import Estimates, by_problem, measure
from rl.evaluation.statistics import Estimate, estimate
from rl.rollouts import Problem, Rollout


def stating(problems: Sequence[Problem], target: int) -> list[Problem]:
    """The problems with `target` in place of the target drawn for each."""
    return [replace(problem, extra={**problem.extra, TARGET: target}) for problem in problems]


def measure_at(target: int, rollouts: Sequence[Rollout], rewards: RewardSet) -> Estimates:
    """`accuracy` and `tokens`, as `measure` defines them, and `deviation`: the mean of |target - tokens|.

    rollouts: [P x n], ungraded; they are scored. No `accuracy` if no reward grades answers.
    """
    rewards.score(rollouts, watch=False)
    measured = measure(rollouts)
    known = {name: measured[name] for name in ("accuracy", "tokens") if name in measured}
    return known | {"deviation": deviation(target, rollouts)}


def deviation(target: int, rollouts: Sequence[Rollout]) -> Estimate:
    """The mean of |target - tokens|, with an interval over problems."""
    groups = by_problem(rollouts)
    sums = [float(sum(abs(target - rollout.length) for rollout in group)) for group in groups]
    return estimate(sums, [float(len(group)) for group in groups])
