"""Rollouts of a step's problems, sampled at that step or, where one call is enough, requested earlier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from renderers.base import Renderer
from rl.engines.base import Arrived, Sampler, SamplingParams
from rl.errors import Stopped
from rl.rollouts import Completion, End, Problem, Rollout, Turn
from rl.seeds import derived_seed, seed_everything
from rl.step import PendingBatch, Run
from rl.task import Task
from rl.thinking import sample_with_thinking_budget
from rl.trajectories import sample_trajectories


def collect(run: Run, step: int) -> tuple[list[Rollout], int]:
    """[P x G] rollouts of P problems, each with G completions from the current policy, and their token budget.

    A remote sampler may be asked for later steps' batches ahead of time, and may drop a problem.
    """
    seed_everything(derived_seed(run.blueprint.seed, "step", step))
    if not run.task.one_call:
        params = sampling_params(run, step)
        rollouts = roll_out(
            run.engine.sampler, run.task, batch_of(run, step), run.blueprint.group_size, params
        )
        return [replace(rollout, version=step - 1) for rollout in rollouts], params.max_tokens
    for ahead in range(step, min(step + (run.engine.sampler.max_lag or 0), run.total_steps) + 1):
        if ahead not in run.pending:
            run.pending[ahead] = request(run, ahead, version=step - 1)
    batch = run.pending.pop(step)
    rollouts = rollouts_from(
        batch.problems, batch.prompts, require_any(batch.completions.result()), run.renderer
    )
    return [replace(rollout, version=batch.version) for rollout in rollouts], batch.budget


def request(run: Run, step: int, version: int) -> PendingBatch:
    """Requests the batch of `step` without waiting for it."""
    problems = batch_of(run, step)
    prompts = run.task.prompts(problems)
    params = sampling_params(run, step)
    completions = run.engine.sampler.submit(
        prompts, run.blueprint.group_size, params, grading_ahead(run, problems)
    )
    return PendingBatch(problems, prompts, completions, params.max_tokens, version)


def batch_of(run: Run, step: int) -> list[Problem]:
    """The P problems of a step."""
    return run.problems.batch(step - 1, run.blueprint.batch_size, run.blueprint.seed)


def sampling_params(run: Run, step: int) -> SamplingParams:
    """How a step's batch is sampled."""
    return SamplingParams(
        max_tokens=run.budget.tokens,
        temperature=run.blueprint.temperature,
        stop_ids=run.renderer.stop_ids,
        seed=derived_seed(run.blueprint.seed, "train", step),
        support=run.blueprint.sampling,
        entropies=run.blueprint.engine.has_entropies or run.blueprint.loss.needs_entropies,
    )


def roll_out(
    sampler: Sampler,
    task: Task,
    problems: Sequence[Problem],
    n: int,
    params: SamplingParams,
    arrived: Arrived | None = None,
) -> list[Rollout]:
    """[P x n] ungraded rollouts, grouped by problem. arrived: see `Sampler`; called only where one call is enough.

    Raises Stopped when there are none at all.
    """
    if task.one_call:
        prompts = task.prompts(problems)
        sampled = sampler.sample(prompts, n, params, arrived)
        return rollouts_from(problems, prompts, require_any(sampled), task.renderer)
    if rollouts := sample_in_calls(sampler, task, problems, n, params):
        return rollouts
    raise nothing_of(problems)


def sample_in_calls(
    sampler: Sampler, task: Task, problems: Sequence[Problem], n: int, params: SamplingParams
) -> list[Rollout]:
    """[P x n] ungraded rollouts that need several calls of the sampler; none for a problem whose sampling failed."""
    if task.thinking_tokens is None:
        return sample_trajectories(sampler, task, problems, n, params)
    return sample_with_thinking_budget(sampler, task, problems, n, params)


def grading_ahead(run: Run, problems: Sequence[Problem]) -> Arrived:
    """A callback that grades completions while the rest of their batch is still being sampled."""

    def arrived(p: int, completions: Sequence[Completion]) -> None:
        run.blueprint.rewards.expect([one_turn(problems[p], p, [], c, run.renderer) for c in completions])

    return arrived


def rollouts_from(
    problems: Sequence[Problem],
    prompts: Sequence[list[int]],
    sampled: Sequence[Sequence[Completion]],
    renderer: Renderer,
) -> list[Rollout]:
    """[P x G] ungraded rollouts of completions [P][G], grouped by problem; none for a problem without completions."""
    return [
        one_turn(problem, group, prompt, completion, renderer)
        for group, (problem, prompt, completions) in enumerate(zip(problems, prompts, sampled, strict=True))
        for completion in completions
    ]


def one_turn(
    problem: Problem, group: int, prompt: list[int], completion: Completion, renderer: Renderer
) -> Rollout:
    """The ungraded rollout of one completion."""
    cut = renderer.cut(completion)
    ended: End = "budget" if cut.stop_reason == "length" else "answered"
    return Rollout(problem, group, [Turn(prompt, cut, renderer.parse(cut))], ended)


def require_any(sampled: list[list[Completion]]) -> list[list[Completion]]:
    """The completions [P][n]. Raises Stopped when there are none at all."""
    if not any(sampled):
        raise nothing_of(sampled)
    return sampled


def nothing_of(problems: Sequence[Any]) -> Stopped:
    return Stopped(f"no completions for any of the {len(problems)} problems; see the log for the reasons")
