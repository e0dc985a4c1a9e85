"""The processes of one launch: rank 0 leads, the others follow.

Rank 0 runs the recipe as it would alone: problems, prompts, rewards, advantages, loggers and the run directory exist
once. For work that needs all processes it calls methods of an object that every process has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from rl.engines.launch import rank

T = TypeVar("T")


class Released(Exception):
    """Raised on a follower when rank 0 has ended."""


class Ranks:
    """Runs methods on all processes. worker: the object on each process whose methods `call` runs.

    waiting: true while followers wait for a call; mid-collective they cannot be released.
    """

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.leads = rank() == 0
        self.waiting = True

    def call(self, method: str, *arguments: Any) -> Any:
        """On rank 0: runs `worker.method(*arguments)` on all processes; returns rank 0's result."""
        self._send(method, arguments)
        self.waiting = False
        result = getattr(self.worker, method)(*arguments)
        self.waiting = True
        return result

    def meet(self, lead: Callable[[], T]) -> T:
        """On all processes: rank 0 runs `lead` while the others follow its calls; all return its result."""
        if not self.leads:
            return self.follow()
        self.waiting = True
        result = lead()
        self._send("", (result,))
        self.waiting = False
        return result

    def follow(self) -> Any:
        """On followers: runs what rank 0 calls until its `meet` has a result. Raises Released when rank 0 ends."""
        while True:
            method, arguments = self._receive()
            if method is None:
                raise Released
            if not method:
                return arguments[0]
            getattr(self.worker, method)(*arguments)

    def stop(self) -> None:
        """On rank 0: releases the followers, if they are waiting."""
        if self.leads and self.waiting:
            with suppress(RuntimeError):  # a follower may have died
                self._send(None, ())

    def _send(self, method: str | None, arguments: tuple[Any, ...]) -> None:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list([(method, arguments)])

    def _receive(self) -> tuple[str | None, tuple[Any, ...]]:
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([None])[0]
