"""`length=overlong`: no cost until shortly before the budget, then a linear one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rewards.overlong import share_left
from rl.errors import UserError
from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class OverlongPenalty:
    """R_length of DAPO (arXiv:2503.14476, equation 13): 0 up to max_tokens - cache_tokens, then linearly to -1.

    max_tokens: the budget, tokens of a completion. cache_tokens: tokens before it that cost; None is a fifth of
    max_tokens, as in the published run. The reward `overlong` (rewards/overlong.py) is the same with a weight.
    """

    max_tokens: int
    cache_tokens: int | None = None
    name: str = "overlong"

    needs_groups: ClassVar[bool] = False
    needs_grading: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.cache_tokens is not None and not 1 <= self.cache_tokens <= self.max_tokens:
            raise UserError(
                f"length.cache_tokens={self.cache_tokens}: expected 1 to max_tokens ({self.max_tokens}), or null for a fifth"
                f" of them; e.g. length.cache_tokens={max(1, self.max_tokens // 5)}"
            )

    def __call__(self, group: Sequence[Rollout]) -> list[float]:
        cache = self.cache_tokens or max(1, self.max_tokens // 5)
        return [share_left(rollout.length, self.max_tokens, cache) - 1 for rollout in group]
