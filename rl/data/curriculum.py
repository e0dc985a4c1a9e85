"""`curriculum=difficulty`: easy problems first, where a problem's difficulty is the number of its gold solution's steps.

The share of the problems that may be drawn grows with the run by the square-root competence of Platanios et al. 2019
(arXiv:1903.09848, section 2.2), from FIRST_SHARE to all of them at the last step.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from rl.errors import UserError
from rl.progress import counted
from rl.rollouts import Problem

FIRST_SHARE = 0.1


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

        pool = max(batch_size, math.ceil(self.share(step) * len(self.order)))
        chosen = numpy.random.default_rng([seed, step]).choice(pool, batch_size, replace=False)
        return [self.order[i] for i in chosen]

    def share(self, step: int) -> float:
        """The share of the problems, easiest first, that step 0, 1, 2, ... is drawn from."""
        progress = min(1.0, step / max(1, self.total_steps - 1))
        return math.sqrt(FIRST_SHARE**2 + progress * (1 - FIRST_SHARE**2))
