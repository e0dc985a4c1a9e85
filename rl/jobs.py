"""A run whose steps another program takes: it is started, recorded and ended, and its weights become final/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl import progress, signals
from rl.engines.base import Job
from rl.saving import export_final
from rl.step import Run


@dataclass
class JobRecord:
    """`Record` of rl/engines/base.py: an opened run, for an engine that runs a job. shown: counts its steps."""

    run: Run
    shown: progress.Task

    def __post_init__(self) -> None:
        self.directory = self.run.directory.path
        self.done, self.total = self.run.done, self.run.total_steps
        self.problems, self.task = self.run.problems, self.run.task

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.loggers.log(step, metrics)
        self.run.directory.write_status("running", step)
        self.shown.done = step

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.run.loggers.samples(step, rows)


def carry_out(run: Run, job: Job) -> None:
    """Runs the job to its end and leaves its weights in `final/`. A signal ends it between two lines of its output."""
    with signals.safe_points(), progress.task("training", run.total_steps, "steps") as shown:
        shown.done = shown.resumed = run.done
        job.carry_out(JobRecord(run, shown))
    export_final(run)
