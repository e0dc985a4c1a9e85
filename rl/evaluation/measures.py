"""Measuring policies at token budgets: sample once at the widest budget and cut the rollouts for smaller ones.

This is exact: each token depends only on the tokens before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from renderers.base import Renderer
from rewards.grading.votes import RIGHT
from rewards.reward_set import RewardSet
from rewards.thinking_language import script_share
from rl import progress
from rl.evaluation.statistics import (
    Estimate,
    estimate,
    estimate_change,
    estimate_share,
    majority_at_k,
    pass_at_k,
)
from rl.rollouts import Rollout, Turn, cut_at
from rl.thinking import forced_turn

Estimates = dict[str, Estimate]

ALL = "all"  # the part with every problem
CHANGE = "change"  # in place of a policy's name: trained minus base


def within(rollouts: Iterable[Rollout], budget: int, renderer: Renderer) -> list[Rollout]:
    """Fresh, ungraded rollouts as `max_tokens=budget` would have given them; `budget` is at most the one they had."""
    return [_within(rollout, budget, renderer) for rollout in rollouts]


def _within(rollout: Rollout, budget: int, renderer: Renderer) -> Rollout:
    turns: list[Turn] = []
    left, ended, earned = budget, rollout.ended, rollout.earned
    for turn in rollout.turns:
        if not left:
            break
        completion = renderer.cut(cut_at(turn.completion, left))
        if completion != turn.completion and turn.forced:
            turn = forced_turn(turns[-1], turn.prompt_tokens, completion, renderer)
        elif completion != turn.completion:
            turn = replace(turn, completion=completion, parsed=renderer.parse(completion))
        turns.append(turn)
        left -= len(completion.tokens)
    used_up = left == 0 and ended in ("turns", "context")
    if used_up or rollout.length > budget:
        ended = "budget"
        earned = None if earned is None else 0.0  # what an unfinished trajectory would have earned is unknown
    return Rollout(rollout.problem, rollout.group, turns, ended, rollout.counts, earned)


@dataclass(frozen=True)
class AtTarget:
    """Estimates of a policy over all problems, each of whose prompts states the same target length, in tokens."""

    policy: str
    target: int
    estimates: Estimates


@dataclass(frozen=True)
class Result:
    """Estimates of a policy at one budget on one part of the problems; for CHANGE, the effect of training."""

    policy: str
    budget: int
    part: str
    problems: int
    estimates: Estimates


def evaluate(
    sampled: Mapping[str, Sequence[Rollout]],
    budgets: Sequence[int],
    ks: Sequence[int],
    renderer: Renderer,
    rewards: RewardSet,
) -> list[Result]:
    """Every policy at every budget on every part, plus the paired difference if both `base` and `trained` are given.

    sampled: each policy's rollouts [P x n] at the widest budget.
    """
    results = []
    for budget in progress.counted(budgets, "measuring", len(budgets), "budgets"):
        graded = {policy: within(rollouts, budget, renderer) for policy, rollouts in sampled.items()}
        for rollouts in graded.values():
            rewards.score(rollouts, watch=False)
            if ks:
                rewards.vote(rollouts)
        split = {policy: parts(rollouts) for policy, rollouts in graded.items()}
        results += [
            Result(policy, budget, part, len(by_problem(rollouts)), measure(rollouts, ks))
            for policy, by_part in split.items()
            for part, rollouts in by_part.items()
        ]
        if {"base", "trained"} <= split.keys():
            results += [
                Result(CHANGE, budget, part, len(by_problem(before)), differences(before, after, ks))
                for (part, before), after in zip(
                    split["base"].items(), split["trained"].values(), strict=True
                )
            ]
    return results


def parts(rollouts: Sequence[Rollout]) -> dict[str, list[Rollout]]:
    """All rollouts; those of each language; those of each known number of gold solution steps."""
    languages = sorted({r.problem.language for r in rollouts})
    steps = sorted({r.problem.steps for r in rollouts if r.problem.steps})
    return {
        ALL: list(rollouts),
        **{f"language={each}": [r for r in rollouts if r.problem.language == each] for each in languages},
        **{f"steps={each}": [r for r in rollouts if r.problem.steps == each] for each in steps},
    }


MEANS: Mapping[str, Callable[[Rollout], float]] = {
    "accuracy": lambda r: r.verdict.correct,  # absent if nothing was graded
    "reward": lambda r: r.reward,
    "format": lambda r: r.verdict.format,
    "truncated": lambda r: r.truncated,
    "tokens": lambda r: r.length,
    "thinking_ja_share": lambda r: script_share(r.parsed.thinking, "ja"),
}
AMOUNTS = ("reward", "tokens")  # the other means are shares


def measure(rollouts: Sequence[Rollout], ks: Sequence[int] = ()) -> Estimates:
    """Estimates from graded rollouts of a policy at one budget.

    ks: of pass@k and maj@k, each at most the completions of a problem; they need votes (RewardSet.vote).

    | name | definition |
    |---|---|
    | `accuracy` | avg@n: mean over problems of the share of their n completions that is correct |
    | `reward`, `format`, `truncated` | mean weighted reward; shares of completions in format, and cut by the budget |
    | `tokens` | mean completion tokens |
    | `thinking_ja_share` | share of the thinking's letters that are kana or kanji |
    | `pass@k`, `maj@k` | a correct answer among k; the most frequent of k answers is correct (see rl/evaluation/statistics.py) |
    | `signal` | share of problems whose completions earn different rewards; group-relative losses learn only from these |
    | `tokens_per_correct` | completion tokens spent for each correct answer (NaN: none was correct) |

    `accuracy` and the measures derived from it are absent if no reward grades answers.
    """
    values = problem_values(rollouts, ks)
    measured = {
        name: (estimate if name in AMOUNTS else estimate_share)(each) for name, each in values.items()
    }
    if "accuracy" in values:
        measured["tokens_per_correct"] = estimate(values["tokens"], values["accuracy"])
    return measured


def differences(before: Sequence[Rollout], after: Sequence[Rollout], ks: Sequence[int] = ()) -> Estimates:
    """after - before for every mean over problems, paired: both have the same problems in the same order."""
    early, late = problem_values(before, ks), problem_values(after, ks)
    changes = {name: [b - a for a, b in zip(early[name], late[name], strict=True)] for name in early}
    return {name: (estimate if name in AMOUNTS else estimate_change)(each) for name, each in changes.items()}


def problem_values(rollouts: Iterable[Rollout], ks: Sequence[int] = ()) -> dict[str, list[float]]:
    """[P] values of every measure that is a mean over problems."""
    groups = by_problem(rollouts)
    means = dict(MEANS)
    if groups[0][0].verdict.correct is None:
        del means["accuracy"]
        ks = ()
    return {
        **{name: [sum(map(value, group)) / len(group) for group in groups] for name, value in means.items()},
        **{f"pass@{k}": [_pass(group, k) for group in groups] for k in ks},
        **{f"maj@{k}": [_majority(group, k) for group in groups] for k in ks},
        "signal": [float(len({r.reward for r in group}) > 1) for group in groups],
    }


def by_problem(rollouts: Iterable[Rollout]) -> list[list[Rollout]]:
    """[P][n] graded rollouts, grouped by the problem they answer."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return list(groups.values())


def _pass(group: Sequence[Rollout], k: int) -> float:
    return pass_at_k(sum(r.verdict.correct for r in group), len(group), k)


def _majority(group: Sequence[Rollout], k: int) -> float:
    """Raises ValueError if an answer has no vote yet (RewardSet.vote)."""
    if any(r.vote is None for r in group if r.verdict.extracted is not None):
        raise ValueError("maj@k: the rollouts have no votes yet")
    return majority_at_k([r.vote for r in group], RIGHT, k)
