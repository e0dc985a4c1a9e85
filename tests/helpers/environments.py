"""Environments that need no tool calls, so that any model has several turns in them."""

from __future__ import annotations

from dataclasses import dataclass

from environments.base import Environment, EnvironmentConfig, FindCalls
from rl.rollouts import Message, Parsed, Problem


class Nag(Environment):
    """Asks one to four times, depending on what the model wrote; the reward is the share of turns not needed."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.turns = most, 0

    def start(self, problem: Problem) -> str:
        return " Please."

    def step(self, parsed: Parsed) -> list[Message] | None:
        self.turns += 1
        self.count("tool_calls")
        if self.turns >= self.most or sum(map(ord, parsed.raw)) % 4 == 0:
            return None
        return [{"role": "user", "content": f"Turn {self.turns}: {sum(map(ord, parsed.raw)) % 97}?"}]

    def reward(self) -> float:
        return 1 - self.turns / self.most


@dataclass(frozen=True, kw_only=True)
class NagConfig(EnvironmentConfig):
    name: str = "nag"
    most: int = 4

    def make(self, find_calls: FindCalls) -> Environment:
        return Nag(self.most)
