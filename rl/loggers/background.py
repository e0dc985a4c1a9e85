"""All loggers as one: the JSONL record on the training thread, each other logger on its own thread with a bounded queue."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rl.errors import one_line
from rl.loggers.base import Logger, Metrics, RunInfo, SampleRow
from rl.loggers.jsonl import JSONL

log = logging.getLogger("tanka")

QUEUE_SIZE = 1000  # queued records of a logger before the oldest are dropped
FAILURES_ALLOWED = 3  # failed calls after which a logger is dropped


class Loggers(Logger):
    """The run's record and all other loggers as one logger. Only the record may raise (e.g. disk full)."""

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

    def samples(self, step: int, rows: Sequence[SampleRow]) -> None:
        self.record.samples(step, rows)
        for worker in self.workers:
            worker.send("samples", step, list(rows))

    def evaluation(self, step: int, row: Mapping[str, Any]) -> None:
        self.record.evaluation(step, row)
        for worker in self.workers:
            worker.send("evaluation", step, dict(row))

    def close(self, exit_code: int) -> None:
        """Waits for each logger at most `close_seconds`, counted from this call for all of them."""
        for worker in self.workers:
            worker.send("close", exit_code)
        start = time.monotonic()
        for worker in self.workers:
            worker.join(start + worker.logger.close_seconds)
        self.record.close(exit_code)


class _Worker:
    """One logger on a daemon thread: `send` never blocks, and the logger's errors never reach the caller."""

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
            log.warning(
                "logger %s is still busy; not waiting for its last %d records", self.name, self.calls.qsize()
            )
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
        except Exception as error:  # training continues whatever a logger raises
            self.failures += 1
            if self.failures == 1:
                outcome = "is off" if method == "open" else f"is dropped after {FAILURES_ALLOWED} failures"
                log.warning("logger %s %s, training goes on: %s", self.name, outcome, one_line(error))
            return False

    def _drop_oldest(self) -> None:
        try:
            self.calls.get_nowait()
            self.lost += 1
        except queue.Empty:  # the worker made room first
            pass
