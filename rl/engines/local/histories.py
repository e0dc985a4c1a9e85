"""Keys and values of conversations, kept between two turns so that a history is not computed again."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

States = list[tuple[Tensor, Tensor]]  # each layer's keys and values, [kv_heads, L, head_dim]


@dataclass
class Known:
    """The first `length` tokens of a prompt, which the model has computed before. states: None if they were not kept."""

    length: int = 0
    states: States | None = None

    @property
    def reused(self) -> int:
        return self.length if self.states else 0


@dataclass
class Histories:
    """What the last turn left: tokens of each conversation, and their states while all fit in `max_bytes`.

    computed, needed: tokens of prompts that were computed, and those among them that were not computed before.
    """

    max_bytes: float
    tokens: list[list[int]] = field(default_factory=list)
    states: list[States | None] = field(default_factory=list)
    bytes: float = 0
    computed: int = 0
    needed: int = 0

    def recall(self, prompts: Sequence[Sequence[int]]) -> list[Known]:
        """What is known of each prompt. Forgets the rest: every live conversation is continued at each turn."""
        order = sorted(range(len(self.tokens)), key=self.tokens.__getitem__)
        ranked = [self.tokens[i] for i in order]
        known = []
        for prompt in map(list, prompts):
            found = Known()
            place = bisect(ranked, prompt)
            # Among sorted sequences, a neighbour has the longest common prefix.
            for i in order[max(0, place - 1) : place + 1]:
                # The last token must be computed, for the logits after it.
                shared = min(common(self.tokens[i], prompt), len(prompt) - 1)
                if shared > found.length:
                    found = Known(shared, self.states[i])
            known.append(found)
            self.computed += len(prompt) - found.reused
            self.needed += len(prompt) - found.length
        self.tokens, self.states, self.bytes = [], [], 0
        return known

    def keep(self, tokens: list[int], states: States | None) -> None:
        """Notes that a conversation's tokens were computed, and keeps their states if there is room."""
        size = sum(part.nbytes for pair in states or () for part in pair)
        fits = self.bytes + size <= self.max_bytes
        self.tokens.append(tokens)
        self.states.append(states if fits else None)
        self.bytes += size * fits


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the longest common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
