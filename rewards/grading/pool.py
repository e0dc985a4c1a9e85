"""Worker processes for comparisons that may hang. A batch survives the death of any worker.

They are plain subprocesses with a line protocol, so they can be started from any thread, from asyncio and from a
daemonic pool process. They end when the pipe from their parent closes. The caller's signal handlers are not touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rl import progress
from rl.errors import UserError

LIMIT_SECONDS = 0.8  # for one comparison, so that a sample stays below 1 s

_ROOT = Path(__file__).parents[2]
_PATIENCE = 1.0  # seconds past the worker's own limit before it is considered stuck
_START_SECONDS = 60.0
_TRIES = 3  # attempts at one comparison when workers die


@dataclass
class _Task:
    """One comparison: the line to send, and its outcome (`reason` is "" until it is known)."""

    line: bytes
    tries: int = 0
    started: float = 0.0
    reason: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, pair: tuple[str, str]) -> _Task:
        return cls(json.dumps(pair).encode() + b"\n")


class _Worker:
    """One process, which serves one task at a time. An idle worker has no deadline."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "rewards.grading.worker",
            ],  # -P: do not import from the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is the trainer's to handle
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin and self._process.stdout
        self._input, self.output = self._process.stdin, self._process.stdout
        self.ready = False
        self.task: _Task | None = None
        self.deadline = time.monotonic() + _START_SECONDS

    def give(self, task: _Task) -> None:
        task.tries += 1
        task.started = time.monotonic()
        self.task, self.deadline = task, task.started + LIMIT_SECONDS + _PATIENCE
        with contextlib.suppress(BrokenPipeError):  # a dead worker is detected by its closed output
            self._input.write(task.line)

    def read(self) -> str:
        """What the worker printed; "" once it has exited. Its lines are short, so they arrive complete."""
        return self.output.read(4096).decode()

    def kill(self) -> None:
        """Kills the process and its forked child, which share the worker's session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._input.close()
        self.output.close()
        self._process.wait()


@dataclass
class Pool:
    """Compares batches of (gold, answer) pairs on up to `size` processes, started when first needed."""

    size: int = 2
    _workers: list[_Worker] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _expected: dict[tuple[str, str], _Task] = field(default_factory=dict)
    _failed_starts: int = 0  # in a row
    _owner: int = field(default_factory=os.getpid)

    def start(self) -> None:
        """Starts the first process and returns at once; the process does its imports in the background."""
        self._adopt()
        with self._lock:
            self._fill(1)

    def expect(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Starts comparing these pairs in the background; the next `compare` uses the results."""
        self._adopt()
        if new := {pair: _Task.of(pair) for pair in pairs if pair not in self._expected}:
            self._expected |= new
            threading.Thread(target=self._run_ahead, args=(list(new.values()),), daemon=True).start()

    def _run_ahead(self, tasks: list[_Task]) -> None:
        with contextlib.suppress(UserError), self._lock:  # `compare` will meet the same error
            self._run(tasks)

    def compare(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, float]]:
        """(reason, seconds) for each pair, in order. Duplicates are compared once. Concurrent calls run one by one."""
        self._adopt()
        expected, self._expected = self._expected, {}
        tasks = {pair: expected.get(pair) or _Task.of(pair) for pair in dict.fromkeys(pairs)}

        def compared() -> int:
            return sum(bool(task.reason) for task in tasks.values())

        with progress.task("comparing expressions", len(tasks), "answers", compared), self._lock:
            self._run(list(tasks.values()))
        return [(tasks[pair].reason, tasks[pair].seconds) for pair in pairs]

    def close(self) -> None:
        """Ends the processes and drops expected comparisons; the next `compare` starts new processes."""
        self._adopt()
        expected, self._expected = self._expected, {}
        for task in expected.values():
            task.reason = task.reason or "error"  # ends the thread that still compares them
        with self._lock:
            for worker in self._workers:
                worker.kill()
            self._workers.clear()

    def _adopt(self) -> None:
        """After a fork the workers and the lock belong to the parent: starts with new ones."""
        if self._owner != os.getpid():
            self._workers, self._expected, self._lock, self._owner = [], {}, threading.Lock(), os.getpid()

    def _fill(self, count: int) -> None:
        self._workers += [_Worker() for _ in range(min(count, self.size) - len(self._workers))]

    def _run(self, tasks: list[_Task]) -> None:
        waiting = deque(task for task in tasks if not task.reason)
        while unfinished := sum(not task.reason for task in tasks):
            self._fill(unfinished)
            for worker in self._workers:
                if worker.ready and worker.task is None and waiting:
                    worker.give(waiting.popleft())
            for worker, reply in self._replies():
                task, worker.task = worker.task, None
                if reply == "ready":
                    worker.ready = True
                elif task is not None and reply == "died" and task.tries < _TRIES:
                    waiting.append(task)
                elif task is not None:
                    task.reason = "error" if reply == "died" else reply
                    task.seconds = time.monotonic() - task.started

    def _replies(self) -> list[tuple[_Worker, str]]:
        """The workers' replies up to the next deadline; `died` for a worker that exited, `timeout` for a stuck one.

        Raises UserError when workers repeatedly fail to start.
        """
        busy = [worker for worker in self._workers if worker.task is not None or not worker.ready]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            patience = min(worker.deadline for worker in busy) - time.monotonic()
            speaking = [key.data for key, _ in selector.select(max(0.0, patience))]
        replies = []
        for worker in busy:
            said = worker.read() if worker in speaking else None
            if said:
                replies += [(worker, line) for line in said.split()]
            elif said == "" or time.monotonic() > worker.deadline:
                replies.append((worker, "died" if said == "" else "timeout"))
                self._remove(worker)
        return replies

    def _remove(self, worker: _Worker) -> None:
        worker.kill()
        self._workers.remove(worker)
        self._failed_starts = 0 if worker.ready else self._failed_starts + 1
        if self._failed_starts > _TRIES:
            raise UserError(
                "the grading worker does not start; run python -m rewards.grading.worker to see why"
            )
