"""Where a run's numbers go: the JSONL files of the run directory, then any number of other loggers.

The JSONL files are authoritative and are written on the training thread. Every other logger runs on its own thread
with a bounded queue, so that a slow, broken or offline logger does not slow down training.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("tanka")

Metrics = Mapping[str, float]
SampleRow = Mapping[str, Any]  # one line of samples.jsonl


@dataclass(frozen=True)
class RunInfo:
    """Facts about the run that loggers may use.

    total_steps: optimizer steps of the whole run; resumed_from: steps done before this start (0: a new run).
    run_id: stays the same when the run is resumed. config: the resolved blueprint as plain containers.
    """

    run_dir: Path
    name: str
    config: dict[str, Any]
    total_steps: int
    resumed_from: int
    run_id: str


class Logger:
    """Base class of loggers: override what you need. Steps count from 1; exit code 0: the run finished."""

    close_seconds: float = 10.0  # how long the end of a run waits for this logger

    def open(self, run: RunInfo) -> None:
        """Called once, before anything else."""

    def log(self, step: int, metrics: Metrics) -> None:
        """One step's metrics by name (defined in rl/metrics.py); values may be NaN or infinite."""

    def samples(self, step: int, rows: Sequence[SampleRow]) -> None:
        """Some of the step's rollouts, graded; each row is one line of samples.jsonl without its step."""

    def evaluation(self, step: int, row: Mapping[str, Any]) -> None:
        """Test results of the policy at the start of `step`; one line of evaluations.jsonl."""

    def close(self, exit_code: int) -> None:
        """Called once, last; not called when `open` failed."""
