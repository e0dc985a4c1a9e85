"""Tokens that a run has paid a Tinker service for, and what its pending requests can still cost."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Any, Protocol

from rl.engines.prices import Prices, Tokens, batch_tokens
from rl.errors import Stopped


class Owing(Protocol):
    """Pending completions. taken: whether their result was read.

    unanswered, owed: the most they can still cost, without and with training on them.
    """

    taken: bool

    @property
    def unanswered(self) -> Tokens: ...

    @property
    def owed(self) -> Tokens: ...

    def wait(self) -> None: ...


@dataclass
class Ledger:
    """Tokens paid for so far, pending requests, and groups dropped since the last logged step.

    prices: None when unknown. max_usd: the run stops before it would cost more; None: no limit.
    """

    prices: Prices | None = None
    max_usd: float | None = None
    tokens: Tokens = field(default_factory=Tokens)
    dropped_groups: int = 0
    pending: list[Owing] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def spend(self, tokens: Tokens) -> None:
        """Counts tokens paid for; may be called from several threads."""
        with self.lock:
            self.tokens += tokens

    def drop(self, groups: int) -> None:
        """Counts dropped groups; may be called from several threads."""
        with self.lock:
            self.dropped_groups += groups

    def require_affordable(self, batch: Tokens) -> None:
        """Raises Stopped if this batch and the pending ones could exceed `max_usd` at their longest."""
        self.pending = [each for each in self.pending if not each.taken]
        if self.max_usd is None or self.prices is None:
            return
        most = sum((each.owed for each in self.pending), self.tokens + batch)
        if (cost := most.usd(self.prices)) > self.max_usd:
            raise Stopped(
                f"engine.max_usd={self.max_usd}: {self.tokens.usd(self.prices):.2g} USD are spent, and the next batch"
                f" could make it {cost:.2g}; to continue, type a larger engine.max_usd with this run_dir"
            )

    def committed(self) -> Tokens:
        """Tokens paid for, plus those of pending requests: these will be charged, and requested again on resume."""
        return sum((each.unanswered for each in self.pending), self.tokens)

    def wait(self) -> None:
        """Waits until no request is pending."""
        for each in self.pending:
            each.wait()

    def metrics(self) -> dict[str, float]:
        """`dropped_groups` since the last call, and `cost/*` since the run began."""
        with self.lock:
            dropped, self.dropped_groups = self.dropped_groups, 0
        cost = {"cost/usd": self.tokens.usd(self.prices)} if self.prices else {}
        tokens = {f"cost/{name}_tokens": count for name, count in asdict(self.tokens).items()}
        return {"dropped_groups": dropped, **tokens, **cost}

    def recall(self, metrics: Mapping[str, Any]) -> None:
        """Restores the spending in the run's last metrics, if it is more than the checkpoint's."""
        spent = {field.name: metrics.get(f"cost/{field.name}_tokens") or 0 for field in fields(Tokens)}
        self.tokens = max(self.tokens, Tokens(**spent), key=lambda tokens: sum(astuple(tokens)))


def ceiling(prompts: Sequence[Sequence[int]], n: int, max_tokens: int, passes: int = 0) -> Tokens:
    """The most tokens that n completions per prompt, and `passes` passes over their rows, can cost."""
    return batch_tokens(n * sum(map(len, prompts)), n * max_tokens * len(prompts), passes)
