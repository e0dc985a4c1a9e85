"""Rollouts of a step's problems: sampled at that step, requested earlier, or taken as they arrive."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from renderers.base import Renderer
from rl.arrival import Arrivals, ThreadsSampler
from rl.engines.base import Arrived, Sampler, SamplingParams
from rl.errors import Stopped, UserError
from rl.rollouts import Completion, End, Problem, Rollout, Turn
from rl.seeds import derived_seed, seed_everything
from rl.step import PendingBatch, Run
from rl.task import Task
from rl.thinking import sample_with_thinking_budget
from rl.trajectories import sample_trajectories


def collect(run: Run, step: int) -> tuple[list[Rollout], int]:
    """[P x G] rollouts of P problems, each with G completions from the current policy, and their token budget.

    A remote sampler may be asked for later steps' batches ahead of time, and may drop a problem. With
    engine.collect=arrival they are the first that finished.
    """
    seed_everything(derived_seed(run.blueprint.seed, "step", step))
    if run.arrivals:
        return run.arrivals.take(step)
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


def open_arrivals(run: Run, in_flight: int) -> Arrivals:
    """The rollouts of a run with engine.collect=arrival. in_flight: how many are sampled at the same time."""
    blueprint, sampler = run.blueprint, run.engine.sampler
    if not sampler.concurrent or not sampler.max_lag:
        raise UserError(
            "engine.collect=arrival: this engine's sampler answers one call after another, from the newest weights; type"
            " engine.collect=ordered"
        )
    size = min(blueprint.batch_size, len(run.problems.train))
    batch = functools.lru_cache(maxsize=4)(functools.partial(batch_of, run))

    def sample(number: int, problem: Problem) -> tuple[list[Rollout], int]:
        params = sampling_params(run, number, "arrival")
        own = ThreadsSampler(sampler, arrivals.closed)
        return sample_to_train(own, run.task, [problem], blueprint.group_size, params), params.max_tokens

    arrivals = Arrivals(
        run.directory.path / "arrivals.jsonl",
        run.done,
        lambda number: batch(number // size + 1)[number % size],
        sample,
        size=size,
        group_size=blueprint.group_size,
        going=max(1, in_flight // blueprint.group_size),
        max_lag=sampler.max_lag,
        total_steps=run.total_steps,
    )
    return arrivals


def batch_of(run: Run, step: int) -> list[Problem]:
    """The P problems of a step."""
    return run.problems.batch(step - 1, run.blueprint.batch_size, run.blueprint.seed)


def sampling_params(run: Run, number: int, purpose: str = "train") -> SamplingParams:
    """How a batch is sampled. purpose, number: which random numbers it gets; `train`: those of a step."""
    return SamplingParams(
        max_tokens=run.budget.tokens,
        temperature=run.blueprint.temperature,
        stop_ids=run.renderer.stop_ids,
        seed=derived_seed(run.blueprint.seed, purpose, number),
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


def sample_to_train(
    sampler: Sampler, task: Task, problems: Sequence[Problem], n: int, params: SamplingParams
) -> list[Rollout]:
    """[P x n] ungraded rollouts; none for a problem whose sampling failed.

    Requested as a step's batch is, so that a service counts the cost of training on them too.
    """
    if not task.one_call:
        return sample_in_calls(sampler, task, problems, n, params)
    prompts = task.prompts(problems)
    return rollouts_from(problems, prompts, sampler.submit(prompts, n, params).result(), task.renderer)


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
