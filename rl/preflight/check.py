"""Before training: the effect of token budgets on a model, from completions sampled once at the widest budget.

A completion's first b tokens are what a budget of b would give, so one sample covers every smaller budget.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from renderers.base import Renderer
from rl import progress
from rl.blueprint import Blueprint
from rl.budget import Constant
from rl.collecting import roll_out
from rl.data.pass_rates import pass_rates_of
from rl.data.problems import ProblemSet
from rl.engines.base import Sampler, SamplingParams
from rl.errors import NotFinite, UserError
from rl.evaluation.measures import Estimates, by_problem, measure, within
from rl.models.config import ModelConfig
from rl.models.loading import context_of
from rl.places import PROJECT
from rl.preflight.learning_signal import ENOUGH, Baseline, baseline_of, length_quantile
from rl.preflight.token_ceiling import check_size
from rl.rollouts import Problem, Rollout
from rl.seeds import derived_seed, seed_everything
from rl.step import Run
from rl.task import Task

log = logging.getLogger("tanka")

MEASURED = ("truncated", "format", "accuracy", "reward", "tokens")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MOST_CUT = 0.5  # share of the completions; a budget that cuts more gives a warning


@dataclass(frozen=True)
class Preflight:
    """Measurements at several budgets, from P problems with n completions each.

    budget: of the run's first step. readings: by budget, in rising order: each of MEASURED, and `signal`. lengths: each
    of QUANTILES, in tokens. remedies: overrides to type if the budget is too small. pass_rates: of each problem by id, at
    `budget`.
    """

    budget: int
    problems: int
    completions: int
    temperature: float
    baseline: Baseline
    readings: dict[int, Estimates]
    lengths: Estimates
    remedies: list[str]
    pass_rates: dict[str, float]

    @property
    def smallest(self) -> int | None:
        """The smallest measured budget with enough signal; None if there is none."""
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
        """What is wrong with the run's own budget and what may help; None if nothing is wrong."""
        now = self.readings[self.budget]
        if now["truncated"].value <= MOST_CUT and now["signal"].value > 0:
            return None
        if now["signal"].low >= ENOUGH:
            meaning = "enough to learn from, but most completions are cut"
        elif now["signal"].value > 0:
            meaning = "perhaps too little to learn from"
        else:
            meaning = "nothing to learn from: no step would change the weights"
        return f"{self.summary}: {meaning}; try {' or '.join(self.remedies)}"

    def to_json(self) -> dict[str, Any]:
        """Estimates are [value, low, high]; null in `lengths` means longer than the widest budget."""
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
    """The check before a run's first step; writes preflight.json into the run directory.

    It changes no number of the run, because every step seeds its own random numbers. Raises UserError instead of a
    warning with `preflight=fail`.
    """
    blueprint = run.blueprint
    if blueprint.preflight == "off":
        return
    count, completions = check_size(blueprint)
    prompted = prompts_of(blueprint, run.problems, run.task, count)
    budget = blueprint.budget.first(blueprint.max_tokens)
    room = prompted.room(blueprint.model, run.task.forced_tokens)
    least = blueprint.thinking_tokens or 0  # a budget must leave tokens for the answer
    budgets = [b for b in (max(1, budget // 2), budget, 2 * budget) if least < b <= max(budget, room)]
    with progress.task("preflight"):
        sampled = sample_prompts(blueprint, run.task, run.engine.sampler, prompted, completions, budgets[-1])
        try:
            found = read_budgets(blueprint, run.renderer, sampled, budgets)
        except NotFinite as error:  # a step with such rewards only warns too
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

    def room(self, model: ModelConfig, forced: int = 0) -> float:
        """The tokens that remain in the model's context after the longest prompt; inf if the context is unknown.

        forced: a rollout's tokens that are neither its prompt nor sampled.
        """
        context = context_of(model)
        return math.inf if context is None else context - forced - max(map(len, self.prompts))


def prompts_of(blueprint: Blueprint, problems: ProblemSet, task: Task, count: int) -> Prompted:
    """The first `count` problems of the run's order, with their prompts."""
    first = problems.batch(0, count, blueprint.seed)
    return Prompted(first, task.prompts(first))


def sample_prompts(
    blueprint: Blueprint,
    task: Task,
    sampler: Sampler,
    prompted: Prompted,
    n: int,
    widest: int,
) -> list[Rollout]:
    """n rollouts of each problem, sampled as in training with a budget of `widest` tokens."""
    seed_everything(derived_seed(blueprint.seed, "preflight", 0))
    params = SamplingParams(
        max_tokens=widest,
        temperature=blueprint.temperature,
        stop_ids=task.renderer.stop_ids,
        seed=derived_seed(blueprint.seed, "preflight", 1),
        support=blueprint.sampling,
    )
    sampler.publish()
    return roll_out(sampler, task, prompted.problems, n, params)


def read_budgets(
    blueprint: Blueprint, renderer: Renderer, sampled: Sequence[Rollout], budgets: Sequence[int]
) -> Preflight:
    """Measurements at each of `budgets`: in rising order, the last is the one used for sampling."""
    groups = by_problem(sampled)
    n = max(map(len, groups))
    baseline = baseline_of(blueprint, n)
    readings: dict[int, Estimates] = {}
    first = blueprint.budget.first(blueprint.max_tokens)
    for budget in progress.counted(budgets, "measuring", len(budgets), "budgets"):
        rollouts = within(sampled, budget, renderer)
        blueprint.rewards.score(rollouts, watch=False)
        if budget == first:
            rates = pass_rates_of(rollouts)
        measured = measure(rollouts)
        readings[budget] = {name: measured[name] for name in MEASURED if name in measured} | {
            "signal": baseline.signal(rollouts)
        }
    return Preflight(
        budget=first,
        problems=len(groups),
        completions=n,
        temperature=blueprint.temperature,
        baseline=baseline,
        readings=readings,
        lengths={name: length_quantile(rollouts, share) for name, share in QUANTILES.items()},
        remedies=remedies(blueprint, renderer, readings, first, baseline),
        pass_rates=rates,
    )


def smallest_with_signal(readings: dict[int, Estimates]) -> int | None:
    """The smallest budget with enough signal."""
    return next((budget for budget, reading in readings.items() if reading["signal"].low >= ENOUGH), None)


def remedies(
    blueprint: Blueprint, renderer: Renderer, readings: dict[int, Estimates], budget: int, baseline: Baseline
) -> list[str]:
    """What to try, most promising first: a budget with a measured signal, other problems, a model that thinks less."""
    now = readings[budget]
    cut = now["truncated"].value > MOST_CUT
    wanted = [
        None if now["signal"].low >= ENOUGH else smallest_with_signal(readings),
        next((b for b, r in readings.items() if r["truncated"].value <= MOST_CUT), None) if cut else None,
    ]
    # With a schedule, max_tokens is smaller than the first budget by this factor.
    wider = blueprint.budget.first(blueprint.max_tokens) / blueprint.max_tokens
    found = [
        f"max_tokens={round(b / wider)} ({facts(readings[b], baseline)})"
        for b in dict.fromkeys(filter(None, wanted))
        if round(100 * readings[b]["signal"].value) > 0  # a budget shown with 0 % would not help
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
    # It starts with a wider budget.
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
