"""`length=l1_exact`, `length=l1_max`: each problem has a target length, which its prompt states."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rewards.length.base import require_range
from rl.errors import UserError
from rl.rollouts import Problem, Rollout

TARGET = "length_target"  # in `problem.extra`: a target that replaces the drawn one


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The target of each problem: drawn uniformly from `target` by the run's seed and the problem's id.

    max_tokens: the budget, tokens of a completion. target: its smallest and largest value, tokens; None is a quarter of
    max_tokens to max_tokens. alpha: the cost of a token. eval_targets: targets, tokens, that evaluations also state in
    every prompt, one after another; None: no such evaluations.
    """

    max_tokens: int
    seed: int
    target: tuple[int, int] | None = None
    alpha: float = 3e-4
    eval_targets: list[int] | None = None

    sentences: ClassVar[dict[str, str]]  # what the prompt says, by language
    needs_groups: ClassVar[bool] = False
    needs_grading: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_range("alpha", self.alpha, 0, 100, 3e-4)
        if self.target is not None and not 1 <= self.target[0] <= self.target[1]:
            raise UserError(
                f"length.target=[{self.target[0]},{self.target[1]}]: expected the smallest and the largest target, tokens"
                f" from 1 up; e.g. length.target=[{max(1, self.max_tokens // 4)},{self.max_tokens}]"
            )

        if self.eval_targets is not None and not (self.eval_targets and min(self.eval_targets) >= 1):
            raise UserError(
                f"length.eval_targets={self.eval_targets}: expected targets in tokens from 1 up, or null for none; e.g."
                f" length.eval_targets=[{max(1, self.max_tokens // 2)},{self.max_tokens}]"
            )

    def target_of(self, problem: Problem) -> int:
        """The problem's target in tokens: the same at every step, in evaluations and after a resume.

        An evaluation at one target (`eval_targets`) puts it into `problem.extra`.
        """
        if TARGET in problem.extra:
            return problem.extra[TARGET]
        low, high = self.target or (max(1, self.max_tokens // 4), self.max_tokens)
        return random.Random(f"{self.seed}/length/{problem.id}").randint(low, high)

    def instruction(self, problem: Problem) -> str:
        """The sentence that states the target, in the problem's language."""
        return self.sentences[problem.language].format(self.target_of(problem))


def evaluated_targets(rule: object) -> list[int]:
    """The `eval_targets` of a length rule that states targets; [] for any other rule."""
    return list(rule.eval_targets or ()) if isinstance(rule, Targets) else []


@dataclass(frozen=True, kw_only=True)
class L1Exact(Targets):
    """c - alpha |target - n|, for right and wrong answers.

    L1 (arXiv:2503.04697, equation 1), with alpha 0.0003; its code divides by 3,000. Its targets are 100 to 4,000.
    """

    name: str = "l1_exact"

    sentences: ClassVar[dict[str, str]] = {
        "en": " Answer in about {} tokens, reasoning included.",
        "ja": "思考を含めて約{}トークンで答えなさい。",
    }

    def __call__(self, group: Sequence[Rollout]) -> list[float]:
        return [-self.alpha * abs(self.target_of(r.problem) - r.length) for r in group]


@dataclass(frozen=True, kw_only=True)
class L1Max(Targets):
    """c clip(alpha (target - n) + 0.5, 0, 1).

    L1 (arXiv:2503.04697, equation 2), with alpha 0.0003. Its code has an alpha of 0.001, and draws half of the targets
    for l1_exact instead.
    """

    name: str = "l1_max"

    sentences: ClassVar[dict[str, str]] = {
        "en": " Answer in at most {} tokens, reasoning included.",
        "ja": "思考を含めて{}トークン以内で答えなさい。",
    }

    def __call__(self, group: Sequence[Rollout]) -> list[float]:
        return [self._share(rollout) - 1 if rollout.verdict.correct else 0.0 for rollout in group]

    def _share(self, rollout: Rollout) -> float:
        return min(1.0, max(0.0, self.alpha * (self.target_of(rollout.problem) - rollout.length) + 0.5))
