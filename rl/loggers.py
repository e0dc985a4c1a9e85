"""Where a run's numbers go: the run directory's own JSONL files first, then any number of other loggers.

The JSONL files are the record of truth and are written on the training thread. Every other logger works on a
thread of its own behind a bounded queue, so that one that is slow, broken or offline costs training nothing.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl.errors import UserError
from rl.jsonl import continue_jsonl, write_row

log = logging.getLogger("tanka")

QUEUE_SIZE = 1000  # records a logger may lag behind before its oldest ones are dropped
FAILURES_ALLOWED = 3  # failed calls after which a logger is dropped

Metrics = Mapping[str, float]
Sample = Mapping[str, Any]  # one line of samples.jsonl


@dataclass(frozen=True)
class RunInfo:
    """What a logger may know about the run.

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
    """Base of all loggers: override what is needed. Steps count from 1; exit code 0: the run finished."""

    close_seconds: float = 10.0  # how long the end of a run waits for this logger

    def open(self, run: RunInfo) -> None:
        """Called once, before anything else."""

    def log(self, step: int, metrics: Metrics) -> None:
        """One step's metrics by name (see docs of rl/metrics.py); values may be NaN or infinite."""

    def samples(self, step: int, rows: Sequence[Sample]) -> None:
        """Some of the step's rollouts, graded; each row is one line of samples.jsonl without its step."""

    def evaluation(self, step: int, row: Mapping[str, Any]) -> None:
        """What the policy that enters `step` earned on the test problems; one line of evaluations.jsonl."""

    def close(self, exit_code: int) -> None:
        """Called once, last; not called when `open` failed."""


class JSONL(Logger):
    """Strict JSON: `metrics.jsonl` (one object a step), `samples.jsonl`, `evaluations.jsonl` (one an evaluation)."""

    def open(self, run: RunInfo) -> None:
        self.metrics_file, self.samples_file, self.evaluations_file = (
            continue_jsonl(run.run_dir / name, run.resumed_from)
            for name in ("metrics.jsonl", "samples.jsonl", "evaluations.jsonl")
        )

    def log(self, step: int, metrics: Metrics) -> None:
        write_row(self.metrics_file, {"step": step, **metrics})
        self.metrics_file.flush()

    def samples(self, step: int, rows: Sequence[Sample]) -> None:
        for row in rows:
            write_row(self.samples_file, {"step": step, **row})
        self.samples_file.flush()

    def evaluation(self, step: int, row: Mapping[str, Any]) -> None:
        write_row(self.evaluations_file, {"step": step, **row})
        self.evaluations_file.flush()

    def close(self, exit_code: int) -> None:
        for file in (self.metrics_file, self.samples_file, self.evaluations_file):
            file.close()


@dataclass
class TensorBoard(Logger):
    """Scalars under the run directory's `tensorboard/`; view with `tensorboard --logdir RUN_DIR`."""

    def open(self, run: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge_step = run.resumed_from + 1 if run.resumed_from else None
        self.writer = SummaryWriter(str(run.run_dir / "tensorboard"), purge_step=purge_step)

    def log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self, exit_code: int) -> None:
        self.writer.close()


@dataclass
class WandB(Logger):
    """Weights & Biases: online when a key is configured, else offline with a line that says how to upload.

    mode: `auto` follows WANDB_MODE where it is set. An online run that cannot start falls back to offline.
    Metrics keep their names and are plotted against our own `step`, so that a resumed run loses nothing to
    the rule that W&B's internal step must rise.
    """

    project: str = "tanka-rl"
    entity: str | None = None
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    close_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not self.close_seconds > 0:
            raise UserError(
                f"close_seconds={self.close_seconds}: expected seconds above 0, e.g. close_seconds=60"
            )

    def open(self, run: RunInfo) -> None:
        import wandb

        self.run_dir = run.run_dir
        wandb.setup(settings=wandb.Settings(silent=True))
        mode = os.environ.get("WANDB_MODE", "online") if self.mode == "auto" else self.mode
        why = "as asked"
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            mode, why = "offline", "no API key is configured"
        try:
            self.run = self._init(run, mode)
        except wandb.Error as error:
            if mode != "online":
                raise
            mode, why = "offline", f"the server cannot be used: {_one_line(error)}"
            wandb.teardown()  # the failed start still holds the run's id
            self.run = self._init(run, mode)
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")
        if mode == "online":
            log.info("W&B: %s", self.run.url)
        elif mode == "offline":
            log.info("W&B is offline (%s); upload later with: wandb sync %s", why, Path(self.run.dir).parent)

    def _init(self, run: RunInfo, mode: str) -> Any:
        import wandb

        settings = wandb.Settings(
            silent=True, console="off", init_timeout=30, finish_timeout=self.close_seconds
        )
        return wandb.init(
            project=self.project,
            entity=self.entity,
            mode=mode,  # type: ignore[arg-type]  # WANDB_MODE may hold anything; wandb checks it
            dir=run.run_dir,
            id=re.sub(r"[^\w.=+@-]", "-", run.run_id),  # W&B refuses what a folder's name may hold
            name=run.name,
            config=run.config,
            resume="allow",
            reinit="create_new",  # the jobs of a sweep share one process
            settings=settings,
        )

    def log(self, step: int, metrics: Metrics) -> None:
        self.run.log({**metrics, "step": step})

    def close(self, exit_code: int) -> None:
        """A run that finished leaves its pictures and samples too."""
        from rl.wandb_media import run_media

        try:
            if exit_code == 0 and not self.run.disabled:
                self.run.log(run_media(self.run_dir))
        finally:
            self.run.finish(exit_code=exit_code)


class Loggers(Logger):
    """The run's record and all other loggers behind one logger. Only the record may raise (a full disk)."""

    def __init__(self, others: Mapping[str, Logger]) -> None:
        self.record = JSONL()
        self.workers = [_Worker(name, logger) for name, logger in others.items()]

    def open(self, run: RunInfo) -> None:
        self.record.open(run)
        for worker in self.workers:
            worker.start(run)

    def log(self, step: int, metrics: Metrics) -> None:
        self.record.log(step, metrics)
        for worker in self.workers:
            worker.send("log", step, dict(metrics))

    def samples(self, step: int, rows: Sequence[Sample]) -> None:
        self.record.samples(step, rows)
        for worker in self.workers:
            worker.send("samples", step, list(rows))

    def evaluation(self, step: int, row: Mapping[str, Any]) -> None:
        self.record.evaluation(step, row)
        for worker in self.workers:
            worker.send("evaluation", step, dict(row))

    def close(self, exit_code: int) -> None:
        """Waits for each logger at most its `close_seconds`, all counted from now."""
        for worker in self.workers:
            worker.send("close", exit_code)
        start = time.monotonic()
        for worker in self.workers:
            worker.join(start + worker.logger.close_seconds)
        self.record.close(exit_code)


class _Worker:
    """One logger on a daemon thread: `send` never blocks, and no error of the logger reaches the caller."""

    def __init__(self, name: str, logger: Logger) -> None:
        self.name = name
        self.logger = logger
        self.calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(QUEUE_SIZE)
        self.failures = 0
        self.lost = 0

    def start(self, run: RunInfo) -> None:
        self.thread = threading.Thread(
            target=self._work, args=(run,), name=f"logger-{self.name}", daemon=True
        )
        self.thread.start()

    def send(self, method: str, *arguments: Any) -> None:
        while self.thread.is_alive():
            try:
                self.calls.put_nowait((method, arguments))
                break
            except queue.Full:
                self._drop_oldest()

    def join(self, deadline: float) -> None:
        self.thread.join(max(0.0, deadline - time.monotonic()))
        if self.thread.is_alive():
            log.warning("logger %s is still busy; leaving %d records to it", self.name, self.calls.qsize())
        if self.lost:
            log.warning("logger %s was too slow: %d records dropped", self.name, self.lost)

    def _work(self, run: RunInfo) -> None:
        if not self._call("open", run):
            return
        while True:
            method, arguments = self.calls.get()
            if method == "close" or self.failures < FAILURES_ALLOWED:
                self._call(method, *arguments)
            if method == "close":
                return

    def _call(self, method: str, *arguments: Any) -> bool:
        try:
            getattr(self.logger, method)(*arguments)
            return True
        except Exception as error:  # whatever a logger raises, training goes on
            self.failures += 1
            if self.failures == 1:
                outcome = "is off" if method == "open" else f"is dropped after {FAILURES_ALLOWED} failures"
                log.warning("logger %s %s, training goes on: %s", self.name, outcome, _one_line(error))
            return False

    def _drop_oldest(self) -> None:
        try:
            self.calls.get_nowait()
            self.lost += 1
        except queue.Empty:  # the worker made room first
            pass


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
