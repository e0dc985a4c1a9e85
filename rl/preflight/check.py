"""Before training: what token budgets do to a model, read off completions that are sampled once at the widest.

A completion's first b tokens are what a budget of b would have given, so one sample answers for every smaller budget.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from renderers.base import Renderer
from rl.blueprint import Blueprint
from rl.budget import Constant
from rl.collecting import require_any
from rl.data.problems import ProblemSet
from rl.engines.base import Sampler, SamplingParams
from rl.errors import NotFinite, UserError
from rl.evaluation.measures import Estimates, Sampled, measure
from rl.models.config import ModelConfig
from rl.models.loading import context_of
from rl.places import PROJECT
from rl.preflight.ceiling import check_size
from rl.preflight.learning_signal import ENOUGH, Baseline, baseline_of, length_quantile
from rl.rollouts import Problem
from rl.seeds import derived_seed, seed_everything
from rl.step import Run

log = logging.getLogger("tanka")

MEASURED = ("truncated", "format", "accuracy", "reward", "tokens")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MOST_CUT = 0.5  # of the completions: a budget that cuts more is warned of


@dataclass(frozen=True)
class Preflight:
    """What P problems with n completions each say about budgets.

    budget: of the run's first step. readings: by budget, in rising order: each of MEASURED, and `signal`. lengths: each
    of QUANTILES, in tokens. remedies: what to type against a budget that is too small.
    """

    budget: int
    problems: int
    completions: int
    temperature: float
    baseline: Baseline
    readings: dict[int, Estimates]
    lengths: Estimates
    remedies: list[str]

    @property
    def smallest(self) -> int | None:
        """The smallest budget with enough signal; None when no budget that was read has it."""
        return smallest_with_signal(self.readings)

    @property
    def summary(self) -> str:
        """The run's own budget in one line."""
        return (
            f"a budget of {self.budget} tokens: {facts(self.readings[self.budget], self.baseline)}"
            f" ({self.problems} problems x {self.completions})"
        )

    @property
    def warning(self) -> str | None:
        """What is wrong with the run's own budget and what may help; None where nothing is wrong."""
        now = self.readings[self.budget]
        if now["truncated"].value <= MOST_CUT and now["signal"].value > 0:
            return None
        if now["signal"].low >= ENOUGH:
            meaning = "enough to learn from, but most of what is sampled is cut"
        elif now["signal"].value > 0:
            meaning = "perhaps too little to learn from"
        else:
            meaning = "nothing to learn from, no step would move the weights"
        return f"{self.summary}: {meaning}; try {' or '.join(self.remedies)}"

    def to_json(self) -> dict[str, Any]:
        """Estimates are [value, low, high]; null among `lengths` is beyond the widest budget."""
        return {
            "budget": self.budget,
            "problems": self.problems,
            "completions": self.completions,
            "temperature": self.temperature,
            "signal_of": str(self.baseline),
            "smallest_with_enough_signal": self.smallest,
            "warning": self.warning,
            "remedies": self.remedies,
            "lengths": {k: [None if math.isinf(x) else x for x in q] for k, q in self.lengths.items()},
            "budgets": [{"budget": budget, **reading} for budget, reading in self.readings.items()],
        }


def before_training(run: Run) -> None:
    """The check that a run makes by itself before its first step; it leaves preflight.json in the run's directory.

    It changes no number of the run: every step seeds its own random numbers. Raises UserError where `preflight=fail`
    and there is something to warn of.
    """
    blueprint = run.blueprint
    if blueprint.preflight == "off":
        return
    count, completions = check_size(blueprint)
    prompted = prompts_of(blueprint, run.problems, run.renderer, count)
    budget = blueprint.budget.first(blueprint.max_tokens)
    room = prompted.room(blueprint.model)
    budgets = [b for b in (max(1, budget // 2), budget, 2 * budget) if b <= max(budget, room)]
    sampled = sample_prompts(blueprint, run.renderer, run.engine.sampler, prompted, completions, budgets[-1])
    try:
        found = read_budgets(blueprint, run.renderer, sampled, budgets)
    except NotFinite as error:  # as in a step, which then moves no weights
        log.warning("preflight: %s", error)
        return
    run.directory.write_json("preflight.json", found.to_json())
    if found.warning is None:
        log.info("preflight: %s", found.summary)
    elif blueprint.preflight == "fail":
        raise UserError(f"preflight=fail: {found.warning}")
    else:
        log.warning("preflight: %s", found.warning)


@dataclass(frozen=True)
class Prompted:
    """P train problems and their prompts."""

    problems: Sequence[Problem]
    prompts: Sequence[list[int]]

    def room(self, model: ModelConfig) -> float:
        """The tokens that the model's context leaves behind the longest prompt; inf where no end is known."""
        context = context_of(model)
        return math.inf if context is None else context - max(map(len, self.prompts))


def prompts_of(blueprint: Blueprint, problems: ProblemSet, renderer: Renderer, count: int) -> Prompted:
    """The problems that a run with batches of `count` would begin with."""
    first = problems.batch(0, count, blueprint.seed)
    return Prompted(first, [renderer.prompt(problems.messages(problem)) for problem in first])


def sample_prompts(
    blueprint: Blueprint,
    renderer: Renderer,
    sampler: Sampler,
    prompted: Prompted,
    n: int,
    widest: int,
) -> Sampled:
    """n completions of each problem as training would sample them, at a budget of `widest` tokens."""
    seed_everything(derived_seed(blueprint.seed, "preflight", 0))
    params = SamplingParams(
        max_tokens=widest,
        temperature=blueprint.temperature,
        stop_ids=renderer.stop_ids,
        seed=derived_seed(blueprint.seed, "preflight", 1),
        support=blueprint.sampling,
    )
    sampler.publish()
    return Sampled(
        prompted.problems, prompted.prompts, require_any(sampler.sample(prompted.prompts, n, params))
    )


def read_budgets(
    blueprint: Blueprint, renderer: Renderer, sampled: Sampled, budgets: Sequence[int]
) -> Preflight:
    """What the completions say about the budgets, in rising order up to the one that they were sampled with."""
    n = max(map(len, sampled.completions))
    baseline = baseline_of(blueprint, n)
    readings: dict[int, Estimates] = {}
    for budget in budgets:
        rollouts = sampled.at(budget, renderer)
        blueprint.rewards.score(rollouts, watch=False)
        measured = measure(rollouts)
        readings[budget] = {name: measured[name] for name in MEASURED if name in measured} | {
            "signal": baseline.signal(rollouts)
        }
    budget = blueprint.budget.first(blueprint.max_tokens)
    return Preflight(
        budget=budget,
        problems=len(sampled.problems),
        completions=n,
        temperature=blueprint.temperature,
        baseline=baseline,
        readings=readings,
        lengths={name: length_quantile(rollouts, share) for name, share in QUANTILES.items()},
        remedies=remedies(blueprint, renderer, readings, budget, baseline),
    )


def smallest_with_signal(readings: dict[int, Estimates]) -> int | None:
    """The smallest budget with enough signal."""
    return next((budget for budget, reading in readings.items() if reading["signal"].low >= ENOUGH), None)


def remedies(
    blueprint: Blueprint, renderer: Renderer, readings: dict[int, Estimates], budget: int, baseline: Baseline
) -> list[str]:
    """What to type, most promising first: a budget at which a signal was read, other problems, a model that thinks less."""
    now = readings[budget]
    cut = now["truncated"].value > MOST_CUT
    wanted = [
        None if now["signal"].low >= ENOUGH else smallest_with_signal(readings),
        next((b for b, r in readings.items() if r["truncated"].value <= MOST_CUT), None) if cut else None,
    ]
    # A schedule that starts wider than max_tokens keeps its proportion.
    wider = blueprint.budget.first(blueprint.max_tokens) / blueprint.max_tokens
    found = [
        f"max_tokens={round(b / wider)} ({facts(readings[b], baseline)})"
        for b in dict.fromkeys(filter(None, wanted))
        if round(100 * readings[b]["signal"].value) > 0  # what reads as 0 % would help nobody
    ]
    if not found:
        widest = max(readings)
        if readings[widest]["truncated"].value > MOST_CUT:
            found.append(f"max_tokens above {widest}")
        else:
            found += [
                "easier or harder problems",
                f"a larger {'group_size' if baseline.grouped else 'batch_size'}",
            ]
    if not cut:
        return found
    # It begins with a wider budget than the run's.
    if isinstance(blueprint.budget, Constant) and any(
        reading["signal"].value > 0 for b, reading in readings.items() if b > budget
    ):
        found.append("budget=tighten")
    if renderer.name == "qwen3":
        found.append("renderer=qwen3_disable_thinking")
    if (PROJECT / "conf/model" / f"{blueprint.model.name}-base.yaml").is_file():
        found.append(f"model={blueprint.model.name}-base")
    return found


def facts(reading: Estimates, baseline: Baseline) -> str:
    """E.g. "89 % cut, 11 % correct, a signal in 62 % of the groups of 8"."""
    words = {"truncated": "{} cut", "accuracy": "{} correct", "signal": f"a signal in {{}} of the {baseline}"}
    return ", ".join(
        text.format(f"{100 * reading[name].value:.0f} %") for name, text in words.items() if name in reading
    )
