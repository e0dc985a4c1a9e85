"""Evaluation during training: the test problems, at every budget and target length that the run asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rewards.length.l1 import evaluated_targets
from rl import progress
from rl.collecting import grading_ahead, roll_out
from rl.engines.base import SamplingParams
from rl.evaluation.measures import Estimates, measure, within
from rl.evaluation.targets import measure_at, stating
from rl.metrics import environment_metrics, rollout_metrics, thinking_metrics
from rl.rollouts import Problem, Rollout
from rl.samples import samples
from rl.seeds import derived_seed, seed_everything
from rl.step import Run

AT_BUDGET = ("accuracy", "reward", "truncated", "tokens")  # measures of each budget of `eval_max_tokens`


def evaluate_at(run: Run, step: int) -> dict[str, float]:
    """`eval/*` metrics of the policy before `step`; {} when no evaluation is due."""
    every = run.blueprint.eval_every
    return evaluate(run, step) if every and (step - 1) % every == 0 else {}


def evaluate(run: Run, step: int) -> dict[str, float]:
    """`eval/*` metrics of the policy before `step`; with `eval_data`, `eval/NAME/*` of each set."""
    run.engine.sampler.publish()
    return {
        f"eval/{name}/{metric}" if name else f"eval/{metric}": value
        for name, each in run.evaluations().items()
        for metric, value in evaluate_set(each, step).items()
    }


def evaluate_set(run: Run, step: int) -> dict[str, float]:
    """Metrics on the first `eval_problems` test problems, with the same problems and random numbers each time.

    Completions are sampled once, at the widest budget; each smaller budget cuts them. Also appends the results, with
    intervals, to evaluations.jsonl.
    """
    blueprint = run.blueprint
    problems = run.problems.test[: blueprint.eval_problems]
    if not problems:
        return {}
    seed_everything(derived_seed(blueprint.seed, "eval", step))
    budgets = blueprint.eval_budgets
    readings: dict[int, Estimates] = {}
    with progress.task("evaluating"):
        sampled = sample(run, problems, budgets[-1])
        for budget in budgets:
            rollouts = within(sampled, budget, run.renderer)
            readings[budget] = graded(run, rollouts)
            if budget == blueprint.max_tokens:
                own = rollouts
        targets = evaluate_targets(run, problems)
    record(run, step, own, readings, targets)
    measured = readings[blueprint.max_tokens]
    metrics = rollout_metrics(own) | {name: measured[name].value for name in measured if "@" in name}
    if blueprint.eval_max_tokens is not None:
        metrics |= _values("budget", {b: _only(AT_BUDGET, reading) for b, reading in readings.items()})
    metrics |= _values("target", targets)
    if not blueprint.environment.single_turn:
        metrics |= environment_metrics(own)
    if blueprint.thinking_tokens is not None:
        metrics |= thinking_metrics(own)
    return metrics


def sample(run: Run, problems: Sequence[Problem], max_tokens: int) -> list[Rollout]:
    """[P x eval_completions] ungraded rollouts of test problems at a budget."""
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=run.blueprint.eval_temperature,
        stop_ids=run.renderer.stop_ids,
        seed=derived_seed(run.blueprint.seed, "eval", 0),
    )
    arrived = grading_ahead(run, problems) if max_tokens == run.blueprint.max_tokens else None
    return roll_out(run.engine.sampler, run.task, problems, run.blueprint.eval_completions, params, arrived)


def graded(run: Run, rollouts: Sequence[Rollout]) -> Estimates:
    """Scores the rollouts and measures them; with several completions of a problem also pass@k and maj@k."""
    run.blueprint.rewards.score(rollouts, watch=False)
    n = run.blueprint.eval_completions
    if n == 1:
        return measure(rollouts)
    run.blueprint.rewards.vote(rollouts)
    return measure(rollouts, [n])


def evaluate_targets(run: Run, problems: Sequence[Problem]) -> dict[int, Estimates]:
    """The measures where every prompt states the same target, by target; {} without any.

    Each target is sampled on its own, because the prompts differ.
    """
    rewards, budget = run.blueprint.rewards, run.blueprint.max_tokens
    return {
        target: measure_at(target, sample(run, stating(problems, target), budget), rewards)
        for target in evaluated_targets(rewards.length)
    }


def record(
    run: Run,
    step: int,
    rollouts: Sequence[Rollout],
    readings: Mapping[int, Estimates],
    targets: Mapping[int, Estimates],
) -> None:
    """Appends an evaluation to evaluations.jsonl and some of its rollouts to samples.jsonl."""
    blueprint = run.blueprint
    row: dict[str, Any] = {
        "data": run.problems.config.name,
        "budget": blueprint.max_tokens,
        "problems": len({rollout.group for rollout in rollouts}),
        "completions": blueprint.eval_completions,
        "temperature": blueprint.eval_temperature,
        **readings[blueprint.max_tokens],
    }
    if blueprint.eval_max_tokens is not None:
        row["budgets"] = [{"budget": b, **_only(AT_BUDGET, reading)} for b, reading in readings.items()]
    if targets:
        row["targets"] = [{"target": target, **reading} for target, reading in targets.items()]
    run.loggers.evaluation(step, row)
    run.loggers.samples(step, samples(blueprint, rollouts, "test"))


def _only(names: Sequence[str], estimates: Estimates) -> Estimates:
    return {name: estimates[name] for name in names if name in estimates}


def _values(kind: str, readings: Mapping[int, Estimates]) -> dict[str, float]:
    """E.g. {"budget/128/accuracy": 0.5}."""
    return {
        f"{kind}/{number}/{name}": each.value
        for number, reading in readings.items()
        for name, each in reading.items()
    }
