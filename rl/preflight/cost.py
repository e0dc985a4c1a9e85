"""A run's steps, tokens, time and price, estimated from a sample of the untrained policy.

The estimates assume that completions keep their length during training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rl.blueprint import Blueprint
from rl.engines.base import Learner
from rl.engines.prices import Tokens, batch_tokens, price_date
from rl.preflight.token_ceiling import Ceiling, Sampling, token_ceiling
from rl.rollouts import Rollout, training_row


@dataclass(frozen=True)
class RunCost:
    """Per step: rollouts, their prompt and completion tokens, seconds of sampling and updating.

    discarded_tokens: sampled in the redraws of a step (`refill`). steps: of the run. ceiling: completion tokens of the run if every completion is cut. other_seconds: of sampling in
    evaluations and in the check before step 1. usd: of the whole run, at the prices of `price_date`; None where no price
    is published.
    """

    steps: int
    rollouts: int
    prompt_tokens: int
    completion_tokens: int
    discarded_tokens: int
    sample_seconds: float
    update_seconds: float
    ceiling: Ceiling
    other_seconds: float
    usd: float | None
    price_date: str

    @property
    def seconds(self) -> float:
        """Of the whole run, without checkpoints and loading."""
        return self.steps * (self.sample_seconds + self.update_seconds) + self.other_seconds

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "token_ceiling": self.ceiling.tokens, "seconds": self.seconds}


def run_cost(
    blueprint: Blueprint,
    steps: int,
    problems: int,
    rollouts: Sequence[Rollout],
    tokens_per_second: float,
    update_seconds_per_token: float,
    test_problems: Sequence[int],
    signal: float = 1.0,
) -> RunCost:
    """From rollouts at the run's first budget, the rates of sampling and updating, and the `problems` in a batch.

    signal: the share of groups whose rewards differ; redraw k of `refill` samples the share (1 - signal) ** k again.
    Evaluations are estimated with the same completions, cut at `max_tokens`. The check before step 1 has a wider budget:
    a completion that the first budget cuts counts as one that the wider budget cuts too.
    """
    ceiling = token_ceiling(blueprint, steps, problems, test_problems)
    count = ceiling.training.rollouts
    prompts = sum(len(r.prompt_tokens) for r in rollouts) / len(rollouts)

    def sampled(part: Sampling) -> Tokens:
        """Of one batch of `part`, scaled from the rollouts."""
        lengths = sum(_length(r, part.max_tokens) for r in rollouts) / len(rollouts)
        return Tokens(round(part.rollouts * prompts), round(part.rollouts * lengths))

    step = sampled(ceiling.training)
    prompt, completion = step.prefill, step.sample
    if blueprint.max_sampled_tokens is not None:
        steps = min(steps, math.ceil(blueprint.max_sampled_tokens / max(1, completion)))
    others = [sampled(part) * part.batches for part in (ceiling.evaluations, ceiling.preflight)]
    redrawn = sum((1 - signal) ** draw for draw in range(1, blueprint.refill + 1))
    redraws = Tokens(round(redrawn * prompt), round(redrawn * completion))
    prices = blueprint.engine.usd_per_million(blueprint)
    again = sum(_read_again(r, blueprint.thinking_tokens) for r in rollouts) / len(rollouts)
    batches = ((ceiling.training, 1 + redrawn), (ceiling.evaluations, 1), (ceiling.preflight, 1))
    second_calls = sum(part.batches * part.rollouts * times for part, times in batches)
    tokens = sum(others, (batch_tokens(prompt, completion, blueprint.loss.passes) + redraws) * steps)
    tokens += Tokens(prefill=round(again * second_calls))
    return RunCost(
        steps=steps,
        rollouts=count,
        prompt_tokens=prompt,
        completion_tokens=completion,
        discarded_tokens=redraws.sample,
        sample_seconds=(completion + redraws.sample) / tokens_per_second,
        update_seconds=completion * update_seconds_per_token * blueprint.loss.updates_per_batch,
        ceiling=ceiling,
        other_seconds=sum(other.sample for other in others) / tokens_per_second,
        usd=None if prices is None else tokens.usd(prices),
        price_date=price_date(),
    )


def _length(rollout: Rollout, max_tokens: int) -> int:
    """Its tokens at a budget of `max_tokens`; one that was cut at a smaller budget uses the whole of a larger one."""
    return max_tokens if rollout.truncated else min(rollout.length, max_tokens)


def _read_again(rollout: Rollout, thinking_tokens: int | None) -> int:
    """The tokens that a second call reads to sample what follows the reasoning's budget; 0 without one."""
    if thinking_tokens is None or rollout.length <= thinking_tokens:
        return 0
    return len(rollout.prompt_tokens) + thinking_tokens + sum(len(t.prompt_tokens) for t in rollout.turns[1:])


def forward_seconds_per_token(learner: Learner, rollouts: Sequence[Rollout]) -> float:
    """Seconds per completion token of a learner's forward pass, timed on `rollouts`."""
    rows = [training_row(r, [0.0] * r.length) for r in rollouts]
    start = time.perf_counter()
    learner.logprobs(rows)
    return (time.perf_counter() - start) / sum(r.length for r in rollouts)
