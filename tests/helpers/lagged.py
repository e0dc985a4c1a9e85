"""A small stand-in for a server: engine=local whose sampler has a copy of the weights and serves many calls at once.

`engine._target_=tests.helpers.lagged.LaggedConfig +engine.max_lag=2`, and `+engine.collect=arrival`. Calls that wait are
sampled together, and each gets its completions when they are finished, while others of the same batch go on. Requests of
later steps (`submit`) are sampled when they are made, so with engine.collect=ordered runs repeat exactly.
"""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from rl.blueprint import Blueprint
from rl.engines.asynchrony import AsyncOptions
from rl.engines.base import Arrived, Engine, Sampler, SamplingParams
from rl.engines.local.config import LocalEngineConfig
from rl.engines.local.engine import LocalSampler, open_engine
from rl.engines.local.precision import autocast
from rl.engines.local.sampler import sample
from rl.rollouts import Completion


@dataclass(frozen=True, kw_only=True)
class LaggedConfig(AsyncOptions, LocalEngineConfig):
    """serves_many: whether the sampler may be called from several threads."""

    serves_many: bool = True
    resumable: ClassVar[frozenset[str]] = LocalEngineConfig.resumable

    def check(self, blueprint: Blueprint) -> None:
        LocalEngineConfig.check(self, blueprint)
        self.check_asynchrony(blueprint)

    def open(self, blueprint: Blueprint, tokenizer: Any) -> Engine:
        engine = open_engine(self, blueprint, tokenizer)
        assert isinstance(engine.sampler, LocalSampler)
        return Engine(LaggedSampler(engine.sampler, self.max_lag, self.serves_many), engine.learner)


@dataclass
class Call:
    """One prompt's n completions that somebody waits for. seed: of this prompt."""

    prompt: Sequence[int]
    n: int
    params: SamplingParams
    limit: int
    seed: int
    found: list[Completion] = field(default_factory=list)
    result: Future[list[Completion]] = field(default_factory=Future)


class LaggedSampler(Sampler):
    """Samples from the weights as they were at the last `publish`."""

    def __init__(self, current: LocalSampler, max_lag: int, concurrent: bool) -> None:
        self.current, self.max_lag, self.concurrent = current, max_lag, concurrent
        self.published: Any = None
        self.calls: queue.Queue[Call | None] = queue.Queue()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def publish(self) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.published = copy.deepcopy(self.current.model).eval()

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        if self.published is None:
            self.publish()
        numbers = torch.Generator().manual_seed(params.seed)
        seeds = params.seeds or torch.randint(2**62, (len(prompts),), generator=numbers).tolist()
        calls = [
            Call(prompt, n, params, params.limit(p), seeds[p]) for p, prompt in enumerate(prompts)
        ]  # the same numbers as LocalSampler draws
        for call in calls:
            self.calls.put(call)
        return [call.result.result() for call in calls]

    def _serve(self) -> None:
        """Samples all calls that wait, together; those that come meanwhile are next."""
        while (first := self.calls.get()) is not None:
            calls = [first]
            while not self.calls.empty():
                if (call := self.calls.get()) is None:
                    return
                calls.append(call)
            for n in {call.n for call in calls}:
                self._sample([call for call in calls if call.n == n])

    def _sample(self, calls: list[Call]) -> None:
        def arrived(p: int, completions: Sequence[Completion]) -> None:
            calls[p].found += completions
            if len(calls[p].found) == calls[p].n:
                calls[p].result.set_result(calls[p].found)

        limits = [call.limit for call in calls]
        params = replace(
            calls[0].params, max_tokens=max(limits), limits=limits, seeds=[call.seed for call in calls]
        )
        try:
            with autocast(self.published.device, self.current.precision.compute):
                sampled = sample(
                    self.published, [call.prompt for call in calls], calls[0].n, params, 4 * 2**30, arrived=arrived
                )  # fmt: skip
            for call, completions in zip(calls, sampled, strict=True):
                if not call.result.done():
                    call.result.set_result(completions)
        except BaseException as error:
            for call in calls:
                if not call.result.done():
                    call.result.set_exception(error)

    def close(self) -> None:
        self.calls.put(None)
        self.thread.join()
        self.current.close()
