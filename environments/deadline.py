"""Calls of a user's code that may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rl.errors import Stopped

MOST_HANGING = 256  # calls that never returned, after which the run ends
_hanging: list[threading.Thread] = []


class Busy(Exception):
    """An earlier call has not returned yet."""


class Worker:
    """Runs one call after another, each for at most `seconds`; None: without a limit, in the caller's thread."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._thread: threading.Thread | None = None

    def run(self, function: Callable[[], Any]) -> Any:
        """What `function` returns or raises.

        Raises TimeoutError when it takes longer: a thread cannot be ended, so it goes on beside the run, and later calls
        raise Busy until it is done. Raises Stopped when there are too many such threads.
        """
        if self._seconds is None:
            return function()
        if self._thread is not None and self._thread.is_alive():
            raise Busy
        result: list[Any] = []
        raised: list[BaseException] = []

        def call() -> None:
            try:
                result.append(function())
            except BaseException as error:
                raised.append(error)

        self._thread = threading.Thread(target=call, daemon=True, name="tool")
        self._thread.start()
        self._thread.join(self._seconds)
        if raised:
            raise raised[0]
        if result:
            return result[0]
        _give_up(self._thread)
        raise TimeoutError


def _give_up(thread: threading.Thread) -> None:
    _hanging[:] = [other for other in _hanging if other.is_alive()] + [thread]
    if len(_hanging) > MOST_HANGING:
        raise Stopped(
            f"environment: {MOST_HANGING} tool calls never returned; give the tools a time limit of their own"
        )
