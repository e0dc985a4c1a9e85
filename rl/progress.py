"""What the process is doing now: long work counts here, and rl/progress_view.py shows it.

Code that may take long opens a `task` around its work. Counting is an assignment: nothing is printed here and no thread
is started, so a task costs some microseconds. Only tasks of the main thread are shown.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, TypeVar

T = TypeVar("T")

RECENT_STEPS = 10  # steps whose mean duration gives the time left of the run
# A task's own speed gives its time left after this many seconds and this share of its work.
FIRST_SECONDS, FIRST_SHARE = 2.0, 0.02


@dataclass(eq=False)
class Task:
    """Work that may take long. Tasks that are opened inside it are its parts.

    doing: what the user reads, e.g. "sampling". total: how many `unit` there are, 0 if unknown; without a unit a
    percentage is shown. done: how many are finished. resumed: how many of them were before the task was opened. count:
    counts them when they are shown, in place of `done`; it is called from another thread. share: of the work, 0 to 1,
    where done / total is too coarse. tokens: drawn so far. own_bar: on a terminal, a library shows a bar of its own.
    parts: seconds of each finished part.
    """

    doing: str
    total: int = 0
    unit: str = ""
    count: Callable[[], int] | None = None
    own_bar: bool = False
    done: int = 0
    resumed: int = 0
    share: float | None = None
    tokens: int = 0
    parts: dict[str, float] = field(default_factory=dict)
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it was opened."""
        return time.monotonic() - self.start

    @property
    def portion(self) -> float | None:
        """The share of the work that is done, 0 to 1; None if unknown."""
        share = self.share
        if share is None and self.total:
            share = self._finished() / self.total
        return None if share is None else min(1.0, share)

    @property
    def left(self) -> float | None:
        """Seconds until it ends, if it goes on at its own speed; None if unknown."""
        portion, seconds = self.portion, self.seconds
        gained = (portion or 0.0) - (self.resumed / self.total if self.total else 0.0)
        if portion is None or gained < FIRST_SHARE or seconds < FIRST_SECONDS:
            return None
        return seconds * (1 - portion) / gained

    @property
    def counts(self) -> str:
        """E.g. ``37/128 rollouts, 412 tokens/s``; "" if nothing was counted."""
        done, cells = self._finished(), []
        if self.total and self.unit:
            cells.append(f"{done:,}/{self.total:,} {self.unit}")
        elif self.total:
            cells.append(f"{self.portion:.0%}")
        elif done:
            cells.append(f"{done:,} {self.unit}")
        if self.tokens:
            cells.append(f"{self.tokens / max(self.seconds, 1e-3):,.0f} tokens/s")
        return ", ".join(cells)

    def _finished(self) -> int:
        try:
            return self.count() if self.count else self.done
        except (OSError, RuntimeError):  # a file that was just closed, or a dictionary that just changed
            return 0


class Pace:
    """How long the last steps of this start took, and the parts of the last one: they tell the time left."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self.parts: dict[str, float] = {}

    @contextmanager
    def step(self, number: int, total: int) -> Iterator[None]:
        """One step of the run as a task. A step that raises is not remembered."""
        label = f"step {number:>{len(str(total))}}/{total}"
        with _opened(Step(label, pace=self, more=total - number)) as step:
            yield
        self.seconds.append(step.seconds)
        self.parts = step.parts


@dataclass(eq=False)
class Step(Task):
    """A step of a run. more: how many steps come after it."""

    pace: Pace = field(default_factory=Pace)
    more: int = 0

    def left_with(self, part: Task, part_left: float | None) -> tuple[float, float] | None:
        """Seconds left of the step and of the run, while it does `part`; None if unknown, as in the first step."""
        before = self.pace.parts
        if not self.pace.seconds:
            return None
        if part_left is None and part.doing not in before:
            return None
        if part_left is None:
            part_left = max(0.0, before[part.doing] - part.seconds)
        names = list(before)
        later = names[names.index(part.doing) + 1 :] if part.doing in before else names
        step = part_left + sum(before[name] for name in later if name not in self.parts)
        return step, step + self.more * sum(self.pace.seconds) / len(self.pace.seconds)


_open: list[Task] = []  # from the outermost to the innermost: one list, because a process has one terminal
_when_idle: list[Callable[[], None]] = []


@contextmanager
def task(
    doing: str, total: int = 0, unit: str = "", count: Callable[[], int] | None = None, own_bar: bool = False
) -> Iterator[Task]:
    """A task for as long as the body runs; see `Task`."""
    with _opened(Task(doing, total, unit, count, own_bar)) as opened:
        yield opened


def counted(items: Iterable[T], doing: str, total: int, unit: str) -> Iterator[T]:
    """The items, counted as a task while a loop uses them."""
    with task(doing, total, unit) as opened:
        for item in items:
            yield item
            opened.done += 1


def reading(file: BinaryIO) -> AbstractContextManager[Task]:
    """A task around reading a file from its start to its end."""
    number = file.fileno()
    size, name = os.fstat(number).st_size, Path(file.name).name
    # Not file.tell(): called from another thread, it could disturb the reader.
    return task(f"reading {name}", size, count=lambda: os.lseek(number, 0, os.SEEK_CUR))


def advance(done: int, tokens: int = 0) -> None:
    """Counts `done` more units and `tokens` more tokens of the innermost task."""
    if _open and _is_main():
        _open[-1].done += done
        _open[-1].tokens += tokens


def when_idle(call: Callable[[], None]) -> Callable[[], None]:
    """Calls `call` each time the last open task ends. Returns a function that stops this."""
    _when_idle.append(call)
    return lambda: _when_idle.remove(call)


@contextmanager
def _opened(opened: Task) -> Iterator:
    if not _is_main():
        yield opened
        return
    outer = _open[-1] if _open else None
    _open.append(opened)
    try:
        yield opened
    finally:
        if opened in _open:
            del _open[_open.index(opened) :]
        if outer:
            outer.parts[opened.doing] = outer.parts.get(opened.doing, 0.0) + opened.seconds
        if not _open:
            for call in _when_idle:
                call()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@dataclass(frozen=True)
class State:
    """What is shown of the open tasks.

    step: e.g. "step 3/60"; "" outside a step. text: the other tasks and their time; "" if there are none. portion: the
    share of their work that is done; None: unknown. run_left: seconds; None: unknown. seconds: since the outermost task
    began. own_bar: see `Task`.
    """

    step: str
    text: str
    portion: float | None
    run_left: float | None
    seconds: float
    own_bar: bool

    @property
    def line(self) -> str:
        """All of it as one line."""
        run = "" if self.run_left is None else f", {clock(self.run_left)} of the run"
        return "  ".join(filter(None, [self.step, self.text])) + run


def state() -> State | None:
    """What the process is doing; None while no task is open. For any thread."""
    tasks = list(_open)
    if not tasks:
        return None
    step = tasks[0] if isinstance(tasks[0], Step) else None
    parts = tasks[1:] if step else tasks
    run_left, text = None, ""
    if parts:
        timed = next((part for part in parts if part.left is not None), None)
        left = timed.left if timed else None
        if step and (known := step.left_with(parts[0], left)):
            times, run_left = f"{clock(known[0])} left of the step", known[1]
        elif timed and left is not None:
            times = f"{clock(left)} left" + ("" if timed in (tasks[0], parts[-1]) else f" of {timed.doing}")
        else:
            times = f"for {clock(parts[0].seconds)}"
        text = f"{': '.join(f'{part.doing} {part.counts}'.strip() for part in parts)}, {times}"
    return State(
        step=step.doing if step else "",
        text=text,
        portion=next((part.portion for part in parts if part.portion is not None), None),
        run_left=run_left,
        seconds=tasks[0].seconds,
        own_bar=any(part.own_bar for part in parts),
    )


def clock(seconds: float) -> str:
    """E.g. ``0:01:10``."""
    return str(timedelta(seconds=round(seconds)))
