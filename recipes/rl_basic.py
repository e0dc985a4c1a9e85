"""Trains a model: `python -m recipes.rl_basic model=qwen3-8b data=gsm8k_ja max_tokens=256`."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from rl import progress, signals, threads
from rl.blueprint import Blueprint, blueprint_from, resumable_keys
from rl.data.problems import ProblemSet, load
from rl.engines.launch import rank
from rl.errors import UserError
from rl.loggers.console import log_handler, summary_table
from rl.models.hub import require_model
from rl.places import with_absolute_places
from rl.report.summary import last_mean
from rl.storage.disk import disk_errors
from rl.storage.jsonl import read_jsonl
from rl.storage.run_directory import RunDirectory, default_folder, finished_run, open_directory
from rl.terminal import EscapingFormatter, escape_controls

log = logging.getLogger("tanka")


@recipe("rl_basic", Blueprint)
def main(composed: Composed) -> float | None:
    """Reads the data, trains, writes the report. Torch is imported last, so that mistakes are reported at once.

    Returns the value that a sweeper maximises.
    """
    blueprint = blueprint_from(composed.tree)
    if blueprint.plan:
        from recipes.cli.plan import print_plan

        print_plan(blueprint, composed)
        return None
    wanted = composed.job_dir if blueprint.run_dir is None else blueprint.run_dir
    composed = replace(composed, tree=with_absolute_places(composed.tree))
    place = disk_errors(f"run_dir={blueprint.run_dir or 'null'}", wanted or "runs")
    if (
        wanted is not None
        and blueprint.resume
        and (done := finished_run(wanted, composed.tree, resumable_keys(blueprint)))
    ):
        if rank() > 0:
            return None
        longer = "max_steps" if blueprint.max_sampled_tokens is None else "max_sampled_tokens"
        print(f"{done.path} is finished, step {done.step}; type a larger {longer} to train further")
        with place:
            return print_results(done)
    blueprint.engine.check(blueprint)
    blueprint.environment.check()
    if rank() > 0:
        help_rank_0(blueprint)
        return None
    if blueprint.model.path is None:
        require_model(str(blueprint.model.id), blueprint.model.revision)
    problems = load(blueprint.data, blueprint.seed, blueprint.eval_data)
    if not (problems.test or problems.evaluations) and (blueprint.keep_best or "").startswith("eval/"):
        raise UserError(
            f"keep_best={blueprint.keep_best}: {blueprint.data.name} has no test problems; add some (docs/data.md), or type"
            " keep_best=reward_total"
        )
    try:
        with signals.handled(), place:
            return run(blueprint, problems, composed, wanted)
    except signals.Interrupted as interrupt:
        raise SystemExit(interrupt.exit_code) from None


def run(
    blueprint: Blueprint, problems: ProblemSet, composed: Composed, wanted: str | Path | None
) -> float | None:
    """Trains the rest of the run in its directory, and prints the results and where the report is."""
    directory = open_directory(
        wanted=wanted,
        default=default_folder("rl_basic", blueprint.name),
        config=composed.tree,
        overrides=composed.overrides,
        resume=blueprint.resume,
        resumable=resumable_keys(blueprint),
    )
    with messages_to(directory):
        log.info("computing with %s", threads.summary())
        from rl.run import open_run
        from rl.train import train

        with ExitStack() as stack:
            with progress.task("starting"):
                opened = stack.enter_context(
                    open_run(blueprint, problems, directory, composed.tree, composed.overrides)
                )
            train(opened)
        return print_results(directory)


def help_rank_0(blueprint: Blueprint) -> None:
    """Runs a process of rank above 0: rank 0 owns the data, the run directory and the terminal."""
    log.addHandler(logging.NullHandler())  # only rank 0 logs
    try:
        with signals.handled():
            blueprint.engine.follow(blueprint)
    except UserError as error:  # rank 0 cannot report it; the launcher then ends all processes
        print(escape_controls(f"error: process {rank()}: {error}"), file=sys.stderr)
        raise


def print_results(directory: RunDirectory) -> float | None:
    """Prints the first step against the last ones, and where the weights and the report are.

    Returns the mean of frac_all_good over the last steps, which does not depend on the rewards' weights. If no reward
    needs grading, returns that of reward_total.
    """
    import rich

    from rl.report.run_page import write_report

    console = rich.get_console()
    rows = read_jsonl(directory.path / "metrics.jsonl")
    if rows:
        console.print(summary_table(rows))
    with progress.task("writing the report"):
        report = write_report(directory.path) if rows else "none: metrics.jsonl holds no step"
    console.print(f"weights: {directory.final}", f"report:  {report}", sep="\n", soft_wrap=True)
    good = last_mean(rows, "frac_all_good")
    return last_mean(rows, "reward_total") if good is None else good


@contextmanager
def messages_to(directory: RunDirectory) -> Iterator[None]:
    """Sends log messages to the terminal and to the run's train.log."""
    to_file = logging.FileHandler(directory.path / "train.log", encoding="utf-8", errors="backslashreplace")
    to_file.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk is reported elsewhere
    to_file.setFormatter(EscapingFormatter("%(asctime)s %(levelname)s %(message)s"))
    handlers = [log_handler(), to_file]
    log.setLevel(logging.INFO)
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield
    except Exception as error:
        if not isinstance(error, UserError):
            to_file.emit(log.makeRecord(log.name, logging.ERROR, "", 0, traceback.format_exc(), (), None))
        raise
    finally:
        for handler in handlers:
            log.removeHandler(handler)
        to_file.close()


if __name__ == "__main__":
    main()
