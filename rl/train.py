"""The loop: collect, score, weigh, update, log, discard."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from rl import evaluating, progress, signals
from rl.collecting import collect
from rl.engines.base import Driver, Job, Learner, UpdateStats
from rl.errors import Stopped, UserError
from rl.jobs import carry_out
from rl.losses.base import PolicyLoss, weigh
from rl.losses.correction import corrected, correction_metrics
from rl.metrics import (
    environment_metrics,
    evaluated_sets,
    lag_metrics,
    rollout_metrics,
    thinking_metrics,
    update_metrics,
)
from rl.preflight.check import before_training
from rl.refilling import refill
from rl.rollouts import TrainingRow
from rl.samples import samples
from rl.saving import export_final, require_metric, save, save_at
from rl.scoring import score
from rl.step import Batch, Run, Timer

log = logging.getLogger("tanka")


def train(run: Run) -> None:
    """Trains from the first step not yet done to the last, and leaves the trained weights in `final/`.

    A signal ends it between two forward passes: the current step is dropped and the one before it is saved. The same
    happens when a remote engine raises Stopped.
    """
    learner = run.engine.learner
    if isinstance(learner, Job):
        carry_out(run, learner)
        return
    try:
        with signals.safe_points():
            if isinstance(learner, Driver):
                with closing(RunSteps(run)) as steps:
                    learner.drive(steps)
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
    check_budget(run, step)
    with run.pace.step(step, run.total_steps):
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
        self.updates = self.run.blueprint.loss.updates_per_batch
        self.step, self.updating = ExitStack(), ExitStack()  # their tasks, from prepare to conclude

    def prepare(self, step: int) -> list[TrainingRow]:
        check_budget(self.run, step)
        self.step.enter_context(self.run.pace.step(step, self.total))
        self.batch = prepare(self.run, step)
        self.updating_since = time.perf_counter()
        rows = self.batch.rows
        self.updating.enter_context(progress.task("updating", len(rows) * self.updates, "rows"))
        return rows

    def conclude(self, stats: UpdateStats) -> None:
        self.batch.timer.seconds["update"] = time.perf_counter() - self.updating_since
        self.updating.close()
        conclude(self.run, self.batch, stats)
        self.step.close()

    def close(self) -> None:
        """Ends the tasks of a step that was not concluded."""
        self.updating.close()
        self.step.close()


def check_budget(run: Run, step: int) -> None:
    """The check of the token budget, before the first step."""
    if step == 1:
        signals.check()
        before_training(run)


def prepare(run: Run, step: int) -> Batch:
    """The first half of a step: evaluate where due, collect, score, weigh."""
    signals.check()
    blueprint = run.blueprint
    timer = Timer()
    evaluation = evaluating.evaluate_at(run, step)
    with timer("sample"):
        run.engine.sampler.publish()
        rollouts, budget = collect(run, step)
    with timer("score"):
        score(run, rollouts)
    discarded = run.arrivals.discarded if run.arrivals else []
    if blueprint.refill:
        rollouts, discarded = refill(run, step, rollouts, budget, timer)
    rewards = blueprint.rewards
    with timer("score"):
        rows = weigh(rollouts, blueprint.loss, budget, rewards.weights, rewards.truncated.masks)
    learning_rate = blueprint.optimizer.rate(blueprint.learning_rate, step, run.total_steps)
    return Batch(step, rollouts, rows, learning_rate, evaluation, timer, discarded)


def conclude(run: Run, batch: Batch, stats: UpdateStats) -> None:
    """The second half of a step, after its update: log, watch the numbers, save, discard."""
    step, rollouts = batch.step, batch.rollouts
    metrics = {
        **rollout_metrics(rollouts),
        **(environment_metrics(rollouts) if not run.blueprint.environment.single_turn else {}),
        **(thinking_metrics(rollouts) if run.blueprint.thinking_tokens is not None else {}),
        "budget": run.budget.tokens,
        **update_metrics(stats, batch.learning_rate),
    }
    sampler = run.engine.sampler
    metrics |= sampler.metrics()
    if sampler.max_lag is not None:
        metrics |= lag_metrics(rollouts, step)
    if run.arrivals:
        metrics |= run.arrivals.metrics(rollouts, step)
    metrics |= run.watchdog.metrics(metrics)
    thrown_away = sum(r.length for r in batch.discarded)
    if run.blueprint.refill or run.arrivals:
        metrics["sampled_discarded"] = thrown_away
    tokens = sum(r.length for r in rollouts) + thrown_away
    run.sampled.total += tokens
    metrics["sampled_tokens"] = run.sampled.total
    metrics |= batch.timer.metrics(tokens, sampled_meanwhile=bool(sampler.max_lag)) | batch.evaluation
    if step == 1:
        require_metric(run.blueprint.keep_best, metrics)
    if run.pass_rates:
        run.pass_rates.record(step, [*rollouts, *batch.discarded])
    if run.arrivals:
        run.arrivals.record(step)
    run.loggers.log(step, metrics)
    run.loggers.samples(step, samples(run.blueprint, rollouts, "train"))
    run.watchdog.check(step, metrics, rollouts, batch.rows, stats)
    run.budget.observe(metrics)
    save_at(run, step)


def update(learner: Learner, batch: Batch, loss: PolicyLoss) -> UpdateStats:
    """The batch's optimiser updates; the stats are the last one's."""
    rows: Sequence[TrainingRow] = batch.rows
    metrics = {}
    if loss.correction != "none":
        rows = corrected(rows, learner.logprobs(rows), loss.correction, loss.correction_bounds)
        metrics = correction_metrics(batch.rows, rows)
    if loss.needs_reference:
        references = learner.reference_logprobs(rows)
        rows = [replace(row, reference_logprobs=r) for row, r in zip(rows, references, strict=True)]
    stats = learner.update(rows, loss, batch.learning_rate)
    with signals.postponed():  # a checkpoint cannot continue from the middle of a batch's updates
        for _ in range(1, loss.updates_per_batch):
            stats = learner.update(rows, loss, batch.learning_rate)
    return replace(stats, metrics={**stats.metrics, **metrics})


def finish(run: Run) -> None:
    """Writes the trained weights to `final/`, then evaluates once more."""
    export_final(run)
    if not run.blueprint.eval_every:
        return
    try:
        evaluation = evaluating.evaluate(run, run.directory.step + 1)
        for name, prefix in evaluated_sets(evaluation).items():
            log.info("%s: reward_total %.3f", name or "test problems", evaluation[f"{prefix}reward_total"])
    except Stopped as reason:  # the training itself is complete
        log.warning("final evaluation skipped: %s", reason)
