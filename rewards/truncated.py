"""`truncated=NAME`: what a completion that the token budget cut teaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Truncated:
    """The rule for cut completions; docs/budget.md has the evidence for and against each.

    zero: graded as it stands, so that a missing answer earns nothing. mask: it does not train, but still counts in N, in
    the lengths and in its group's baseline (the overlong filtering of DAPO, arXiv:2503.14476). scale: a reward above 0
    is multiplied by `factor` (`stop_properly_penalty_coef` of the ProRLv2 recipe in NeMo RL); 0: being cut earns
    nothing even after a right answer.
    """

    name: Literal["zero", "mask", "scale"] = "zero"
    factor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.factor <= 1:
            raise UserError(
                f"truncated.factor={self.factor}: expected a number from 0 (earns nothing) to 1 (no change); e.g."
                " truncated.factor=0.5"
            )

    @property
    def masks(self) -> bool:
        """Whether cut completions do not train."""
        return self.name == "mask"

    def reward(self, reward: float) -> float:
        """What a cut completion earns in place of `reward`."""
        return self.factor * reward if self.name == "scale" and reward > 0 else reward
