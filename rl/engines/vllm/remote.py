"""A sampler whose completions come from servers, and the completions that were requested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rl import progress
from rl.engines.base import Arrived, PendingCompletions, Sampler, SamplingParams
from rl.engines.vllm.background import Background, wait_for
from rl.engines.vllm.completions import request_of
from rl.engines.vllm.replicas import Replicas
from rl.engines.vllm.server import StartedServer
from rl.engines.vllm.weights import Version
from rl.errors import Stopped
from rl.rollouts import Completion


class RemoteSampler(Sampler):
    """Samples one version of the weights that servers hold. server: one that was started for it, and ends with it."""

    concurrent = True

    def __init__(
        self, replicas: Replicas, version: Version | None, server: StartedServer | None = None
    ) -> None:
        self.replicas, self.version, self.server = replicas, version, server
        self.background = Background()
        if server is not None:
            replicas.fatal = server.ended
        try:
            self.background.run(replicas.open())
        except BaseException:
            self.close()
            raise

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        return self.submit(prompts, n, params, arrived).result()

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> PendingCompletions:
        """See `Sampler`. Raises Stopped when a prompt and its budget exceed a server's context."""
        self.require_context(prompts, params)
        version = self.ready(prompts, params)
        requests = [request_of(prompt, n, params, p) for p, prompt in enumerate(prompts)]
        asked = [self.background.start(self.replicas.ask(request, version)) for request in requests]
        return AskedCompletions(asked, n, self.tend, arrived)

    def ready(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Version:
        """The version to sample from, counted as used by each of the prompts."""
        assert self.version is not None
        self.version.count(len(prompts))
        return self.version

    def tend(self) -> None:
        """Called again and again while completions are waited for."""

    def require_context(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        """A server would cut a completion silently."""
        contexts = [replica.facts.context for replica in self.replicas.replicas if replica.facts is not None]
        needed = max(len(prompt) + params.limit(p) for p, prompt in enumerate(prompts))
        if needed > min(contexts):
            raise Stopped(  # the budget may grow, and a server may come back with a smaller context
                f"max_tokens={params.max_tokens}: a prompt and its budget make {needed} tokens, and the servers' context holds"
                f" {min(contexts)}; type a smaller max_tokens (the widest of the budgets counts), or start them with"
                f" --max-model-len {needed} (engine.flags.max_model_len={needed} for a server that the run starts)"
            )

    def metrics(self) -> dict[str, float]:
        asked_again, self.replicas.asked_again = self.replicas.asked_again, 0
        return {"servers/live": len(self.replicas.usable), "servers/asked_again": asked_again}

    def close(self) -> None:
        try:
            self.background.close(self.replicas.close())
        finally:
            if self.server is not None:
                self.server.close()


@dataclass
class AskedCompletions:
    """Completions of P prompts, one request each. tend: called while they are waited for."""

    asked: Sequence[Future[list[Completion]]]
    n: int
    tend: Callable[[], Any]
    arrived: Arrived | None = None
    told: set[int] = field(default_factory=set)

    def result(self) -> list[list[Completion]]:
        total = self.n * len(self.asked)
        with progress.task("waiting for completions", total, "rollouts", self._count):
            wait_for(self.asked, self._meanwhile)
        self._meanwhile()
        return [each.result() for each in self.asked]

    def _count(self) -> int:
        return self.n * sum(each.done() for each in self.asked)

    def _meanwhile(self) -> None:
        self.tend()
        if self.arrived is not None:
            for p, each in enumerate(self.asked):
                if p not in self.told and each.done() and each.exception() is None:
                    self.told.add(p)
                    self.arrived(p, each.result())
