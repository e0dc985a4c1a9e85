"""How the model is asked: from a problem to the ids of its prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from environments.base import EnvironmentConfig
from renderers.base import Renderer
from rl.errors import UserError
from rl.models.config import ModelConfig
from rl.models.loading import context_of
from rl.rollouts import Message, Problem


@dataclass(frozen=True)
class Task:
    """The conversation that asks a problem, the chat format that renders it, and the environment that answers the model.

    context: the most tokens that the model can read and write, prompt included; None: unknown.
    thinking_tokens: the reasoning's own budget (rl/thinking.py); None: it shares `max_tokens` with the answer.
    """

    messages: Callable[[Problem], list[Message]]
    renderer: Renderer
    environment: EnvironmentConfig
    context: int | None = None
    thinking_tokens: int | None = None

    @property
    def one_call(self) -> bool:
        """Whether one call of a sampler gives complete rollouts: no environment's turns, no budget for the reasoning."""
        return self.environment.single_turn and self.thinking_tokens is None

    @property
    def forced_tokens(self) -> int:
        """Tokens of a rollout, at most, that are neither its prompt nor sampled: a forced close tag."""
        return 0 if self.thinking_tokens is None else len(self.renderer.think_close)

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
    thinking_tokens: int | None = None,
) -> Task:
    """The task of a model. Raises UserError when its chat format has no reasoning that `thinking_tokens` could limit.

    Only rollouts of several calls need the model's context: one call that exceeds it is the sampler's error.
    """
    require_reasoning(renderer, thinking_tokens)
    task = Task(messages, renderer, environment, None, thinking_tokens)
    return task if task.one_call else replace(task, context=context_of(model))


def require_reasoning(renderer: Renderer, thinking_tokens: int | None) -> None:
    """Raises UserError when `thinking_tokens` is given for a chat format without reasoning."""
    if thinking_tokens is not None and not renderer.think_close:
        raise UserError(
            f"thinking_tokens={thinking_tokens}: renderer={renderer.name} has no reasoning to close here; type"
            " thinking_tokens=null, or a model and a renderer that think, such as model=qwen3-0.6b renderer=qwen3"
        )
