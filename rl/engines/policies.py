"""Policies that are compared by sampling: what `EngineConfig.policies` returns. Imports nothing heavy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rl.engines.base import Sampler


class Policies(ABC):
    """`base`, and `trained` if there are trained weights."""

    @property
    @abstractmethod
    def sides(self) -> Sequence[str]:
        """Their names, in order."""

    @abstractmethod
    def sampler(self, side: str) -> Sampler:
        """One of them, as a sampler; valid until another one is asked for."""

    def close(self) -> None:
        """Frees what they use."""
