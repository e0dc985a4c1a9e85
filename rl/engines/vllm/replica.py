"""One vLLM server as the client sees it, and waiting for its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from rl.engines.vllm.probe import Facts
from rl.engines.vllm.wire import Failed

T = TypeVar("T")


@dataclass(eq=False)
class Replica:
    """One server. busy: requests it has. alive: it answers. trusted: completions of its weights were verified.

    gone: is set when it is left out, and ends the waits for its answers. tokens: processed since its start; None: unknown.
    moved: when that number last changed, or the server was idle. stalled: it was left out because it no longer changed.
    """

    url: str
    facts: Facts | None = None
    busy: int = 0
    alive: bool = False
    trusted: bool = False
    failures: int = 0
    looked: float = 0.0
    tokens: float | None = None
    moved: float = 0.0
    stalled: bool = False
    reason: str = ""
    gone: asyncio.Event = field(default_factory=asyncio.Event)


async def unless_gone(replica: Replica, call: Awaitable[T]) -> T:
    """The call's value. Raises Failed when its server is left out meanwhile."""
    answer = asyncio.ensure_future(call)
    gone = asyncio.ensure_future(replica.gone.wait())
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise Failed("it was left out while it worked")
    finally:
        gone.cancel()
        answer.cancel()
