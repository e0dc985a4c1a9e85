"""`length=cosine`: short right answers earn most, short wrong ones lose most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rewards.length.base import require_range
from rl.errors import UserError
from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """From `right[0]` or `wrong[0]` at 0 tokens to `right[1]` or `wrong[1]` at max_tokens, along half a cosine.

    end + (start - end) (1 + cos(pi n / max_tokens)) / 2; beyond max_tokens (a wider budget in force) it stays at the
    end. `cut` is the value of a completion that the budget cut, right or wrong. "Demystifying Long Chain-of-Thought
    Reasoning in LLMs" (arXiv:2502.03373, appendix C.1); the values 1 to 0.5 and -1 to -0.5 are those of open-r1, which
    leaves the value of cut completions out. The authors' code gives it to any completion within a margin of the limit.
    """

    max_tokens: int
    right: tuple[float, float] = (1.0, 0.5)
    wrong: tuple[float, float] = (-1.0, -0.5)
    cut: float = -1.0
    name: str = "cosine"

    needs_groups: ClassVar[bool] = False
    needs_grading: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for key, pair in (("right", self.right), ("wrong", self.wrong)):
            for value in pair:
                require_range(key, value, -100, 100, "[1.0,0.5]" if key == "right" else "[-1.0,-0.5]")
        require_range("cut", self.cut, -100, 100, -1.0)
        if not self.right[0] >= self.right[1] >= self.cut:
            raise UserError(
                f"length.right={list(self.right)}, length.cut={self.cut}: expected falling values, so that a longer right"
                " answer never earns more; e.g. length.right=[1.0,0.5] length.cut=-1.0"
            )

    def __call__(self, group: Sequence[Rollout]) -> list[float]:
        return [self._value(rollout) - bool(rollout.verdict.correct) for rollout in group]

    def _value(self, rollout: Rollout) -> float:
        if rollout.truncated:
            return self.cut
        start, end = self.right if rollout.verdict.correct else self.wrong
        progress = min(1.0, rollout.length / self.max_tokens)
        return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
