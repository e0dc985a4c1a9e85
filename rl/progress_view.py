"""Shows the open tasks of rl/progress.py: a bar on a terminal, elsewhere a plain line from time to time.

A thread looks at the tasks, so that a call that blocks, such as loading weights, is shown too. During a training run on
a terminal, the bar is part of the run's own live view (rl/loggers/console.py).
"""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import rich

from rl import progress
from rl.engines.launch import rank
from rl.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

EVERY = "TANKA_PROGRESS_EVERY"  # environment variable: seconds between plain lines, 0 for none
DEFAULT_EVERY = 30.0
REFRESH_SECONDS = 0.5  # of the bar
SHOWN_AFTER = 1.0  # seconds; shorter work shows no bar
BAR_WIDTH, LEAST_BAR_WIDTH, TEXT_WIDTH = 30, 10, 80  # columns

Row = tuple[float | None, str]  # share of the work (None: unknown), text


@contextmanager
def shown() -> Iterator[None]:
    """Inside, long tasks of this process are shown. Raises UserError for a TANKA_PROGRESS_EVERY that is no number."""
    every = seconds_between_lines()
    view: _View | None = None
    if rank() == 0 and rich.get_console().is_interactive:
        view = Bar()
    elif rank() == 0 and every:
        view = Lines(every)
    if view is None:
        yield
        return
    view.start()
    try:
        yield
    finally:
        view.end()


def seconds_between_lines() -> float:
    """The user's TANKA_PROGRESS_EVERY, else DEFAULT_EVERY."""
    given = os.environ.get(EVERY) or str(DEFAULT_EVERY)
    with suppress(ValueError):
        if 0 <= (seconds := float(given)) < threading.TIMEOUT_MAX:
            return seconds
    raise UserError(f"{EVERY}={given}: expected seconds, or 0 for no progress lines; e.g. {EVERY}=30")


class _View(threading.Thread):
    """Calls `show` again and again, until `end`."""

    def __init__(self) -> None:
        super().__init__(name="progress", daemon=True)
        self.ended = threading.Event()

    @abstractmethod
    def show(self) -> float:
        """Shows what is due; returns the seconds until it must be called again."""

    def run(self) -> None:
        with suppress(OSError, ValueError):  # stdout was closed; the main thread meets the same error
            while not self.ended.wait(self.show()):
                pass

    def end(self) -> None:
        self.ended.set()


class Lines(_View):
    """A plain line whenever the outermost task has run for `every` seconds without one."""

    def __init__(self, every: float) -> None:
        super().__init__()
        self.every, self.last = every, time.monotonic()

    def show(self) -> float:
        state = progress.state()
        quiet = min(state.seconds, time.monotonic() - self.last) if state else 0.0
        if state is None or quiet < self.every:
            return self.every - quiet
        rich.get_console().print(state.line, soft_wrap=True, highlight=False, markup=False)
        self.last = time.monotonic()
        return self.every


class Bar(_View):
    """A bar below everything else that is printed; it is removed when the work ends."""

    shown: Bar | None = None  # the one of this process

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.live: Live | None = None
        self.paused = False
        self.forget = progress.when_idle(self.hide)
        Bar.shown = self

    def show(self) -> float:
        with self.lock:
            state = progress.state()
            if self.paused or self.ended.is_set() or state is None or state.own_bar:
                self._stop()
            elif self.live:
                self.live.refresh()
            elif state.seconds >= SHOWN_AFTER:
                self._start()
        return REFRESH_SECONDS

    def hide(self) -> None:
        with self.lock:
            self._stop()

    def pause(self, paused: bool) -> None:
        """Hides the bar while another live view shows the tasks."""
        with self.lock:
            self.paused = paused
            if paused:
                self._stop()

    def end(self) -> None:
        super().end()
        self.forget()
        self.hide()
        Bar.shown = None

    def _start(self) -> None:
        from rich.live import Live

        console = rich.get_console()
        self.live = Live(
            console=console, get_renderable=lambda: bars(task_rows()), auto_refresh=False, transient=True
        )
        self.live.start(refresh=True)
        console.show_cursor()  # otherwise a process that is killed leaves a terminal without a cursor

    def _stop(self) -> None:
        if self.live:
            self.live.stop()
            self.live = None


def task_rows() -> list[Row]:
    """The row of the open tasks; none while there are no tasks."""
    state = progress.state()
    return [(state.portion, state.text)] if state and state.text else []


def bars(rows: Sequence[Row]) -> RenderableType:
    """One line for each row: a bar, and the text beside it."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    width = max(LEAST_BAR_WIDTH, min(BAR_WIDTH, rich.get_console().width - TEXT_WIDTH))
    table = Table.grid(padding=(0, 1))
    for portion, text in rows:
        table.add_row(ProgressBar(1.0, portion or 0.0, width, pulse=portion is None), Text(text))
    return table
