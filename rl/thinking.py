"""`thinking_tokens=N`: a separate budget for the reasoning; the answer gets the rest of `max_tokens`.

Sampled in two passes. A reasoning that is still open after N tokens is closed with the renderer's own close tag, and the
answer is sampled after it: the separate budgets of Elastic Reasoning (arXiv:2505.05315), the upper limit of budget forcing
(s1, arXiv:2501.19393). Elastic Reasoning gives the answer a fixed budget; here it also gets what the reasoning left over.

The forced tokens are the second turn's `prompt_tokens`. They were not sampled, so they have no log-probability and no
coefficient, and count towards no budget; the answer is sampled after them, so its log-probabilities are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from renderers.base import Renderer
from rl.engines.base import Sampler, SamplingParams
from rl.errors import UserError
from rl.rollouts import Completion, Problem, Rollout, Turn
from rl.seeds import derived_seed
from rl.task import Task


@dataclass
class Attempt:
    """A rollout after the first pass. number: in its batch, with n for each problem.

    forced: the close tag, if the reasoning was open at its budget. rest: the second pass's completion, where there is one.
    """

    problem: Problem
    group: int
    number: int
    prompt: list[int]
    first: Completion
    forced: list[int]
    rest: Completion | None = None
    failed: bool = False

    @property
    def history(self) -> list[int]:
        """The second pass's prompt."""
        return [*self.prompt, *self.first.tokens, *self.forced]

    def rollout(self, renderer: Renderer) -> Rollout:
        """Two turns if the reasoning was closed by force; otherwise one, both passes joined."""
        if self.rest is not None and self.forced:
            thinking = Turn(self.prompt, self.first, renderer.parse(self.first))
            turns = [thinking, forced_turn(thinking, self.forced, renderer.cut(self.rest), renderer)]
        else:
            whole = self.first if self.rest is None else renderer.cut(joined(self.first, self.rest))
            turns = [Turn(self.prompt, whole, renderer.parse(whole))]
        cut = turns[-1].completion.stop_reason == "length"
        return Rollout(self.problem, self.group, turns, "budget" if cut else "answered")


def sample_with_thinking_budget(
    sampler: Sampler, task: Task, problems: Sequence[Problem], n: int, params: SamplingParams
) -> list[Rollout]:
    """[P x n] ungraded rollouts, grouped by problem; none for a problem with a rollout whose sampling failed.

    params.max_tokens: reasoning and answer together, in sampled tokens. Raises UserError when a prompt, the budget and the
    close tag exceed the context.
    """
    assert task.thinking_tokens is not None
    prompts = task.prompts(problems)
    require_room(task, prompts, params.max_tokens)
    attempts = first_pass(sampler, task, problems, prompts, n, params)
    going_on = [attempt for attempt in attempts if attempt.first.stop_reason == "length"]
    if going_on:
        left = params.max_tokens - task.thinking_tokens
        seeds = [derived_seed(params.seed, "answer", attempt.number) for attempt in going_on]
        asked = replace(params, max_tokens=left, limits=[left] * len(going_on), seeds=seeds)
        sampled = sampler.sample([attempt.history for attempt in going_on], 1, asked)
        for attempt, completions in zip(going_on, sampled, strict=True):
            attempt.rest, attempt.failed = (completions[0], False) if completions else (None, True)
    failed = {attempt.group for attempt in attempts if attempt.failed}
    return [attempt.rollout(task.renderer) for attempt in attempts if attempt.group not in failed]


def first_pass(
    sampler: Sampler,
    task: Task,
    problems: Sequence[Problem],
    prompts: Sequence[list[int]],
    n: int,
    params: SamplingParams,
) -> list[Attempt]:
    """The first `thinking_tokens` tokens of each rollout."""
    assert task.thinking_tokens is not None
    limit, renderer = task.thinking_tokens, task.renderer
    asked = replace(params, max_tokens=limit, limits=[limit] * len(prompts))
    attempts = []
    for group, completions in enumerate(sampler.sample(prompts, n, asked)):
        for i, completion in enumerate(completions):
            first = renderer.cut(completion)
            open_at_budget = first.stop_reason == "length" and renderer.parse(first).unfinished
            forced = list(renderer.think_close) if open_at_budget else []
            attempts.append(Attempt(problems[group], group, group * n + i, prompts[group], first, forced))
    return attempts


def require_room(task: Task, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
    """Raises UserError when the longest prompt, the budget and the close tag exceed the context."""
    longest = max(map(len, prompts)) + len(task.renderer.think_close)
    if longest + max_tokens > task.max_context:
        raise UserError(
            f"max_tokens={max_tokens}: the longest prompt and the close tag of thinking_tokens={task.thinking_tokens} have"
            f" {longest} tokens, and the model's context is {task.max_context}; type a budget of at most"
            f" {max(1, int(task.max_context) - longest)}, or a smaller data.max_prompt_tokens"
        )


def forced_turn(thinking: Turn, forced: list[int], answer: Completion, renderer: Renderer) -> Turn:
    """The turn after a reasoning that was closed by force; its `parsed` is of both turns and the tag between them."""
    tag = Completion(forced, [0.0] * len(forced), "length")
    whole = joined(joined(thinking.completion, tag), answer)
    return Turn(forced, answer, renderer.parse(whole), forced=True)


def joined(first: Completion, second: Completion) -> Completion:
    """Both completions as one; it ends as the second does."""
    entropies = None
    if first.entropies is not None and second.entropies is not None:
        entropies = [*first.entropies, *second.entropies]
    return Completion(
        [*first.tokens, *second.tokens],
        [*first.logprobs, *second.logprobs],
        second.stop_reason,
        entropies,
    )
