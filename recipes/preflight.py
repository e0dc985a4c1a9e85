"""Tries token budgets before training: `python -m recipes.preflight model=qwen3-8b data=gsm8k_ja max_tokens=256`."""

from __future__ import annotations

import itertools
import time
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Literal, cast

from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from rl import progress
from rl.blueprint import Blueprint, blueprint_from
from rl.budget import check_thinking_tokens
from rl.data.problems import ProblemSet, load
from rl.engines.base import Learner
from rl.errors import UserError, require
from rl.evaluation.measures import within
from rl.models.hub import require_model
from rl.preflight.check import Preflight, prompts_of, read_budgets, sample_prompts
from rl.preflight.cost import RunCost, forward_seconds_per_token, run_cost
from rl.preflight.files import Memory, tables, write_files
from rl.report.words import WORDS
from rl.schema import build
from rl.storage.disk import disk_errors, made_folder
from rl.terminal import open_console


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The preflight's own keys, in addition to the run's blueprint: see conf/preflight.yaml."""

    problems: int
    completions: int
    budgets: list[int] | None
    language: Literal["en", "ja"]
    out: str

    def __post_init__(self) -> None:
        require(self.problems >= 1, "problems", self.problems, "a positive integer", 32)
        require(self.completions >= 1, "completions", self.completions, "a positive integer", 8)
        require(
            self.budgets is None or (bool(self.budgets) and all(1 <= b <= 10**7 for b in self.budgets)),
            "budgets", self.budgets, "integers from 1 to 10,000,000", "[64,128,256]",
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PreflightConfig(Choices, Blueprint):
    """Every key that may be typed."""


@recipe("preflight", PreflightConfig)
def main(composed: Composed) -> None:
    """Samples the model once at the widest budget, derives the smaller budgets from that, writes tables and files."""
    own = {field.name for field in fields(Choices)}
    choices: Choices = build(Choices, {key: composed.tree[key] for key in own})
    blueprint = blueprint_from({key: value for key, value in composed.tree.items() if key not in own})
    if choices.budgets:
        check_thinking_tokens(blueprint.thinking_tokens, {"budgets": choices.budgets}, blueprint.environment)
    if blueprint.loss.needs_groups and choices.completions == 1:
        raise UserError(
            f"completions=1: loss={blueprint.loss.name} compares the completions of one problem; type completions=8"
        )
    if not blueprint.engine.samples_alone:
        raise UserError(
            f"engine={composed.choices['engine']}: it samples only while it trains; type engine=local, which gives the same"
            " completions"
        )
    blueprint.engine.check(blueprint)
    blueprint.environment.check()
    if blueprint.model.path is None:
        require_model(str(blueprint.model.id), blueprint.model.revision)
    problems = load(blueprint.data, blueprint.seed, blueprint.eval_data)
    out = made_folder("out", composed.job_dir or choices.out)
    with closing(blueprint.rewards):
        found, cost, memory = measure_run(choices, blueprint, problems)
    console = open_console()
    for part in tables(found, cost, memory):
        console.print(part)
    with disk_errors(f"out={choices.out}", out):
        files = write_files(out, found, cost, memory, WORDS[choices.language])
    for name, file in files.items():
        console.print(f"{name + ':':10}{file}", soft_wrap=True, highlight=False, markup=False)


def measure_run(
    choices: Choices, blueprint: Blueprint, problems: ProblemSet
) -> tuple[Preflight, RunCost, Memory | None]:
    """What each budget does, what the run would cost, and the memory of a step of `engine=local`."""
    from rl.models.loading import open_renderer
    from rl.task import open_task

    blueprint.rewards.start()
    with progress.task("starting"):
        tokenizer, renderer = open_renderer(blueprint.model, blueprint.renderer)
        task = open_task(
            problems.messages, renderer, blueprint.environment, blueprint.model, blueprint.thinking_tokens
        )
        problems.keep_short_prompts(task.prompt)
        prompted = prompts_of(blueprint, problems, task, choices.problems)
        budgets = budgets_of(choices, blueprint, prompted.room(blueprint.model, task.forced_tokens))
        opened = blueprint.engine.open(blueprint, tokenizer)
    with closing(opened) as engine:
        blueprint.rewards.check()
        print(
            f"{len(prompted.problems)} problems x {choices.completions} completions, {budgets[-1]} tokens at most",
            flush=True,
        )
        memory = blueprint.engine.step_memory(blueprint, max(map(len, prompted.prompts)))
        start = time.perf_counter()
        sampled = sample_prompts(blueprint, task, engine.sampler, prompted, choices.completions, budgets[-1])
        seconds = time.perf_counter() - start
        found = read_budgets(blueprint, renderer, sampled, budgets)
        rollouts = within(sampled, found.budget, renderer)
        # The first `problems` rollouts are whole groups, as in training: the learner reads a group's prompt once.
        forward = forward_seconds_per_token(cast(Learner, engine.learner), rollouts[: choices.problems])
        cost = run_cost(
            blueprint,
            steps=blueprint.total_steps(problems.steps_per_epoch(blueprint.batch_size)),
            problems=min(blueprint.batch_size, len(problems.train)),
            rollouts=rollouts,
            tokens_per_second=sum(r.length for r in sampled) / seconds,
            update_seconds_per_token=forward * blueprint.engine.forward_passes(blueprint),
            test_problems=[len(each.test) for each in problems.evaluations.values()] or [len(problems.test)],
            signal=found.readings[found.budget]["signal"].value,
        )
        return found, cost, memory


def budgets_of(choices: Choices, blueprint: Blueprint, room: float) -> list[int]:
    """The budgets to measure, including the run's own. Raises UserError when the widest exceeds the model's context."""
    own = blueprint.budget.first(blueprint.max_tokens)
    thinking = blueprint.model.facts.get("thinking_tokens") or 0
    budgets = sorted({own, *(choices.budgets or budgets_around(own, min(room, max(4 * own, thinking))))})
    budgets = [budget for budget in budgets if budget > (blueprint.thinking_tokens or 0)]
    if budgets[-1] > room:
        raise UserError(
            f"{'max_tokens' if own > room else 'budgets'}={budgets[-1]}: the longest prompt leaves only {room} tokens of"
            f" the model's context; type {room} or less"
        )
    return budgets


def budgets_around(budget: int, widest: float) -> list[int]:
    """A quarter of `budget`, doubled until `widest`: 16, 32, 64, 128, 256 for 64 and 256."""
    doubled = (max(1, budget // 4) * 2**power for power in itertools.count())
    return [*itertools.takewhile(lambda b: b < widest, doubled), int(widest)]


if __name__ == "__main__":
    main()
