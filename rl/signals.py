"""SIGTERM, SIGHUP and Ctrl-C: the first ends the run at its next safe point, the second ends the process at once."""

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
    """The one global record of signals, because signals belong to the process."""

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
        _arrived.number = None


@contextmanager
def safe_points() -> Iterator[None]:
    """Inside, a signal waits for the next `check`, so that no step is interrupted halfway."""
    _arrived.at_safe_points = True
    try:
        yield
    finally:
        _arrived.at_safe_points = False


@contextmanager
def postponed() -> Iterator[None]:
    """Inside, `check` does not raise: a signal keeps waiting."""
    raised, _arrived.raised = _arrived.raised, True
    try:
        yield
    finally:
        _arrived.raised = raised


def check() -> None:
    """A safe point: raises Interrupted if a signal has arrived and was not raised yet; in other threads, each time."""
    if _arrived.number is not None and threading.current_thread() is not threading.main_thread():
        raise Interrupted(_arrived.number)
    if _arrived.number is not None and not _arrived.raised:
        _arrived.raised = True
        raise Interrupted(_arrived.number)


def _handle(number: int, _: FrameType | None) -> None:
    if _arrived.number is not None:
        if is_launched():
            return  # a launcher forwards a signal that the whole job already got, and kills by itself later
        os._exit(128 + number)  # asked twice: exit without any clean-up
    _arrived.number = number
    if not _arrived.at_safe_points:
        check()
