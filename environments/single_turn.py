"""`environment=single_turn`: one completion answers the question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from environments.base import Environment, EnvironmentConfig, FindCalls
from rl.errors import UserError
from rl.rollouts import Message, Parsed


class SingleTurn(Environment):
    """The model's first turn is its answer."""

    def step(self, parsed: Parsed) -> list[Message] | None:
        return None


@dataclass(frozen=True, kw_only=True)
class SingleTurnConfig(EnvironmentConfig):
    """See EnvironmentConfig. The only limits are `max_tokens` and the model's context."""

    name: str = "single_turn"
    max_turns: int = 1
    single_turn: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for key, default in (("max_turns", 1), ("max_context", None)):
            if (value := getattr(self, key)) != default:
                raise UserError(
                    f"environment.{key}={value}: environment=single_turn has one turn; leave it out, or choose another"
                    " environment"
                )

    def make(self, find_calls: FindCalls) -> Environment:
        return SingleTurn()
