"""Rollouts of a step's problems, sampled when the step comes, or asked for before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rl.engines.base import Arrived, Asked, Remote, SamplingParams
from rl.errors import Stopped
from rl.rollouts import Completion, Problem, Rollout, rollouts_from
from rl.seeds import derived_seed, seed_everything

if TYPE_CHECKING:
    from rl.train import Run


@dataclass(frozen=True)
class AskedBatch:
    """One step's problems and prompts, and their completions, asked for when `version` steps were trained.

    budget: the token budget that the completions were asked for with.
    """

    problems: list[Problem]
    prompts: list[list[int]]
    completions: Asked
    budget: int
    version: int


def collect(run: Run, step: int) -> tuple[list[Rollout], int]:
    """[P x G] rollouts of P problems, each with G completions from the current policy, and their token budget.

    An engine elsewhere may be asked for the batches of later steps first, and may leave out a problem.
    """
    seed_everything(derived_seed(run.blueprint.seed, "step", step))
    if not isinstance(run.engine, Remote):
        params = sampling_params(run, step)
        return roll_out(run, batch_of(run, step), run.blueprint.group_size, params), params.max_tokens
    for ahead in range(step, min(step + run.engine.max_lag, run.total_steps) + 1):
        if ahead not in run.under_way:
            run.under_way[ahead] = ask(run, run.engine, ahead, version=step - 1)
    asked = run.under_way.pop(step)
    rollouts = rollouts_from(asked.problems, asked.prompts, some(asked.completions.result()), run.renderer)
    return [replace(rollout, version=asked.version) for rollout in rollouts], asked.budget


def ask(run: Run, engine: Remote, step: int, version: int) -> AskedBatch:
    """The batch of `step`, asked for and not waited for."""
    problems = batch_of(run, step)
    prompts = prompts_of(run, problems)
    params = sampling_params(run, step)
    asked = engine.submit(prompts, run.blueprint.group_size, params, grading_ahead(run, problems, prompts))
    return AskedBatch(problems, prompts, asked, params.max_tokens, version)


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
        entropies=run.blueprint.loss.needs_entropies,
    )


def prompts_of(run: Run, problems: Sequence[Problem]) -> list[list[int]]:
    """[P] prompts as token ids."""
    return [run.renderer.prompt(run.problems.messages(problem)) for problem in problems]


def roll_out(run: Run, problems: Sequence[Problem], n: int, params: SamplingParams) -> list[Rollout]:
    """[P x n] rollouts, those of one problem next to each other."""
    prompts = prompts_of(run, problems)
    sampled = run.engine.sample(prompts, n, params, grading_ahead(run, problems, prompts))
    return rollouts_from(problems, prompts, some(sampled), run.renderer)


def grading_ahead(run: Run, problems: Sequence[Problem], prompts: Sequence[list[int]]) -> Arrived:
    """Has completions graded while others of their batch are still sampled."""

    def arrived(p: int, completions: Sequence[Completion]) -> None:
        run.blueprint.rewards.expect(rollouts_from([problems[p]], [prompts[p]], [completions], run.renderer))

    return arrived


def some(sampled: list[list[Completion]]) -> list[list[Completion]]:
    """The completions [P][n]. Raises Stopped when there is not one."""
    if not any(sampled):
        raise Stopped(f"no completion came for any of {len(sampled)} problems; the log says why")
    return sampled
