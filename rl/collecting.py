"""Rollouts of a step's problems, sampled at that step or requested earlier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from renderers.base import Renderer
from rl.engines.base import Arrived, SamplingParams
from rl.errors import Stopped
from rl.rollouts import Completion, Problem, Rollout
from rl.seeds import derived_seed, seed_everything
from rl.step import PendingBatch, Run


def collect(run: Run, step: int) -> tuple[list[Rollout], int]:
    """[P x G] rollouts of P problems, each with G completions from the current policy, and their token budget.

    A remote sampler may be asked for later steps' batches ahead of time, and may drop a problem.
    """
    seed_everything(derived_seed(run.blueprint.seed, "step", step))
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
    prompts = prompts_of(run, problems)
    params = sampling_params(run, step)
    graded = grading_ahead(run, problems, prompts)
    completions = run.engine.sampler.submit(prompts, run.blueprint.group_size, params, graded)
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


def prompts_of(run: Run, problems: Sequence[Problem]) -> list[list[int]]:
    """[P] prompts as token ids."""
    return [run.renderer.prompt(run.problems.messages(problem)) for problem in problems]


def roll_out(run: Run, problems: Sequence[Problem], n: int, params: SamplingParams) -> list[Rollout]:
    """[P x n] rollouts, grouped by problem."""
    prompts = prompts_of(run, problems)
    sampled = run.engine.sampler.sample(prompts, n, params, grading_ahead(run, problems, prompts))
    return rollouts_from(problems, prompts, require_any(sampled), run.renderer)


def grading_ahead(run: Run, problems: Sequence[Problem], prompts: Sequence[list[int]]) -> Arrived:
    """A callback that grades completions while the rest of their batch is still being sampled."""

    def arrived(p: int, completions: Sequence[Completion]) -> None:
        run.blueprint.rewards.expect(rollouts_from([problems[p]], [prompts[p]], [completions], run.renderer))

    return arrived


def rollouts_from(
    problems: Sequence[Problem],
    prompts: Sequence[list[int]],
    sampled: Sequence[Sequence[Completion]],
    renderer: Renderer,
) -> list[Rollout]:
    """[P x G] ungraded rollouts of completions [P][G], grouped by problem; none for a problem without completions."""
    return [
        Rollout(problem, group, prompt, cut, renderer.parse(cut))
        for group, (problem, prompt, completions) in enumerate(zip(problems, prompts, sampled, strict=True))
        for cut in map(renderer.cut, completions)
    ]


def require_any(sampled: list[list[Completion]]) -> list[list[Completion]]:
    """The completions [P][n]. Raises Stopped when there are none at all."""
    if not any(sampled):
        raise Stopped(f"no completions for any of the {len(sampled)} problems; see the log for the reasons")
    return sampled
