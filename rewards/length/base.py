"""What a length rule is: the change that a completion's length makes to its reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from rl.errors import UserError
from rl.rollouts import Rollout


class LengthRule(Protocol):
    """Changes the rewards of scored rollouts by their length; `RewardSet.score` adds what it returns.

    Called with the G rollouts of one problem, each with its verdict and the weighted sum of its rewards so far;
    returns G finite numbers. The published formulas are written for a reward c of 1 for a right answer and 0
    otherwise; a rule returns formula - c, so it composes with any reward set.

    name: what it is called in messages and the model card. needs_groups: whether it compares the completions of a problem; it is not called
    for a single completion then. needs_grading: whether it reads `verdict.correct`. A rule may have
    `instruction(problem)`: a sentence that the problem's prompt ends with.
    """

    name: str
    needs_groups: ClassVar[bool]
    needs_grading: ClassVar[bool]

    def __call__(self, group: Sequence[Rollout]) -> list[float]: ...


def require_range(key: str, value: float, low: float, high: float, example: Any) -> None:
    """Raises UserError unless `value` is a number from `low` to `high`."""
    if not (math.isfinite(value) and low <= value <= high):
        raise UserError(
            f"length.{key}={value}: expected a number from {low:g} to {high:g}, e.g. length.{key}={example}"
        )
