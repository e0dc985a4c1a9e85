"""The contract of an environment. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from renderers.tool_calls import Call
from rl.errors import UserError, require
from rl.rollouts import Message, Parsed, Problem

FindCalls = Callable[[Parsed], list[Call]]


class Environment:
    """What one trajectory acts in; made afresh for each trajectory.

    Methods may be called from any thread, one call at a time. `counts` is the trajectory's counters by name: each
    becomes a metric `env/<name>`, averaged over trajectories.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def start(self, problem: Problem) -> str:
        """Begins the trajectory. Returns text to append to the question; "" for none."""
        return ""

    def step(self, parsed: Parsed) -> list[Message] | None:
        """The messages that answer the model's turn (role `tool` or `user`); None when the trajectory is over.

        Called only for turns that the model ended itself. A fault of the model, such as a malformed call, is a
        message to it, never an exception.
        """
        raise NotImplementedError

    def reward(self) -> float | None:
        """The environment's own reward, once the trajectory is over; None leaves it to the reward set."""
        return None

    def close(self) -> None:
        """Frees what the trajectory holds. Called once, whatever ended the trajectory."""

    def count(self, name: str) -> None:
        """Adds 1 to a counter."""
        self.counts[name] = self.counts.get(name, 0) + 1


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """The `environment` node of a blueprint; each environment is a subclass with its own options.

    max_turns: turns of the model, at most. max_context: prompt, sampled tokens and observations together, at most;
    null leaves only the model's own context. single_turn: one turn and no observations.
    """

    name: str
    max_turns: int = 10
    max_context: int | None = None
    single_turn: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(self.max_turns >= 1, "environment.max_turns", self.max_turns, "a positive integer", 10)
        if self.max_context is not None and self.max_context < 2:
            raise UserError(
                f"environment.max_context={self.max_context}: expected a number of tokens, or null;"
                " e.g. environment.max_context=8192"
            )

    def check(self) -> None:
        """Raises UserError when the environment cannot run here, e.g. for lack of a package. Loads nothing heavy."""

    @property
    def rewards_itself(self) -> bool:
        """Whether `Environment.reward` gives a number. Raises UserError like `check`."""
        return False

    @property
    def tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools, as transformers' get_json_schema writes them; [] without tools."""
        return []

    def make(self, find_calls: FindCalls) -> Environment:
        """A new environment for one trajectory. find_calls: `Renderer.calls`, which reads the calls of a turn."""
        raise NotImplementedError
