"""The most completion tokens that a run can sample: training steps and their redraws, evaluations, the check before step 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewards.length.l1 import evaluated_targets
from rl.blueprint import Blueprint

# The check before step 1: about the rollouts of one small step, at up to twice its budget.
CHECK_ROLLOUTS = 128
CHECK_COMPLETIONS = 8


@dataclass(frozen=True)
class Sampling:
    """`batches` batches of `problems` x `completions` rollouts, each of at most `max_tokens` completion tokens.

    limit: no further batch once so many tokens are sampled.
    """

    batches: int
    problems: int
    completions: int
    max_tokens: int
    limit: int | None = None

    @property
    def rollouts(self) -> int:
        """In one batch."""
        return self.problems * self.completions

    @property
    def tokens(self) -> int:
        """In all batches, if the budget cuts every completion."""
        most = self.batches * self.rollouts * self.max_tokens
        return most if self.limit is None else min(most, self.limit - 1 + self.rollouts * self.max_tokens)


@dataclass(frozen=True)
class Ceiling:
    """Everything that a run samples."""

    training: Sampling
    refill: Sampling
    evaluations: Sampling
    preflight: Sampling

    @property
    def tokens(self) -> int:
        parts = (self.training, self.refill, self.evaluations, self.preflight)
        return sum(part.tokens for part in parts)

    def lines(self) -> dict[str, str]:
        """What each part adds, for a table; only the parts that sample anything."""
        limit = self.training.limit
        times = {
            "training": f"{self.training.batches:,} steps x "
            if limit is None
            else f"to the step that reaches {limit:,} tokens, at most {self.training.batches:,} steps x ",
            "refill": f"{self.refill.batches:,} redraws x ",
            "evaluations": f"{self.evaluations.batches:,} x ",
            "preflight": "",
        }
        return {
            f"  {name}": f"{prefix}{part.rollouts:,} rollouts x {part.max_tokens:,} tokens = {part.tokens:,}"
            for name, prefix in times.items()
            if (part := getattr(self, name)).tokens
        }


def token_ceiling(
    blueprint: Blueprint, steps: int, problems: int, test_problems: Sequence[int | None]
) -> Ceiling:
    """The ceiling of a run of `steps` steps whose batches have `problems` problems.

    test_problems: of each set that it evaluates on; None: unknown, taken as enough for every evaluation.
    """
    budget = blueprint.budget.first(blueprint.max_tokens)
    most = blueprint.eval_problems
    tested = sum(most if count is None else min(most, count) for count in test_problems)
    targets = evaluated_targets(blueprint.rewards.length)
    checked, completions = check_size(blueprint)
    limit = blueprint.max_sampled_tokens
    return Ceiling(
        Sampling(steps, problems, blueprint.group_size, budget, limit),
        Sampling(steps * blueprint.refill, problems, blueprint.group_size, budget, limit),
        Sampling(
            evaluations(steps, blueprint.eval_every),
            tested * (1 + len(targets)),
            blueprint.eval_completions,
            blueprint.eval_budgets[-1],
        ),
        Sampling(int(blueprint.preflight != "off"), min(checked, problems), completions, 2 * budget),
    )


def evaluations(steps: int, every: int) -> int:
    """How often a run evaluates: before steps 1, 1 + every, 1 + 2 x every, ..., and after the last; every = 0: never."""
    return -(-steps // every) + 1 if every else 0


def check_size(blueprint: Blueprint) -> tuple[int, int]:
    """Problems, and completions of each, that the check before step 1 samples."""
    completions = min(blueprint.group_size, CHECK_COMPLETIONS)
    return min(blueprint.batch_size, CHECK_ROLLOUTS // completions), completions
