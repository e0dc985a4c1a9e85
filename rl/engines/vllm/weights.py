"""How published weights reach a server: adapters by name, full weights by reloading. All methods run on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.engines.vllm.probe import LOAD, UNLOAD, Facts
from rl.engines.vllm.wire import CONTROL_SECONDS, Failed, Refused, brief, get, post
from rl.errors import Stopped

if TYPE_CHECKING:
    import httpx

STARTED = "default"  # vLLM's name for the weights that a server was started with


@dataclass(eq=False)
class Version:
    """Published weights. name: unique among all runs. folder: where they are; None: those that servers were started with.

    users: requests that will sample from them; counted from several threads.
    """

    name: str
    folder: Path | None
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, users: int) -> None:
        with self.lock:
            self.users += users


class Weights(ABC):
    """Which weights each server holds, by address."""

    async def greet(self, client: httpx.AsyncClient, url: str, facts: Facts) -> None:
        """Called when a server (again) answers."""

    @abstractmethod
    async def ensure(self, client: httpx.AsyncClient, url: str, facts: Facts, version: Version) -> str:
        """Makes a server ready to sample from `version`, and returns its name in requests. Raises Failed and Refused."""

    @abstractmethod
    def forget(self, url: str) -> None:
        """Called when a server may have lost its weights."""

    def require_ours(self, url: str, answer: Any) -> None:
        """Raises Stopped for completions of other base weights than the server was started with, Failed if unreadable."""
        for version in versions_of(answer):
            if version != STARTED:
                raise Stopped(
                    f"engine=vllm: {url} holds weights {version}, which a run that trained all weights has left there;"
                    " restart that server and type the same command"
                )

    async def retire(self, client: httpx.AsyncClient, urls: list[str], version: Version) -> None:
        """Deletes a version that nobody samples from. urls: the servers that answer."""

    async def leave(self, client: httpx.AsyncClient, url: str) -> None:
        """Called for each server that answers when the run ends."""


class Served(Weights):
    """The weights that the servers were started with."""

    async def ensure(self, client: httpx.AsyncClient, url: str, facts: Facts, version: Version) -> str:
        return facts.name

    def forget(self, url: str) -> None:
        pass


class Adapters(Weights):
    """LoRA adapters. prefix: of the names of all adapters of this run, at this start and earlier ones."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.loaded: dict[str, set[str]] = {}
        self.loading: dict[tuple[str, str], asyncio.Lock] = {}

    async def greet(self, client: httpx.AsyncClient, url: str, facts: Facts) -> None:
        """Unloads what an earlier start of this run left: a name whose folder is gone ends the server when asked for."""
        known = self.loaded.setdefault(url, set())
        models = await get(client, f"{url}/v1/models")
        try:
            names = {str(model["id"]) for model in models["data"]}
        except (LookupError, TypeError):
            raise Failed("it does not list its models as vLLM does") from None
        for name in sorted(names):
            if self.prefix and name.startswith(self.prefix) and name not in known:
                await unload(client, url, name)

    async def ensure(self, client: httpx.AsyncClient, url: str, facts: Facts, version: Version) -> str:
        if version.folder is None:
            return facts.name
        lock = self.loading.setdefault((url, version.name), asyncio.Lock())
        async with lock:
            if version.name not in self.loaded.setdefault(url, set()):
                body = {"lora_name": version.name, "lora_path": str(version.folder)}
                try:
                    await post(client, f"{url}{LOAD}", body, CONTROL_SECONDS)
                except Refused as error:
                    if "already been loaded" not in str(error):
                        raise Stopped(
                            f"engine=vllm: {url} cannot load the adapter in {version.folder}: {error}; a server on another"
                            " machine must see this folder (engine.weights_dir=SHARED_FOLDER)"
                        ) from None
                self.loaded.setdefault(url, set()).add(version.name)  # it may have been forgotten meanwhile
        return version.name

    def forget(self, url: str) -> None:
        self.loaded.pop(url, None)

    async def retire(self, client: httpx.AsyncClient, urls: list[str], version: Version) -> None:
        for url in urls:
            if version.name in self.loaded.get(url, ()):
                await unload(client, url, version.name)
                self.loaded.get(url, set()).discard(version.name)  # it may have been forgotten meanwhile
        self.loading = {key: lock for key, lock in self.loading.items() if key[1] != version.name}
        delete(version.folder)

    async def leave(self, client: httpx.AsyncClient, url: str) -> None:
        for name in sorted(self.loaded.get(url, ())):
            await unload(client, url, name)


async def unload(client: httpx.AsyncClient, url: str, name: str) -> None:
    with contextlib.suppress(Failed, Refused):  # it has lost the name already, or is gone
        await post(client, f"{url}{UNLOAD}", {"lora_name": name}, CONTROL_SECONDS)


class Reloaded(Weights):
    """Full weights, read again by each server from the newest version's folder.

    prefix: of the names of this start's versions. mode: of /pause: `wait` for completions in flight, or `keep` them, to go
    on with the new weights. newest: what servers hold, or load next.
    """

    def __init__(self, prefix: str, mode: str) -> None:
        self.mode, self.prefix = mode, prefix
        self.held: dict[str, str] = {}  # the version of each server
        self.locks: dict[str, asyncio.Lock] = {}
        self.newest: Version | None = None

    async def ensure(self, client: httpx.AsyncClient, url: str, facts: Facts, version: Version) -> str:
        """Also for an older version, in flight with a lag: the server holds the newest one, which then answers."""
        wanted = self.newest or version
        async with self.locks.setdefault(url, asyncio.Lock()):
            if self.held.get(url) != wanted.name:
                await self._swap(client, url, wanted)
                self.held[url] = wanted.name
        return facts.name

    async def _swap(self, client: httpx.AsyncClient, url: str, version: Version) -> None:
        if before := self.held.get(url):
            info = await get(client, f"{url}/weight_info")
            found = brief(info.get("weight_version")) if isinstance(info, dict) else "unknown"
            if found not in (before, STARTED):
                raise Stopped(
                    f"engine=vllm: {url} holds weights {found}, not this run's {before}; another run uses it, or"
                    " engine.servers names it twice; give each run servers of its own and type the same command to continue"
                )
        await post(client, f"{url}/pause?mode={self.mode}", None, CONTROL_SECONDS)
        try:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(version.folder)}}
            try:
                await post(client, f"{url}/collective_rpc", body, CONTROL_SECONDS)
            except Failed as error:  # the server is broken from here on, whatever its health check says
                raise Stopped(
                    f"engine=vllm: {url} could not reload the weights in {version.folder} ({error}); restart that server; one"
                    " on another machine must see this folder (engine.weights_dir=SHARED_FOLDER)"
                ) from None
            await self._reset_cache(client, url)
            await post(client, f"{url}/update_weight_version", {"new_version": version.name}, CONTROL_SECONDS)
        finally:
            await post(client, f"{url}/resume", None, CONTROL_SECONDS)

    async def _reset_cache(self, client: httpx.AsyncClient, url: str) -> None:
        """Forgets keys and values of the old weights. Raises Stopped when the server does not."""
        running = "?reset_running_requests=true" if self.mode == "keep" else ""
        answer = await post(client, f"{url}/reset_prefix_cache{running}", None, CONTROL_SECONDS)
        if not (isinstance(answer, dict) and answer.get("success")):
            raise Stopped(
                f"engine=vllm: {url} could not reset its prefix cache, which holds states of older weights"
                f" ({brief(answer)}); restart that server and type the same command to continue"
            )

    def forget(self, url: str) -> None:
        self.held.pop(url, None)

    def require_ours(self, url: str, answer: Any) -> None:
        """Raises Failed for the weights that a server restarted between two requests was started with, or for no word on them."""
        for version in versions_of(answer) or {"unknown"}:
            if not version.startswith(self.prefix):
                raise Failed(f"it sampled from weights {version}, which are not this run's")

    async def retire(self, client: httpx.AsyncClient, urls: list[str], version: Version) -> None:
        delete(version.folder)


def versions_of(answer: Any) -> set[str]:
    """The versions of the base weights that an answer's tokens were drawn from; empty: it says nothing. Raises Failed."""
    try:
        spans = [span for choice in answer["choices"] for span in choice.get("weight_versions") or []]
        return {brief(span["version"]) for span in spans}
    except (LookupError, TypeError, AttributeError):
        raise Failed("its weight_versions are not in the form that vLLM 0.32 gives them") from None


def delete(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
