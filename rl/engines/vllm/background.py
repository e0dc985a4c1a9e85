"""An event loop on a thread of its own, for requests that go on while other threads compute."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any, TypeVar

from rl import signals

T = TypeVar("T")

POLL_SECONDS = 0.25  # how soon a signal is noticed
CLOSE_SECONDS = 5.0


class Background:
    """The loop. Coroutines are started from any thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T], meanwhile: Callable[[], object] | None = None) -> T:
        """Waits for the coroutine's value, and calls `meanwhile` again and again. A signal raises Interrupted."""
        future = self.start(coroutine)
        wait_for([future], meanwhile)
        return future.result()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancels what is running, runs `last` for CLOSE_SECONDS at most and ends the thread."""
        wait([self.start(cancel_others())], timeout=CLOSE_SECONDS)
        wait([self.start(last)], timeout=CLOSE_SECONDS)
        wait([self.start(cancel_others())], timeout=CLOSE_SECONDS)  # asyncio prints about tasks that are left
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(CLOSE_SECONDS)
        if not self.thread.is_alive():
            self.loop.close()


async def cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def wait_for(futures: Sequence[Future[Any]], meanwhile: Callable[[], object] | None = None) -> None:
    """Waits until all are done or one has failed. A signal cancels them and raises Interrupted."""
    left = set(futures)
    try:
        while left:
            signals.check()
            if meanwhile is not None:
                meanwhile()
            done, left = wait(left, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
    except BaseException:
        for future in left:
            future.cancel()
        raise
