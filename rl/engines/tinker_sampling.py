"""Completions from a Tinker service: all groups of a batch in flight at once, retried, dropped when they cannot be had."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rl.engines.base import Arrived, SamplingParams
from rl.engines.tinker_service import finished, reason, retrying
from rl.prices import Tokens
from rl.rollouts import Completion

log = logging.getLogger("tanka")


@dataclass
class Ledger:
    """What a run has paid for, and how many groups it did not get since the last step was logged."""

    tokens: Tokens = field(default_factory=Tokens)
    dropped_groups: int = 0


@dataclass
class AskedGroups:
    """The completions of P prompts, asked for when this is made, of one published policy."""

    sampler: Any
    prompts: Sequence[Sequence[int]]
    n: int
    params: SamplingParams
    attempts: int
    ledger: Ledger
    arrived: Arrived | None = None

    def __post_init__(self) -> None:
        self.calls = [self._ask(p) for p in range(len(self.prompts))]

    def _ask(self, p: int) -> Any:
        import tinker

        return self.sampler.sample(
            prompt=tinker.ModelInput.from_ints(list(self.prompts[p])),
            num_samples=self.n,
            sampling_params=tinker.SamplingParams(
                max_tokens=self.params.max_tokens,
                temperature=self.params.temperature,
                seed=(self.params.seed + p) % 2**31,
                stop=sorted(self.params.stop_ids),
            ),
        )

    def result(self) -> list[list[Completion]]:
        return self._groups

    @functools.cached_property
    def _groups(self) -> list[list[Completion]]:
        return [self._group(p) for p in range(len(self.prompts))]

    def _group(self, p: int) -> list[Completion]:
        """The group's n completions; none when every attempt failed: nothing is rewarded for a fault of the service."""
        try:
            for attempt in retrying(self.attempts, lambda error: isinstance(error, Exception)):
                with attempt:
                    if attempt.retry_state.attempt_number > 1:
                        self.calls[p] = self._ask(p)
                    group = completions_of(finished(self.calls[p]), self.n)
        except Exception as error:  # the SDK, its HTTP clients and its futures raise many kinds
            log.warning("a group of completions is dropped: %s", reason(error))
            self.ledger.dropped_groups += 1
            return []
        self.ledger.tokens += Tokens(self.n * len(self.prompts[p]), sum(len(c.tokens) for c in group))
        if self.arrived:
            self.arrived(p, group)
        return group


def completions_of(response: Any, n: int) -> list[Completion]:
    """A response's n completions. Raises ValueError when there are fewer, or a token has no log-probability."""
    found = [
        Completion(list(s.tokens), list(s.logprobs or []), "length" if s.stop_reason == "length" else "stop")
        for s in response.sequences
    ]
    if len(found) != n:
        raise ValueError(f"{n} completions were asked for, {len(found)} came")
    if not all(c.tokens and len(c.tokens) == len(c.logprobs) for c in found):
        raise ValueError("a completion came without tokens or without their log-probabilities")
    return found
