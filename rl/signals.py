"""SIGTERM, SIGHUP and Ctrl-C: the first one ends the run at its next safe point, the second one ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from rl.engines.launch import is_launched

HANDLED = [signal.SIGTERM, signal.SIGINT]
HANGUP = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  # a closed terminal; Windows has none


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop. exit_code: 128 plus the signal's number (SIGHUP 129, SIGINT 130, SIGTERM 143)."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number


@dataclass
class _Arrived:
    """Signals belong to the process, so this is the one place that knows of them."""

    number: int | None = None
    raised: bool = False
    at_safe_points: bool = False


_arrived = _Arrived()


@contextmanager
def handled() -> Iterator[None]:
    """Inside, SIGTERM, SIGHUP and SIGINT raise Interrupted: at once, or at the next `check` inside `safe_points`.

    Only the main thread can handle signals; elsewhere this does nothing. Under nohup SIGHUP stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _arrived.number, _arrived.raised = None, False
    hangup = [number for number in HANGUP if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _handle) for number in HANDLED + hangup}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def safe_points() -> Iterator[None]:
    """Inside, a signal waits for the next `check`: no step is cut in two."""
    _arrived.at_safe_points = True
    try:
        yield
    finally:
        _arrived.at_safe_points = False


@contextmanager
def postponed() -> Iterator[None]:
    """Inside, `check` lets a signal wait on."""
    raised, _arrived.raised = _arrived.raised, True
    try:
        yield
    finally:
        _arrived.raised = raised


def check() -> None:
    """A safe point: raises Interrupted when a signal has arrived and was not yet answered."""
    if _arrived.number is not None and not _arrived.raised:
        _arrived.raised = True
        raise Interrupted(_arrived.number)


def _handle(number: int, _: FrameType | None) -> None:
    if _arrived.number is not None:
        if is_launched():
            return  # a launcher passes on what the whole job has got already, and kills by itself
        os._exit(128 + number)  # whoever asks twice does not want to wait for anything
    _arrived.number = number
    if not _arrived.at_safe_points:
        check()
