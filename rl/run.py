"""Opening and closing a run. Everything heavy is loaded here, cheapest first, and always released."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from renderers.base import Renderer, require_fingerprint
from rl import progress
from rl.blueprint import Blueprint
from rl.budget import budget_after
from rl.collecting import open_arrivals
from rl.data.config import DataConfig
from rl.data.curriculum import ByPassRate, EasiestFirst
from rl.data.pass_rates import PassRates
from rl.data.problems import ProblemSet
from rl.engines.base import Job, Weights
from rl.errors import UserError, reason_of
from rl.loggers.background import Loggers
from rl.loggers.base import RunInfo
from rl.models.loading import open_renderer
from rl.rollouts import Problem
from rl.saving import RENDERER
from rl.signals import Interrupted
from rl.step import Run, SampledTokens
from rl.storage import checkpoint
from rl.storage.jsonl import read_jsonl
from rl.storage.run_directory import RunDirectory, State
from rl.task import open_task
from rl.watchdog import Watchdog

log = logging.getLogger("tanka")

SAMPLED_PROBLEMS = 4000  # hashed to identify a data set; sets of up to twice this size are hashed whole
INTERRUPTED_CLOSE_SECONDS = 5.0  # a SIGKILL may soon follow the signal


@contextmanager
def open_run(
    blueprint: Blueprint,
    problems: ProblemSet,
    directory: RunDirectory,
    config: dict[str, Any],
    overrides: list[str],
) -> Iterator[Run]:
    """The opened run, at its newest complete checkpoint. config, overrides: written to config.yaml and overrides.yaml.

    However the body ends, status.json records it, the loggers are closed with the exit code and the weights are freed.
    """
    with _status(directory) as start, ExitStack() as stack:
        stack.callback(blueprint.rewards.close)
        blueprint.rewards.start()
        tokenizer, renderer = open_renderer(blueprint.model, blueprint.renderer)
        task = open_task(
            problems.messages, renderer, blueprint.environment, blueprint.model, blueprint.thinking_tokens
        )
        problems.keep_short_prompts(task.prompt)
        record_data(directory, problems, blueprint.engine.started(directory.path))
        for each in (problems, *problems.evaluations.values()):
            for line in each.report.lines():
                log.info("%s", line)
        engine = blueprint.engine.open(replace(blueprint, run_dir=str(directory.path)), tokenizer)
        stack.callback(engine.close)
        blueprint.rewards.check()
        learner = engine.learner
        done = (
            resume_job(learner, directory)
            if isinstance(learner, Job)
            else resume(learner, renderer, directory)
        )
        start.accepted = True
        directory.write_asked(config, overrides)
        logged = read_jsonl(directory.path / "metrics.jsonl")
        for last in logged[-1:]:
            engine.sampler.recall(last)
        total_steps = blueprint.total_steps(
            problems.steps_per_epoch(blueprint.batch_size, blueprint.engine.trains_remainder)
        )
        directory.write_status("running", done)
        loggers = Loggers(blueprint.logger)
        loggers.open(RunInfo(directory.path, blueprint.name, config, total_steps, done, directory.run_id))
        if blueprint.curriculum == "difficulty":
            problems.curriculum = EasiestFirst(problems.train, total_steps, problems.config.name)
        rates = None
        if blueprint.curriculum == "pass_rate":
            rates = PassRates(directory.path / "pass_rates.jsonl", done, blueprint.pass_rates)
            stack.callback(rates.close)
            order_by_pass_rate(problems, blueprint, rates, total_steps, engine.sampler.max_lag or 0)
        logged = read_jsonl(directory.path / "metrics.jsonl", done)
        budget = budget_after(blueprint.budget, blueprint.max_tokens, logged, total_steps)
        before = logged[-1].get("sampled_tokens", 0) if logged else 0
        sampled = SampledTokens(int(before), blueprint.max_sampled_tokens)
        watchdog = Watchdog(directory.path, done, blueprint.max_nonfinite_steps)
        run = Run(
            blueprint, problems, task, engine, loggers, directory, watchdog, budget, sampled, total_steps, done,
            pass_rates=rates,
        )  # fmt: skip
        if in_flight := blueprint.engine.rollouts_in_flight(blueprint):
            arrivals = open_arrivals(run, in_flight)
            stack.callback(arrivals.close)
            run = replace(run, arrivals=arrivals)
        with _closing(loggers):
            yield run


def order_by_pass_rate(
    problems: ProblemSet, blueprint: Blueprint, rates: PassRates, total_steps: int, lag: int
) -> None:
    """Orders the train problems by measured rates. Raises UserError when no rate can ever be known in time."""
    curriculum = ByPassRate(problems.train, lambda epoch: problems.order(blueprint.seed, epoch), rates, lag)
    known, name = rates.until(0), problems.config.name
    if known and not known.keys() & set(curriculum.ids):
        raise UserError(
            f"pass_rates={blueprint.pass_rates}: none of its ids is a train problem of {name}; expected rates of the same data"
        )
    if not known and total_steps <= len(problems.train) // min(blueprint.batch_size, len(problems.train)):
        raise UserError(
            f"curriculum=pass_rate: all {total_steps} steps are in the first epoch of {name}, before any pass rate is measured;"
            " type pass_rates=FILE with the pass_rates.jsonl of recipes.preflight, or epochs=2"
        )
    problems.curriculum = curriculum


def resume(weights: Weights, renderer: Renderer, directory: RunDirectory) -> int:
    """Loads the newest complete checkpoint that metrics.jsonl reaches and returns its step; 0 if there is none."""
    point = resume_point(directory)
    if point is None:
        if checkpoint.steps(directory.checkpoints) or read_jsonl(directory.path / "metrics.jsonl"):
            log.warning("%s has no complete checkpoint: starting again at step 1", directory.path)
        return 0
    require_fingerprint(renderer, (point / RENDERER).read_text(encoding="utf-8"), str(point))
    with progress.task("loading the checkpoint"):
        weights.load(point)
    log.info("resuming %s after step %d", directory.path, checkpoint.step_of(point))
    return checkpoint.step_of(point)


def resume_job(job: Job, directory: RunDirectory) -> int:
    """The step after which the job continues, with a warning when metrics.jsonl does not reach it."""
    done = job.last_step(directory.path)
    if done:
        log.info("resuming %s after step %d", directory.path, done)
    _warn_of_gaps(directory, done)
    return done


def _warn_of_gaps(directory: RunDirectory, done: int) -> None:
    logged = {row["step"] for row in read_jsonl(directory.path / "metrics.jsonl")}
    if missing := [step for step in range(1, done + 1) if step not in logged]:
        log.warning("metrics.jsonl lacks %s; they will be missing from the report too", _ranges(missing))


def resume_point(directory: RunDirectory) -> Path | None:
    """The newest complete checkpoint whose steps are all in metrics.jsonl, so that the run's record has no gap.

    If there is none, the newest complete one, with a warning that names the missing steps.
    """
    logged = {row["step"] for row in read_jsonl(directory.path / "metrics.jsonl")}
    reached = next(step for step in itertools.count() if step + 1 not in logged)
    point = checkpoint.latest(directory.checkpoints, reached)
    if point is not None:
        newest = checkpoint.steps(directory.checkpoints)[-1]
        if checkpoint.step_of(newest) > reached:
            log.warning(
                "metrics.jsonl ends at step %d: resuming from %s, not %s", reached, point.name, newest.name
            )
        return point
    point = checkpoint.latest(directory.checkpoints)
    if point is not None:
        _warn_of_gaps(directory, checkpoint.step_of(point))
    return point


def _ranges(steps: list[int]) -> str:
    """E.g. ``steps 1-3, 7`` for [1, 2, 3, 7]."""
    runs = itertools.groupby(enumerate(steps), key=lambda pair: pair[1] - pair[0])
    ends = [(group[0][1], group[-1][1]) for group in (list(group) for _, group in runs)]
    return "steps " + ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def record_data(directory: RunDirectory, problems: ProblemSet, started: bool) -> None:
    """Writes data.json. Raises UserError when a run that has started would continue on different problems."""
    splits = {"train": problems.train, "test": problems.test}
    splits |= {f"eval_data.{name}": each.test for name, each in problems.evaluations.items()}
    now = {split: {"kept": len(found), "sha256": _fingerprint(found)} for split, found in splits.items()}
    before = directory.read_json("data.json")
    for split, facts in now.items():
        if before.get(split) not in (None, facts) and started:
            raise UserError(
                f"run_dir={directory.path}: {_named(problems.config, split)} is not what this run was started with (its"
                f" {'train' if split == 'train' else 'test'} problems differ; now {facts['kept']:,}); put the old data back,"
                " or give another run_dir"
            )
    directory.write_json("data.json", {**problems.report.to_json(), **now})


def _named(config: DataConfig, split: str) -> str:
    """The override that names a split's data set."""
    if split.startswith("eval_data."):
        return split
    if split == "test" and config.test_path:
        return f"data.test_path={config.test_path}"
    return f"data.path={config.path}" if config.path else f"data={config.name}"


def _fingerprint(problems: Sequence[Problem]) -> str:
    """SHA-256 of the first, the last and evenly spaced problems in between."""
    count, digest = len(problems), hashlib.sha256()
    for index in (*range(0, count, max(1, count // SAMPLED_PROBLEMS)), *range(count)[-1:]):
        problem = problems[index]
        extra = json.dumps(problem.extra, sort_keys=True, default=str) if problem.extra else ""
        text = f"{index}\0{problem.question}\0{problem.answer}\0{extra}"
        digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


@dataclass
class _Start:
    """One start of a run. accepted: everything was opened, so this command's config.yaml replaces the old one."""

    accepted: bool = False


@contextmanager
def _status(directory: RunDirectory) -> Iterator[_Start]:
    """Writes status.json at the start and, however the body ends, at the end.

    A finished run that cannot be opened to train longer stays `finished`; status.json gets the reason.
    """
    start = _Start()

    def write(state: State, reason: str = "") -> int:
        step = directory.step
        directory.write_status(state, step, reason)
        return step

    write("running")
    try:
        yield start
    except Interrupted as interrupt:
        step = write("interrupted", str(interrupt))
        log.warning(
            "%s after step %d; to continue, type the same command with run_dir=%s",
            interrupt,
            step,
            directory.path,
        )
        raise
    except BaseException as error:
        untouched = directory.was_finished and not start.accepted
        write("finished" if untouched else "failed", reason_of(error))
        raise
    write("finished")


@contextmanager
def _closing(loggers: Loggers) -> Iterator[None]:
    """Closes the loggers with the exit code of the body. An interrupted run waits INTERRUPTED_CLOSE_SECONDS at most."""
    try:
        yield
    except Interrupted as interrupt:
        closing = threading.Thread(target=loggers.close, args=(interrupt.exit_code,), daemon=True)
        closing.start()
        closing.join(INTERRUPTED_CLOSE_SECONDS)
        raise
    except BaseException:
        loggers.close(1)
        raise
    loggers.close(0)
