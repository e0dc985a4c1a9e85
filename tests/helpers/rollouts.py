"""Rollouts and training rows of one turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl.rollouts import Completion, Parsed, Problem, Rollout, TrainingRow, Turn


def one_turn(
    problem: Problem,
    group: int,
    prompt_tokens: list[int],
    completion: Completion,
    parsed: Parsed,
    **later: Any,
) -> Rollout:
    """A rollout that answered in one turn, or was cut at the budget. later: fields that later stages fill in."""
    ended = "budget" if completion.stop_reason == "length" else "answered"
    return Rollout(problem, group, [Turn(prompt_tokens, completion, parsed)], ended, **later)


def one_turn_row(
    prompt_tokens: Sequence[int],
    tokens: Sequence[int],
    behavior_logprobs: Sequence[float],
    coefficients: Sequence[float],
    kl_weight: float = 0.0,
) -> TrainingRow:
    """A row all of whose response was sampled."""
    return TrainingRow(
        prompt_tokens, tokens, [True] * len(tokens), behavior_logprobs, coefficients, kl_weight
    )
