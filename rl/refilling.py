"""`refill=K`: groups without signal are replaced by those of fresh problems, in at most K redraws.

The dynamic sampling of DAPO (arXiv:2503.14476, section 3.2), with two differences. DAPO drops groups whose answers are all
right or all wrong; here a group counts as silent when the loss gives each of its rollouts a weight of 0, so rewards for
format or length count too. DAPO samples until the batch is full; here a group that K redraws do not replace stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rl.collecting import sample_to_train, sampling_params
from rl.losses.base import rollout_weights
from rl.rollouts import Problem, Rollout
from rl.scoring import score
from rl.seeds import derived_seed
from rl.step import Run, Timer


def refill(
    run: Run, step: int, rollouts: Sequence[Rollout], budget: int, timer: Timer
) -> tuple[list[Rollout], list[Rollout]]:
    """The batch of `step` with its silent groups replaced where possible, and the rollouts that were thrown away.

    rollouts: scored. budget: the token budget they were sampled with; redraws have the same. Redraws depend only on the
    seed and the step, so that a resumed run repeats them.
    """
    groups = by_number(rollouts)
    slots = range(min(run.blueprint.batch_size, len(run.problems.train)))
    taken = {rollout.problem.id for rollout in rollouts}
    discarded: list[Rollout] = []
    if any(math.isnan(rollout.reward) for rollout in rollouts):  # the step is skipped, whatever is redrawn
        return list(rollouts), discarded
    for draw in range(1, run.blueprint.refill + 1):
        teaching = teaching_groups(run, [r for group in groups.values() for r in group], budget)
        silent = [slot for slot in slots if slot not in teaching]
        fresh = run.problems.fresh(step - 1, len(silent), run.blueprint.seed, draw, taken) if silent else []
        if not fresh:
            break
        taken.update(problem.id for problem in fresh)
        drawn = redraw(run, step, draw, fresh, budget, timer)
        found = teaching_groups(run, drawn, budget)
        for number, group in by_number(drawn).items():
            slot = silent[number]
            kept, lost = (group, groups.get(slot, [])) if number in found else (groups.get(slot, []), group)
            discarded += lost
            if kept:
                groups[slot] = [replace(rollout, group=slot) for rollout in kept]
    return [rollout for slot in sorted(groups) for rollout in groups[slot]], discarded


def redraw(
    run: Run, step: int, draw: int, problems: Sequence[Problem], budget: int, timer: Timer
) -> list[Rollout]:
    """[P x G] scored rollouts of P fresh problems from the current policy."""
    seed = derived_seed(run.blueprint.seed, f"refill {draw}", step)
    params = replace(sampling_params(run, step), max_tokens=budget, seed=seed)
    with timer("sample"):
        n = run.blueprint.group_size
        rollouts = sample_to_train(run.engine.sampler, run.task, problems, n, params)
        drawn = [replace(rollout, version=step - 1) for rollout in rollouts]
    if drawn:
        with timer("score"):
            score(run, drawn, watch=False)
    return drawn


def teaching_groups(run: Run, rollouts: Sequence[Rollout], budget: int) -> set[int]:
    """The groups in which the loss gives some rollout a weight other than 0."""
    if not rollouts:
        return set()
    rewards, loss = run.blueprint.rewards, run.blueprint.loss
    weights = rollout_weights(rollouts, loss, budget, rewards.weights, rewards.truncated.masks)
    return {r.group for r, weight in zip(rollouts, weights, strict=True) if weight}


def by_number(rollouts: Sequence[Rollout]) -> dict[int, list[Rollout]]:
    """The rollouts of each group."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return groups
