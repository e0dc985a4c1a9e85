"""1 for a completion that never repeats itself, near 0 for one that loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rl.errors import UserError
from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """The share of distinct n-grams among all n-grams of tokens (distinct-n, arXiv:1510.03055); 1 below n tokens.

    ngram: n, in tokens. With `baseline=1` the reward is a penalty that is 0 without repetition.
    """

    ngram: int = 8
    weight: float = 1.0
    baseline: float = 1.0

    needs_grading: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.ngram < 1:
            raise UserError(
                f"rewards.repetition.ngram={self.ngram}: expected 1 or more; e.g. rewards.repetition.ngram=8"
            )

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        return [self._distinct(rollout.completion.tokens) for rollout in rollouts]

    def _distinct(self, tokens: list[int]) -> float:
        ngrams = [tuple(tokens[i : i + self.ngram]) for i in range(len(tokens) - self.ngram + 1)]
        return len(set(ngrams)) / len(ngrams) if ngrams else 1.0
