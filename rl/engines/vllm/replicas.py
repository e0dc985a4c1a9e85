"""Servers that hold the same weights: work goes to the least busy, a dead one is left out until it answers again.

All methods but the constructor run on the event loop of rl/engines/vllm/background.py, so no locks are needed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rl.engines.vllm import wire
from rl.engines.vllm.completions import PATH, Unusable, completions_of
from rl.engines.vllm.probe import Needs, facts_of, require_fit
from rl.engines.vllm.replica import Replica, unless_gone
from rl.engines.vllm.weights import Version, Weights
from rl.engines.vllm.wire import Failed, Refused
from rl.errors import Stopped, UserError
from rl.rollouts import Completion

log = logging.getLogger("tanka")
T = TypeVar("T")

ATTEMPTS = 5  # of one request, with failures of servers that go on
MOST_DEATHS = 10
LOOK_SECONDS = 1.0  # between two looks at servers that are out
HEALTH_SECONDS = 10.0  # between two health checks of servers that are busy
TOKEN_BYTES = 1024  # of an answer, at most for each token; vLLM uses about 200
UNHEALTHY = 3  # failed health checks in a row after which a server counts as dead


class Replicas:
    """The servers at `urls`. Raises Stopped from any request when none has been usable for `patience` seconds."""

    def __init__(self, urls: list[str], needs: Needs, weights: Weights, patience: float) -> None:
        self.needs, self.weights, self.patience = needs, weights, patience
        self.look_seconds = min(HEALTH_SECONDS, patience / 3)
        self.replicas = [Replica(url.rstrip("/")) for url in urls]
        self.client: Any = None
        self.watching: asyncio.Task[None] | None = None
        self.asked_again = 0
        self.since: float | None = None  # when the last server was lost
        self.fatal: Callable[[], str] = lambda: ""  # why waiting for servers is in vain

    async def open(self) -> None:
        """Waits for all servers and reads their facts. Raises Stopped after `patience`, UserError for an unfit server."""
        self.client = wire.new_client()
        await asyncio.gather(*(self._first_facts(replica) for replica in self.replicas))
        self.watching = asyncio.create_task(self._watch())  # the loop itself holds it weakly

    async def _first_facts(self, replica: Replica) -> None:
        start, said = time.monotonic(), False
        while True:
            try:
                await self._meet(replica)
                return
            except (Failed, Refused) as error:
                if (waited := time.monotonic() - start) > self.patience:
                    raise Stopped(
                        f"engine.servers: {replica.url} has not answered for {waited:.0f} s ({error}); start it, or leave it"
                        " out of engine.servers"
                    ) from None
                if not said:
                    log.info("waiting for the server at %s (%s)", replica.url, error)
                    said = True
            await asyncio.sleep(LOOK_SECONDS)

    async def _meet(self, replica: Replica) -> None:
        """Reads the facts of a server that (again) answers. Raises Failed, Refused, and UserError for an unfit one."""
        facts = await facts_of(self.client, replica.url)
        require_fit(replica.url, facts, self.needs)
        await self.weights.greet(self.client, replica.url, facts)
        replica.facts, replica.alive, replica.failures = facts, True, 0
        replica.trusted = not self.needs.publishes
        replica.gone, replica.stalled, replica.moved = asyncio.Event(), False, time.monotonic()

    @property
    def alive(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.alive]

    @property
    def usable(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.alive and replica.trusted]

    def leave_out(self, replica: Replica, reason: object) -> None:
        """Counts a server as dead: its requests are asked of others."""
        if replica.alive:
            log.warning("%s is left out: %s", replica.url, reason)
        replica.alive = replica.trusted = False
        replica.reason = str(reason)
        replica.gone.set()
        self.weights.forget(replica.url)

    async def ask(self, request: dict[str, Any], version: Version) -> list[Completion]:
        """The completions of one prompt, from whichever server is usable; ends a use of `version`. Raises Stopped."""
        from tenacity import (
            AsyncRetrying,
            RetryCallState,
            retry_if_exception_type,
            stop_after_attempt,
            wait_random_exponential,
        )

        failed: set[str] = set()  # the servers that failed this request
        backoff = wait_random_exponential(multiplier=0.2, max=10)

        def pause(state: RetryCallState) -> float:
            if state.outcome is None or any(replica.url not in failed for replica in self.usable):
                return backoff(state)
            return max(backoff(state), min(getattr(state.outcome.exception(), "after", 0.0), self.patience))

        retrying = AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=pause,
            retry=retry_if_exception_type((Failed, Unusable)),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._ask_living(request, version, failed)
        except (Failed, Unusable) as error:
            raise Stopped(
                f"engine=vllm: {ATTEMPTS} tries of a request failed, the last with: {error}"
            ) from None
        finally:
            version.count(-1)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _ask_living(
        self, request: dict[str, Any], version: Version, failed: set[str]
    ) -> list[Completion]:
        """`ask` without retries, except those after the death of a server. Raises Failed, Unusable, Stopped."""
        last: Exception | None = None
        for _ in range(MOST_DEATHS):
            replica = await self._least_busy(failed)
            try:
                return await self.sample(replica, request, version)
            except (Failed, Unusable) as error:
                failed.add(replica.url)
                self.asked_again += 1
                last = error
                if isinstance(error, Failed) and replica.alive and not await self._is_healthy(replica):
                    self.leave_out(replica, error)
                if replica.alive:
                    error.args = (f"{replica.url}: {error}",)
                    raise
            except Refused as error:
                raise Stopped(f"engine=vllm: {replica.url}: {error}") from None
        raise Stopped(
            f"engine=vllm: a server was lost {MOST_DEATHS} times during one request, the last {replica.url} with: {last}"
        )

    async def sample(self, replica: Replica, request: dict[str, Any], version: Version) -> list[Completion]:
        """The completions of one prompt from one server. Raises Failed, Refused, Unusable."""
        assert replica.facts is not None
        replica.busy += 1
        try:
            name = await self.weights.ensure(self.client, replica.url, replica.facts, version)
            answer = await self._generate(replica, {"model": name, **request})
        finally:
            replica.busy -= 1
        found = completions_of(answer, request, self.needs.vocabulary)
        try:
            self.weights.require_ours(replica.url, answer)
        except Failed as error:
            raise self._restarted(replica, error) from None
        return found

    async def _generate(self, replica: Replica, body: dict[str, Any]) -> Any:
        asked = body["sampling_params"]
        most_bytes = wire.MOST_BYTES + TOKEN_BYTES * asked["n"] * asked["max_tokens"]
        call = wire.post(self.client, f"{replica.url}{PATH}", body, most_bytes=most_bytes)
        try:
            return await unless_gone(replica, call)
        except Refused as error:
            if error.status != 404:
                raise
            raise self._restarted(replica, error) from None

    def _restarted(self, replica: Replica, error: Exception) -> Failed:
        """For a server that has lost the weights: it is verified again before it is used."""
        self.leave_out(replica, f"it was restarted, or lost its weights ({error})")
        return Failed(str(error))

    async def _least_busy(self, failed: set[str]) -> Replica:
        """A server that has not failed the request, if there is one. Raises Stopped."""
        while not (usable := self.usable):
            self._require_hope()
            await asyncio.sleep(0.05)
        self.since = None
        return min(usable, key=lambda replica: (replica.url in failed, replica.busy))

    def _require_hope(self) -> None:
        """Raises Stopped when no server has been alive for `patience` seconds, or the one that the run started has ended."""
        if self.alive:  # one that came back waits for its verification
            self.since = None
            return
        if reason := self.fatal():
            raise Stopped(reason)
        self.since = self.since or time.monotonic()
        if (waited := time.monotonic() - self.since) > self.patience:
            reasons = "; ".join(f"{replica.url}: {replica.reason}" for replica in self.replicas)
            raise Stopped(
                f"engine=vllm: no server could be used for {waited:.0f} s ({reasons}); start one again and type the same"
                " command to continue"
            )

    async def on_all(self, work: Callable[[Replica], Awaitable[T]]) -> dict[str, T]:
        """What `work` returns for each living server, by address; a server on which it fails is left out.

        Waits while none is alive. Raises Stopped after `patience` or several failures, or when a server refuses.
        """
        last: Exception | None = None

        async def one(replica: Replica) -> T | None:
            nonlocal last
            try:
                return await work(replica)
            except (Failed, Unusable) as error:
                last = error
                self.leave_out(replica, error)
                return None
            except Refused as error:
                raise Stopped(f"engine=vllm: {replica.url}: {error}") from None

        for _ in range(ATTEMPTS):
            while not (living := self.alive):
                self._require_hope()
                await asyncio.sleep(0.05)
            found = await asyncio.gather(*(one(replica) for replica in living))
            if done := {r.url: value for r, value in zip(living, found, strict=True) if r.alive}:
                return done  # type: ignore[return-value]
        raise Stopped(f"engine=vllm: no server could be used in {ATTEMPTS} tries, the last with: {last}")

    async def _is_healthy(self, replica: Replica) -> bool:
        """Whether it goes on after a failure; an engine that dies answers for a moment."""
        for _ in range(3):
            if not await wire.is_healthy(self.client, replica.url):
                return False
            await asyncio.sleep(0.2)
        return True

    async def _watch(self) -> None:
        """Takes dead servers back when they answer, and leaves out busy ones that no longer do."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.gather(*(self._look(replica) for replica in self.replicas))

    async def _look(self, replica: Replica) -> None:
        if not replica.alive:
            await self._look_again(replica)
        elif not replica.busy:
            replica.moved = time.monotonic()
        elif time.monotonic() - replica.looked > self.look_seconds:
            replica.looked = time.monotonic()
            await self._check(replica)

    async def _look_again(self, replica: Replica) -> None:
        """Takes a server back that answers, and has moved if it was stalled."""
        try:
            if replica.stalled and await wire.tokens_of(self.client, replica.url) in (None, replica.tokens):
                return
            await self._meet(replica)
            log.info("%s answers again", replica.url)
        except (Failed, Refused) as error:
            replica.reason = str(error)
        except UserError as error:  # it came back as another server
            if str(error) != replica.reason:
                log.warning("%s", error)
            replica.reason = str(error)

    async def _check(self, replica: Replica) -> None:
        """Leaves out a busy server that does not answer, or that answers but has processed nothing for `patience` seconds."""
        replica.failures = 0 if await wire.is_healthy(self.client, replica.url) else replica.failures + 1
        if replica.failures >= UNHEALTHY:
            self.leave_out(replica, "it does not answer health checks")
            return
        tokens = await wire.tokens_of(self.client, replica.url)
        if tokens is None and replica.tokens is None:  # it has never counted them
            replica.moved = time.monotonic()
        elif tokens not in (None, replica.tokens):
            replica.tokens, replica.moved = tokens, time.monotonic()
        elif (waited := time.monotonic() - replica.moved) > self.patience:
            replica.stalled = True
            self.leave_out(replica, f"it has processed no token of its requests for {waited:.0f} s")

    async def close(self) -> None:
        """Leaves the servers as they were found, as far as they answer."""
        if self.client is not None:
            await asyncio.gather(*(self.weights.leave(self.client, replica.url) for replica in self.alive))
            await self.client.aclose()
