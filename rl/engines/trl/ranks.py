"""The processes of one launch: rank 0 leads, the others follow.

Rank 0 runs the recipe as it would alone: problems, prompts, rewards, advantages, loggers and the run directory exist once.
It calls the others for what needs all of them, which are the methods of one object that every process has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from rl.engines.launch import rank

T = TypeVar("T")


class Released(Exception):
    """On a follower: rank 0 has ended."""


class Ranks:
    """Rank 0's hold on the others. worker: the object on each process whose methods `call` runs everywhere."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.leads = rank() == 0
        self.waiting = (
            True  # whether the others listen: what ends in the middle of a common task cannot tell them
        )

    def call(self, method: str, *arguments: Any) -> Any:
        """On rank 0: `worker.method(*arguments)` on all processes at once; rank 0's result."""
        self._send(method, arguments)
        self.waiting = False
        result = getattr(self.worker, method)(*arguments)
        self.waiting = True
        return result

    def meet(self, lead: Callable[[], T]) -> T:
        """On all processes: rank 0 runs `lead` while the others follow its calls; each gets its result."""
        if not self.leads:
            return self.follow()
        self.waiting = True
        result = lead()
        self._send("", (result,))
        self.waiting = False
        return result

    def follow(self) -> Any:
        """On the others: does what rank 0 calls for, until its `meet` has a result. Raises Released when it ends."""
        while True:
            method, arguments = self._receive()
            if method is None:
                raise Released
            if not method:
                return arguments[0]
            getattr(self.worker, method)(*arguments)

    def stop(self) -> None:
        """On rank 0: lets the others go, wherever they follow."""
        if self.leads and self.waiting:
            with suppress(RuntimeError):  # some may have died
                self._send(None, ())

    def _send(self, method: str | None, arguments: tuple[Any, ...]) -> None:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list([(method, arguments)])

    def _receive(self) -> tuple[str | None, tuple[Any, ...]]:
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([None])[0]
