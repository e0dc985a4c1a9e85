"""The learning signal of completions at a token budget, and their lengths: estimates over P problems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rl.blueprint import Blueprint
from rl.evaluation.measures import by_problem
from rl.evaluation.statistics import RESAMPLES, Estimate, estimate_share
from rl.rollouts import Rollout

ENOUGH = 0.1  # share of groups or batches with a signal that the lower end of the interval must reach


@dataclass(frozen=True)
class Baseline:
    """The rollouts that a loss compares rewards within: `size` completions of one problem (a group), or of a batch."""

    grouped: bool
    size: int

    def __str__(self) -> str:
        return f"{'groups' if self.grouped else 'batches'} of {self.size}"

    @property
    def label(self) -> str:
        """Its key in rl/report/words.py."""
        return "signal_of_groups" if self.grouped else "signal_of_batches"

    def signal(self, rollouts: Sequence[Rollout]) -> Estimate:
        """The share of groups, or batches, with different rewards: only these change weights.

        Groups: unbiased (`group_signal`). Batches: 1 - q**size, where q is the share of the most frequent reward.
        """
        groups = [[rollout.reward for rollout in group] for group in by_problem(rollouts)]
        if self.grouped:
            whole = [rewards for rewards in groups if len(rewards) >= self.size]
            return estimate_share([group_signal(rewards, self.size) for rewards in whole])
        ((common, _),) = Counter(reward for rewards in groups for reward in rewards).most_common(1)
        uniform = estimate_share([rewards.count(common) / len(rewards) for rewards in groups])
        return Estimate(*(1 - share**self.size for share in (uniform.value, uniform.high, uniform.low)))


def baseline_of(blueprint: Blueprint, completions: int) -> Baseline:
    """The run's baseline. Groups are limited to `completions`; smaller groups have a signal less often."""
    if blueprint.loss.needs_groups:
        return Baseline(grouped=True, size=min(completions, blueprint.group_size))
    return Baseline(grouped=False, size=blueprint.batch_size * blueprint.group_size)


def group_signal(rewards: Sequence[float], size: int) -> float:
    """The chance that `size` of a problem's completions, drawn without replacement, do not all have the same reward.

    A U-statistic: unbiased for a group of `size` fresh completions (Hoeffding 1948), as pass@k is.
    """
    uniform = sum(math.comb(count, size) for count in Counter(rewards).values())
    return 1 - uniform / math.comb(len(rewards), size)


def length_quantile(rollouts: Sequence[Rollout], share: float) -> Estimate:
    """The length in tokens that a share `share` of the completions does not exceed; inf if it lies among the cut ones.

    The interval resamples whole problems, as rl/evaluation/statistics.py does.
    """
    import numpy

    groups = by_problem(rollouts)
    lengths = [math.inf if r.truncated else r.length for group in groups for r in group]
    owners = numpy.repeat(numpy.arange(len(groups)), list(map(len, groups)))
    order = numpy.argsort(lengths, kind="stable")
    draws = numpy.random.default_rng(0).multinomial(
        len(groups), numpy.full(len(groups), 1 / len(groups)), RESAMPLES
    )
    # Each row: draws of each completion, shortest first, summed up; the first row is the sample itself.
    counts = numpy.vstack([numpy.ones(len(groups), int), draws])[:, owners[order]].cumsum(axis=1)
    value, *resampled = numpy.array(lengths)[order][(counts >= share * counts[:, -1:]).argmax(axis=1)]
    low, high = numpy.quantile(resampled, (0.025, 0.975), method="higher")
    return Estimate(float(value), float(low), float(high))
