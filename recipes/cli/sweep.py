"""Runs the jobs of a multirun: their output, the record of a failed job, the final table and report."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf

from rl.errors import UserError, reason_of
from rl.storage.run_directory import RunDirectory
from rl.terminal import escape_controls
from rl.threads import usable_cpus

# Option of hydra/launcher or hydra/sweeper -> the extra of tanka-rl that installs it.
PLUGINS = {
    "joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray", "optuna": "optuna",
}  # fmt: skip


def run_sweep(start: Callable[[], Any], folder: Path) -> None:
    """Starts the jobs; then, even after an error, prints one line for each and writes the sweep's report.

    Exit code 1 unless all jobs finished.
    """
    try:
        start()
    finally:
        unfinished = print_sweep(folder)
    if unfinished:
        raise SystemExit(
            f"{unfinished} of the sweep's jobs did not finish: see the train.log in their folders"
        )


def run_job(start: Callable[[], Any], hydra: HydraConf) -> Any:
    """The job's return value; None if it failed: its error is written to its own folder and the other jobs run on.

    If jobs run in parallel, a job's output goes to logs/ in the sweep's folder, and only its start and end are printed
    here. hydra: the `hydra` node of the job's config.
    """
    folder = Path(hydra.runtime.output_dir)
    alone = hydra.launcher._target_.endswith(".BasicLauncher")
    try:
        with contextlib.nullcontext() if alone else _own_console(folder):
            return start()
    except Exception as error:
        record_failure(folder, error)


def record_failure(folder: Path, error: Exception) -> None:
    """Writes a failed job's status and error into its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(folder)
    directory.write_status("failed", directory.read_status().get("step", 0), reason_of(error))
    with (folder / "train.log").open("a", encoding="utf-8", errors="backslashreplace") as file:
        told = str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error))
        file.write(escape_controls(told) + "\n")


@contextlib.contextmanager
def _own_console(folder: Path) -> Iterator[None]:
    path = (
        folder.parent / "logs" / f"{folder.name}.log"
    )  # not in the job's folder: a new run needs an empty one
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"{folder.name}: started; its output: {path}", flush=True)
    try:
        with (
            path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1) as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
        ):
            yield
    except Exception as error:
        print(escape_controls(f"{folder.name}: failed: {reason_of(error)}"), flush=True)
        raise
    print(f"{folder.name}: finished", flush=True)


def print_sweep(folder: Path) -> int:
    """Prints one line a job, and where the sweep's report is; returns how many jobs did not finish."""
    import rich
    from rich.table import Table

    from rl.report.summary import last_mean
    from rl.report.sweep import read_sweep
    from rl.report.sweep_page import write_sweep_report

    jobs = read_sweep(folder)
    if not jobs:  # plan=true
        return 0
    table = Table(title=f"sweep {folder}", title_justify="left")
    for column in ("job", "state"):
        table.add_column(column, overflow="fold")
    for column in ("steps", "reward_total", "frac_truncated"):
        table.add_column(column, justify="right")
    for job in jobs:
        means = [last_mean(job.metrics, name) for name in ("reward_total", "frac_truncated")]
        state = f"{job.state}: {job.reason}" if job.reason else job.state
        cells = ["" if mean is None else f"{mean:.3f}" for mean in means]
        table.add_row(job.name, state, str(job.step), *cells)
    console = rich.get_console()
    console.print(table)
    console.print(f"report: {write_sweep_report(folder)}", soft_wrap=True, highlight=False)
    return sum(job.state != "finished" for job in jobs)


def jobs_at_once(jobs: int) -> int:
    """How many of a sweep's jobs joblib runs in parallel; it divides the cores among them."""
    return max(1, min(jobs, usable_cpus()))


def jobs_of(arguments: Sequence[str]) -> int:
    """How many jobs joblib runs in parallel, by the command line; 1 without joblib."""
    typed = [text.partition("=")[2] for text in arguments if text.startswith("hydra.launcher.n_jobs=")]
    count = int(typed[-1]) if typed and typed[-1].lstrip("-").isdigit() else 1
    return count if count > 0 else usable_cpus()  # joblib's -1: as many as there are CPUs


def missing_plugin(message: str) -> str | None:
    """The error for a launcher or sweeper that one of our extras would install, from Hydra's message; else None."""
    found = re.search(r"'hydra/(?:launcher|sweeper)/(\w+)'", message)
    return (
        f"{found[1]} is not installed; type {_install(found[1])}" if found and found[1] in PLUGINS else None
    )


def installable(option: str, options: Collection[str]) -> str:
    """How to install the launcher or sweeper that an unknown option means; "" if none of our extras has it."""
    meant = [plugin for plugin in PLUGINS if plugin.startswith(option) and plugin not in options]
    return f" ({_install(meant[0])} adds {meant[0]})" if meant else ""


def _install(plugin: str) -> str:
    return f"pip install 'tanka-rl[{PLUGINS[plugin]}]'"
