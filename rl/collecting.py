"""Rollouts of a step's problems, sampled when the step comes, or asked for before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rl.engines.base import Asked, Remote, SamplingParams
from rl.errors import Stopped
from rl.rollouts import Completion, Problem, Rollout, rollouts_from
from rl.seeds import derived_seed, seed_everything

if TYPE_CHECKING:
    from rl.train import Run


@dataclass(frozen=True)
class AskedBatch:
    """One step's problems and prompts, and their completions, asked for when `version` steps were trained."""

    problems: list[Problem]
    prompts: list[list[int]]
    completions: Asked
    version: int


def collect(run: Run, step: int) -> list[Rollout]:
    """[P x G] rollouts of P problems, each with G completions, sampled from the current policy.

    An engine elsewhere may be asked for the batches of later steps first, and may leave out a problem.
    """
    seed_everything(derived_seed(run.blueprint.seed, "step", step))
    if not isinstance(run.engine, Remote):
        return roll_out(run, batch_of(run, step), run.blueprint.group_size, sampling_params(run, step))
    for ahead in range(step, min(step + run.engine.max_lag, run.total_steps) + 1):
        if ahead not in run.under_way:
            run.under_way[ahead] = ask(run, run.engine, ahead, version=step - 1)
    asked = run.under_way.pop(step)
    rollouts = some_rollouts(run, asked.problems, asked.prompts, asked.completions.result())
    return [replace(rollout, version=asked.version) for rollout in rollouts]


def ask(run: Run, engine: Remote, step: int, version: int) -> AskedBatch:
    """The batch of `step`, asked for and not waited for."""
    problems = batch_of(run, step)
    prompts = prompts_of(run, problems)
    asked = engine.submit(prompts, run.blueprint.group_size, sampling_params(run, step))
    return AskedBatch(problems, prompts, asked, version)


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
    return some_rollouts(run, problems, prompts, run.engine.sample(prompts, n, params))


def some_rollouts(
    run: Run,
    problems: Sequence[Problem],
    prompts: Sequence[list[int]],
    sampled: Sequence[Sequence[Completion]],
) -> list[Rollout]:
    """The rollouts of those problems that have completions. Raises Stopped when none has."""
    rollouts = rollouts_from(problems, prompts, sampled, run.renderer)
    if not rollouts:
        raise Stopped(f"no completion came for any of {len(problems)} problems; train.log says why")
    return rollouts
