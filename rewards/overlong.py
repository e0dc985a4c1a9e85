"""DAPO's soft overlong punishment: full value within the budget, falling to 0 just before the completion is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rl.errors import UserError
from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class Overlong:
    """1 + R_length of DAPO (arXiv:2503.14476, section 3.4, equation 13).

    max_tokens: the budget, in tokens of a completion. cache_tokens: over this many tokens before the budget the value
    falls linearly from 1 to 0. With `baseline=1` the reward is the paper's penalty in [-1, 0].
    """

    max_tokens: int
    cache_tokens: int
    weight: float = 1.0
    baseline: float = 1.0

    needs_grading: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.cache_tokens <= self.max_tokens:
            raise UserError(
                f"rewards.overlong.cache_tokens={self.cache_tokens}: expected 1 to max_tokens ({self.max_tokens});"
                f" e.g. rewards.overlong.cache_tokens={max(1, self.max_tokens // 5)}"
            )

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        lengths = (rollout.length for rollout in rollouts)
        return [share_left(length, self.max_tokens, self.cache_tokens) for length in lengths]


def share_left(length: int, max_tokens: int, cache_tokens: int) -> float:
    """1 up to max_tokens - cache_tokens tokens, then linearly to 0 at max_tokens."""
    return min(1.0, max(0.0, (max_tokens - length) / cache_tokens))
