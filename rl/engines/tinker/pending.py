"""Completions from a Tinker service: all groups of a batch are requested at once, retried, and dropped on failure."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rl import progress
from rl.engines.base import Arrived, SamplingParams
from rl.engines.prices import Tokens
from rl.engines.tinker.calls import advice, finished, is_done, reason, retrying
from rl.engines.tinker.ledger import Ledger, ceiling
from rl.errors import UserError
from rl.rollouts import Completion

log = logging.getLogger("tanka")


class Missing(Exception):
    """Some groups failed. errors: the reasons, by prompt index."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        super().__init__(f"{len(errors)} groups failed")
        self.errors = errors


@dataclass
class PendingGroups:
    """Completions of P prompts from one published policy, requested on construction.

    passes: how often their rows will be trained or scored. taken: whether the result was read.
    """

    sampler: Any
    prompts: Sequence[Sequence[int]]
    n: int
    params: SamplingParams
    attempts: int
    ledger: Ledger
    passes: int = 0
    arrived: Arrived | None = None
    taken: bool = False
    groups: dict[int, list[Completion]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls = {p: self._ask(p) for p in range(len(self.prompts))}

    def _ask(self, p: int) -> Any:
        import tinker

        # Services sample a prompt's i-th completion with seed + i; seeds within a batch must not collide.
        seed = self.params.seeds[p] if self.params.seeds else self.params.seed + p * self.n
        return self.sampler.sample(
            prompt=tinker.ModelInput.from_ints(list(self.prompts[p])),
            num_samples=self.n,
            sampling_params=tinker.SamplingParams(
                max_tokens=self.params.limit(p),
                temperature=self.params.temperature,
                seed=seed % 2**31,
                stop=sorted(self.params.stop_ids),
            ),
        )

    @property
    def unanswered(self) -> Tokens:
        """The most that the unanswered prompts can cost."""
        waiting = list(self.calls)  # at once: another thread may be taking answers
        return ceiling([self.prompts[p] for p in waiting], self.n, self.params.max_tokens)

    @property
    def owed(self) -> Tokens:
        """The most that the batch can still cost, including training."""
        whole = ceiling(self.prompts, self.n, self.params.max_tokens, self.passes)
        return self.unanswered + Tokens(train=whole.train)

    def result(self) -> list[list[Completion]]:
        """Waits for the groups and returns them in prompt order; an empty group where every attempt failed."""
        with progress.task("waiting for completions", self.n * len(self.prompts), "rollouts", self._arrived):
            self.wait()
        self.taken = True
        return [self.groups.get(p, []) for p in range(len(self.prompts))]

    def _arrived(self) -> int:
        """How many completions have come."""
        return self.n * (len(self.groups) + sum(map(is_done, list(self.calls.values()))))

    def wait(self) -> None:
        """Waits until no group is pending. Service failures are retried; a failed group is never scored."""
        try:
            for attempt in retrying(self.attempts, lambda error: isinstance(error, Missing)):
                with attempt:
                    if attempt.retry_state.attempt_number > 1:
                        self.calls = {p: self._ask(p) for p in self.calls}
                    self._take()
        except Missing as missing:
            for error in missing.errors.values():
                log.warning("dropped a group of completions: %s", reason(error))
            self.ledger.drop(len(missing.errors))
            self.calls = {}

    def _take(self) -> None:
        """Collects the pending groups. Raises Missing for those that failed."""
        errors = {}
        for p, call in list(self.calls.items()):
            try:
                found = completions_of(finished(call))
                tokens = sum(len(completion.tokens) for completion in found)
                self.ledger.spend(Tokens(len(found) * len(self.prompts[p]), tokens))
                progress.advance(0, tokens)
                require_whole(found, self.n)
            except UserError:
                raise
            except Exception as error:  # the SDK, its HTTP clients and its futures raise many kinds
                if cure := advice(error):
                    raise UserError(f"engine=tinker: sampling: {reason(error)}{cure}") from error
                errors[p] = error
                continue
            del self.calls[p]
            self.groups[p] = found
            if self.arrived:
                self.arrived(p, found)
        if errors:
            raise Missing(errors)


def completions_of(response: Any) -> list[Completion]:
    """A response's completions."""
    return [
        Completion(list(s.tokens), list(s.logprobs or []), "length" if s.stop_reason == "length" else "stop")
        for s in response.sequences
    ]


def require_whole(found: Sequence[Completion], n: int) -> None:
    """Raises ValueError when there are fewer than n completions, or a token has no log-probability."""
    if len(found) != n:
        raise ValueError(f"{n} completions were requested, {len(found)} came")
    if not all(c.tokens and len(c.tokens) == len(c.logprobs) for c in found):
        raise ValueError("a completion came without tokens or without their log-probabilities")
