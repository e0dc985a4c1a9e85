"""The rollouts of a batch that are written to samples.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl.blueprint import Blueprint
from rl.rollouts import Rollout, conversation


def samples(blueprint: Blueprint, rollouts: Sequence[Rollout], split: str) -> list[dict[str, Any]]:
    """Some rollouts of a batch as rows of samples.jsonl: question, answer, verdict and its reason.

    In an environment of several turns also `conversation`, all turns, and what ended the `trajectory`; with
    `thinking_tokens` also whether the reasoning's close tag was `forced`.
    """
    several_turns = not blueprint.environment.single_turn
    return [
        {
            "split": split,
            "data": r.problem.source,
            "id": r.problem.id,
            "language": r.problem.language,
            "question": r.problem.question,
            "thinking": r.parsed.thinking,
            "text": r.parsed.text,
            "raw": r.parsed.raw,
            "tokens": r.length,
            "ended": r.parsed.ended,
            "gold": r.verdict.gold,
            "extracted": r.verdict.extracted,
            "correct": r.verdict.correct,
            "format": r.verdict.format,
            "reason": r.verdict.reason,
            "rewards": r.rewards,
            "reward": r.reward,
            **({"forced": r.forced} if blueprint.thinking_tokens is not None else {}),
            **({"conversation": conversation(r), "trajectory": r.ended} if several_turns else {}),
        }
        for r in spread(rollouts, blueprint.samples_per_step)
    ]


def spread(rollouts: Sequence[Rollout], count: int) -> list[Rollout]:
    """`count` rollouts, evenly spaced in batch order, split as equally as possible between languages."""
    numbers: dict[str, list[int]] = {}  # by language
    for number, rollout in enumerate(rollouts):
        numbers.setdefault(rollout.problem.language, []).append(number)
    shares = dict.fromkeys(numbers, 0)
    for _ in range(min(count, len(rollouts))):
        available = (language for language in shares if shares[language] < len(numbers[language]))
        shares[min(available, key=shares.__getitem__)] += 1
    chosen = [
        numbers[language][i * len(numbers[language]) // n] for language, n in shares.items() for i in range(n)
    ]
    return [rollouts[number] for number in sorted(chosen)]
