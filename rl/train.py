"""The loop: collect, score, weigh, update, log, discard."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl import signals
from rl.collecting import collect, roll_out
from rl.engines.base import Driver, Learner, SamplingParams, UpdateStats
from rl.errors import NotFinite, Stopped, UserError
from rl.evaluation.measures import measure
from rl.losses.base import PolicyLoss, weigh
from rl.metrics import evaluated_sets, lag_metrics, rollout_metrics, update_metrics
from rl.preflight.check import before_training
from rl.rollouts import Rollout, TrainingRow
from rl.saving import export_final, require_metric, save, save_at
from rl.seeds import derived_seed, seed_everything
from rl.step import Batch, Run, Timer

log = logging.getLogger("tanka")


def train(run: Run) -> None:
    """Trains from the first step not yet done to the last, and leaves the trained weights in `final/`.

    A signal ends it between two forward passes: the current step is dropped and the one before it is saved. The same
    happens when a remote engine raises Stopped.
    """
    try:
        with signals.safe_points():
            learner = run.engine.learner
            if isinstance(learner, Driver):
                learner.drive(RunSteps(run))
            else:
                step = run.done
                while not run.ends_with(step):
                    step += 1
                    take_step(run, learner, step)
            finish(run)
    except (signals.Interrupted, Stopped):
        if finished := run.directory.step:
            try:
                save(run, finished)
            except UserError as error:  # re-raise the original reason, not this one
                log.warning("step %d could not be saved: %s", finished, error)
        raise


def take_step(run: Run, learner: Learner, step: int) -> None:
    """One step: collect, score and weigh a batch, update the weights, then log, save and discard."""
    batch = prepare(run, step)
    with batch.timer("update"):
        stats = update(learner, batch, run.blueprint.loss)
    conclude(run, batch, stats)


@dataclass
class RunSteps:
    """The remaining steps of a run, for an engine with its own training loop: `Steps` of rl/engines/base.py."""

    run: Run

    def __post_init__(self) -> None:
        self.total = self.run.total_steps
        self.problems = min(self.run.blueprint.batch_size, len(self.run.problems.train))
        self.directory = self.run.directory.path

    def prepare(self, step: int) -> list[TrainingRow]:
        self.batch = prepare(self.run, step)
        self.updating_since = time.perf_counter()
        return self.batch.rows

    def conclude(self, stats: UpdateStats) -> None:
        self.batch.timer.seconds["update"] = time.perf_counter() - self.updating_since
        conclude(self.run, self.batch, stats)


def prepare(run: Run, step: int) -> Batch:
    """The first half of a step: evaluate where due, collect, score, weigh."""
    signals.check()
    if step == 1:
        before_training(run)
    blueprint = run.blueprint
    timer = Timer()
    evaluation = evaluate_at(run, step)
    with timer("sample"):
        run.engine.sampler.publish()
        rollouts, budget = collect(run, step)
    with timer("score"):
        score(run, rollouts)
        rows = weigh(rollouts, blueprint.loss, budget)
    learning_rate = blueprint.optimizer.rate(blueprint.learning_rate, step, run.total_steps)
    return Batch(step, rollouts, rows, learning_rate, evaluation, timer)


def conclude(run: Run, batch: Batch, stats: UpdateStats) -> None:
    """The second half of a step, after its update: log, watch the numbers, save, discard."""
    step, rollouts = batch.step, batch.rollouts
    metrics = {
        **rollout_metrics(rollouts),
        "budget": run.budget.tokens,
        **update_metrics(stats, batch.learning_rate),
    }
    sampler = run.engine.sampler
    metrics |= sampler.metrics()
    if sampler.max_lag is not None:
        metrics |= lag_metrics(rollouts, step)
    metrics |= run.watchdog.metrics(metrics)
    tokens = sum(len(r.completion.tokens) for r in rollouts)
    run.sampled.total += tokens
    metrics["sampled_tokens"] = run.sampled.total
    metrics |= batch.timer.metrics(tokens) | batch.evaluation
    if step == 1:
        require_metric(run.blueprint.keep_best, metrics)
    run.loggers.log(step, metrics)
    run.loggers.samples(step, samples(rollouts, run.blueprint.samples_per_step, "train"))
    run.watchdog.check(step, metrics, rollouts, batch.rows, stats)
    run.budget.observe(metrics)
    save_at(run, step)


def score(run: Run, rollouts: Sequence[Rollout]) -> None:
    """Rewards the rollouts. If any reward is not finite, all become NaN, so the batch moves no weights."""
    try:
        run.blueprint.rewards.score(rollouts)
    except NotFinite as error:
        log.warning("%s", error)
        for rollout in rollouts:
            rollout.reward = math.nan
            rollout.rewards = dict.fromkeys(run.blueprint.rewards.names, math.nan)


def update(learner: Learner, batch: Batch, loss: PolicyLoss) -> UpdateStats:
    """The batch's optimiser updates; the stats are the last one's."""
    rows: Sequence[TrainingRow] = batch.rows
    if loss.needs_reference:
        references = learner.reference_logprobs(rows)
        rows = [replace(row, reference_logprobs=r) for row, r in zip(rows, references, strict=True)]
    stats = learner.update(rows, loss, batch.learning_rate)
    with signals.postponed():  # a checkpoint cannot continue from the middle of a batch's updates
        for _ in range(1, loss.updates_per_batch):
            stats = learner.update(rows, loss, batch.learning_rate)
    return stats


def evaluate_at(run: Run, step: int) -> dict[str, float]:
    """`eval/*` metrics of the policy before `step`; {} when no evaluation is due."""
    every = run.blueprint.eval_every
    return evaluate(run, step) if every and (step - 1) % every == 0 else {}


def evaluate(run: Run, step: int) -> dict[str, float]:
    """`eval/*` metrics of the policy before `step`; with `eval_data`, `eval/NAME/*` of each set."""
    return {
        f"eval/{name}/{metric}" if name else f"eval/{metric}": value
        for name, each in run.evaluations().items()
        for metric, value in evaluate_set(each, step).items()
    }


def evaluate_set(run: Run, step: int) -> dict[str, float]:
    """Metrics on the first `eval_problems` test problems, with the same problems and random numbers each time.

    Also appends the results, with intervals, to evaluations.jsonl.
    """
    blueprint = run.blueprint
    problems = run.problems.test[: blueprint.eval_problems]
    if not problems:
        return {}
    seed_everything(derived_seed(blueprint.seed, "eval", step))
    n = blueprint.eval_completions
    params = SamplingParams(
        max_tokens=blueprint.max_tokens,
        temperature=blueprint.eval_temperature,
        stop_ids=run.renderer.stop_ids,
        seed=derived_seed(blueprint.seed, "eval", 0),
    )
    rollouts = roll_out(run, problems, n, params)
    blueprint.rewards.score(rollouts, watch=False)
    ks = [n] if n > 1 else []
    if ks:
        blueprint.rewards.vote(rollouts)
    measured = measure(rollouts, ks)
    answered = len({rollout.group for rollout in rollouts})
    setting = {
        "data": run.problems.config.name,
        "budget": blueprint.max_tokens,
        "problems": answered,
        "completions": n,
    }
    run.loggers.evaluation(step, {**setting, "temperature": params.temperature, **measured})
    run.loggers.samples(step, samples(rollouts, blueprint.samples_per_step, "test"))
    return rollout_metrics(rollouts) | {name: measured[name].value for name in measured if "@" in name}


def finish(run: Run) -> None:
    """Writes the trained weights to `final/`, then evaluates once more."""
    export_final(run)
    if not run.blueprint.eval_every:
        return
    try:
        evaluation = evaluate(run, run.directory.step + 1)
        for name, prefix in evaluated_sets(evaluation).items():
            log.info("%s: reward_total %.3f", name or "test problems", evaluation[f"{prefix}reward_total"])
    except Stopped as reason:  # the training itself is complete
        log.warning("final evaluation skipped: %s", reason)


def samples(rollouts: Sequence[Rollout], count: int, split: str) -> list[dict[str, Any]]:
    """`count` rollouts of a batch as rows of samples.jsonl: question, completion, verdict and its reason."""
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
            "tokens": len(r.completion.tokens),
            "ended": r.parsed.ended,
            "gold": r.verdict.gold,
            "extracted": r.verdict.extracted,
            "correct": r.verdict.correct,
            "format": r.verdict.format,
            "reason": r.verdict.reason,
            "rewards": r.rewards,
            "reward": r.reward,
        }
        for r in spread(rollouts, count)
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
