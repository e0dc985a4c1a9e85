"""How the model is asked: from a problem to the ids of its prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from environments.base import EnvironmentConfig
from renderers.base import Renderer
from rl.models.config import ModelConfig
from rl.models.loading import context_of
from rl.rollouts import Message, Problem


@dataclass(frozen=True)
class Task:
    """The conversation that asks a problem, the chat format that renders it, and the environment that answers the model.

    context: the most tokens that the model can read and write, prompt included; None: unknown.
    """

    messages: Callable[[Problem], list[Message]]
    renderer: Renderer
    environment: EnvironmentConfig
    context: int | None = None

    def prompt(self, problem: Problem, added: str = "") -> list[int]:
        """The prompt's ids. added: the environment's text at the end of the question."""
        messages = self.messages(problem)
        if added:
            messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + added}]
        if tools := self.environment.tools:
            return self.renderer.prompt(messages, tools)
        return self.renderer.prompt(messages)

    def prompts(self, problems: Sequence[Problem]) -> list[list[int]]:
        """[P] prompts."""
        return [self.prompt(problem) for problem in problems]

    @property
    def max_context(self) -> float:
        """The most tokens of a trajectory's context; inf if there is no limit."""
        limits = [limit for limit in (self.context, self.environment.max_context) if limit is not None]
        return min(limits, default=math.inf)


def open_task(
    messages: Callable[[Problem], list[Message]],
    renderer: Renderer,
    environment: EnvironmentConfig,
    model: ModelConfig,
) -> Task:
    """The task of a model. Only trajectories of several turns need its context: one turn that exceeds it is an error."""
    return Task(messages, renderer, environment, None if environment.single_turn else context_of(model))
