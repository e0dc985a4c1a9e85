"""The order of the train problems: `curriculum=difficulty` and `curriculum=pass_rate`.

`difficulty`: easy problems first, where a problem's difficulty is the number of its gold solution's steps. The share of
the problems that may be drawn grows with the run by the square-root competence of Platanios et al. 2019
(arXiv:1903.09848, section 2.2), from FIRST_SHARE to all of them at the last step.

`pass_rate`: each epoch goes from often solved to rarely solved problems, by the shares of right completions that were
measured before it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from rl.data.pass_rates import PassRates
from rl.errors import UserError
from rl.progress import counted
from rl.rollouts import Problem

FIRST_SHARE = 0.1


class Curriculum(Protocol):
    """An order of the train problems other than the shuffled one."""

    def batch(self, step: int, batch_size: int, seed: int) -> list[int]:
        """Indices of the `batch_size` problems of step 0, 1, 2, ...: the same whenever it is called."""

    def pool(self, step: int, batch_size: int) -> Sequence[int]:
        """Indices of the problems that may replace others in that step."""


class EasiestFirst:
    """P `problems` sorted by difficulty; batches are drawn from an easy part that grows over `total_steps`.

    Reads every problem once.
    """

    def __init__(self, problems: Sequence[Problem], total_steps: int, name: str) -> None:
        read = counted(problems, "sorting", len(problems), "problems")
        steps = array("l", (problem.steps for problem in read))
        if not any(steps):
            raise UserError(
                f"curriculum=difficulty: {name} has no solution steps to sort by; type curriculum=none, or use"
                " data whose answers are worked solutions (data.gold=marker)"
            )
        # A problem of unknown difficulty (0 steps) counts as hard.
        self.order = array("q", sorted(range(len(steps)), key=lambda i: steps[i] or math.inf))
        self.total_steps = total_steps

    def batch(self, step: int, batch_size: int, seed: int) -> list[int]:
        """Indices of the `batch_size` problems of step 0, 1, 2, ...: a pure function of the arguments."""
        import numpy

        pool = self.pool(step, batch_size)
        chosen = numpy.random.default_rng([seed, step]).choice(len(pool), batch_size, replace=False)
        return [pool[i] for i in chosen]

    def pool(self, step: int, batch_size: int) -> Sequence[int]:
        """The easy part that a step is drawn from."""
        return self.order[: max(batch_size, math.ceil(self.share(step) * len(self.order)))]

    def share(self, step: int) -> float:
        """The share of the problems, easiest first, that step 0, 1, 2, ... is drawn from."""
        progress = min(1.0, step / max(1, self.total_steps - 1))
        return math.sqrt(FIRST_SHARE**2 + progress * (1 - FIRST_SHARE**2))


class ByPassRate:
    """Epochs ordered by the pass rates measured before them, highest first.

    Problems that were always or never solved teach a group loss nothing: they come last, after those never measured.
    Equal rates keep the epoch's shuffled order. shuffled: an epoch's indices without a curriculum. lag: steps whose rates
    may be unknown when a batch is requested (`Sampler.max_lag`); their rates count one epoch later.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        shuffled: Callable[[int], Sequence[int]],
        rates: PassRates,
        lag: int = 0,
    ) -> None:
        self.ids = [problem.id for problem in problems]
        self.shuffled, self.rates, self.lag = shuffled, rates, lag
        self.orders: dict[int, list[int]] = {}

    def batch(self, step: int, batch_size: int, seed: int) -> list[int]:
        epoch, index = divmod(step, len(self.ids) // batch_size)
        if epoch not in self.orders:
            self.orders[epoch] = self.order(epoch, step - index)
            self.orders.pop(epoch - 2, None)
        return self.orders[epoch][index * batch_size : (index + 1) * batch_size]

    def order(self, epoch: int, first_step: int) -> list[int]:
        """The indices of an epoch whose first step is `first_step`, counted from 0."""
        known = self.rates.until(max(0, first_step - self.lag))
        return sorted(self.shuffled(epoch), key=lambda i: rank(known.get(self.ids[i])))

    def pool(self, step: int, batch_size: int) -> Sequence[int]:
        return range(len(self.ids))


def rank(rate: float | None) -> float:
    """Sorts pass rates: high to low inside (0, 1), then unknown ones, then 0, then 1."""
    if rate is None:
        return 0.0
    return 1.0 + rate if rate in (0, 1) else -rate
