"""1 for a completion of the form ``<think>...</think><answer>...</answer>``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class FormatThinkAnswer:
    """Whether each of the four tags appears exactly once, in order, with only white space outside of the blocks.

    The opening think tag may be the end of the prompt. An empty answer breaks the format.
    """

    weight: float = 1.0
    baseline: float = 0.0

    needs_grading: ClassVar[bool] = False
    answer_format: ClassVar[str] = "think_answer"

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        return [float(rollout.verdict.format) for rollout in rollouts]
