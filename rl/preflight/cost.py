"""What a run would take in steps, tokens, time and money: estimates from a sample of its first policy.

They hold while completions stay as long as they are before training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rl.blueprint import Blueprint
from rl.engines.base import Learner
from rl.engines.prices import batch_tokens, price_date
from rl.rollouts import Rollout, TrainingRow


@dataclass(frozen=True)
class RunCost:
    """Per step: rollouts, their prompt and completion tokens, seconds of sampling and updating.

    steps: of the run. token_ceiling: completion tokens of the run, were every completion cut. usd: of the run, at the
    prices of `price_date`; None where no price is published.
    """

    steps: int
    rollouts: int
    prompt_tokens: int
    completion_tokens: int
    sample_seconds: float
    update_seconds: float
    token_ceiling: int
    usd: float | None
    price_date: str

    @property
    def seconds(self) -> float:
        """Of the whole run, without evaluations, checkpoints and loading."""
        return self.steps * (self.sample_seconds + self.update_seconds)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": self.seconds}


def run_cost(
    blueprint: Blueprint,
    steps: int,
    problems: int,
    rollouts: Sequence[Rollout],
    tokens_per_second: float,
    update_seconds_per_token: float,
) -> RunCost:
    """From rollouts at the run's first budget, the rates of sampling and updating, and the `problems` in a batch."""
    count = problems * blueprint.group_size
    scale = count / len(rollouts)
    prompt = round(scale * sum(len(r.prompt_tokens) for r in rollouts))
    completion = round(scale * sum(len(r.completion.tokens) for r in rollouts))
    prices = blueprint.engine.usd_per_million(blueprint)
    tokens = batch_tokens(prompt, completion, blueprint.loss.passes) * steps
    return RunCost(
        steps=steps,
        rollouts=count,
        prompt_tokens=prompt,
        completion_tokens=completion,
        sample_seconds=completion / tokens_per_second,
        update_seconds=completion * update_seconds_per_token * blueprint.loss.updates_per_batch,
        token_ceiling=steps * count * blueprint.budget.first(blueprint.max_tokens),
        usd=None if prices is None else tokens.usd(prices),
        price_date=price_date(),
    )


def forward_seconds_per_token(learner: Learner, rollouts: Sequence[Rollout]) -> float:
    """Seconds of a forward pass of the learner for each completion token, timed on some rollouts."""
    rows = [
        TrainingRow(
            r.prompt_tokens, r.completion.tokens, r.completion.logprobs, [0.0] * len(r.completion.tokens)
        )
        for r in rollouts
    ]
    start = time.perf_counter()
    learner.logprobs(rows)
    return (time.perf_counter() - start) / sum(len(row.completion_tokens) for row in rows)
