"""Sampling from the adapter on a Tinker service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl.engines.base import Arrived, PendingCompletions, Sampler, SamplingParams
from rl.engines.tinker.learner import TinkerLearner
from rl.engines.tinker.ledger import ceiling
from rl.engines.tinker.options import TinkerOptions
from rl.engines.tinker.pending import PendingGroups
from rl.rollouts import Completion


class TinkerSampler(Sampler):
    """Samples from the last published copy of the adapter. passes: training or scoring passes over each row."""

    concurrent = True

    def __init__(self, options: TinkerOptions, learner: TinkerLearner, passes: int) -> None:
        self.learner, self.ledger, self.passes = learner, learner.ledger, passes
        self.max_lag, self.attempts = options.max_lag, options.attempts
        self.published: Any = None
        self.version = -1  # the learner's version when last published

    def publish(self) -> None:
        if self.version != self.learner.version:
            self.published = self.learner.service.sampler(self.learner.adapter)
            self.version = self.learner.version

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        return self._request(prompts, n, params, passes=0, arrived=arrived).result()

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> PendingCompletions:
        return self._request(prompts, n, params, self.passes, arrived)

    def _request(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        passes: int,
        arrived: Arrived | None,
    ) -> PendingGroups:
        """Requests completions whose rows get `passes` passes. Raises Stopped when they could exceed `max_usd`."""
        with self.ledger.lock:
            self.ledger.require_affordable(ceiling(prompts, n, params.max_tokens, passes))
            if self.published is None:
                self.publish()
            pending = PendingGroups(
                self.published, prompts, n, params, self.attempts, self.ledger, passes, arrived
            )
            self.ledger.pending.append(pending)
        return pending

    def metrics(self) -> dict[str, float]:
        return self.ledger.metrics()

    def recall(self, metrics: Mapping[str, Any]) -> None:
        self.ledger.recall(metrics)
