"""Measures a model inside token budgets: `python -m recipes.evaluate run=runs/rl_basic/... budgets=[32,64,128]`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from environments.base import EnvironmentConfig
from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from recipes.cli.subject import subject_of, typed_keys
from renderers.base import RendererConfig
from rewards.from_config import rewards_on
from rewards.length.l1 import evaluated_targets
from rewards.reward_set import RewardSet
from rl import progress
from rl.blueprint import EngineConfig
from rl.budget import check_thinking_tokens
from rl.collecting import roll_out
from rl.data.config import DataConfig
from rl.data.problems import load, load_test
from rl.engines.base import SamplingParams
from rl.engines.policies import Policies
from rl.errors import UserError, require
from rl.evaluation.files import tables, write_files
from rl.evaluation.measures import AtTarget, Result, evaluate
from rl.evaluation.targets import measure_at, stating
from rl.models.config import ModelConfig
from rl.models.device import memory_errors
from rl.models.hub import require_model
from rl.models.loading import context_of, open_renderer
from rl.report.words import WORDS
from rl.rollouts import Problem, Rollout
from rl.schema import build
from rl.storage.disk import disk_errors, made_folder
from rl.task import Task, open_task
from rl.terminal import open_console

SAMPLED_COMPLETIONS = 8


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """See conf/evaluate.yaml."""

    model: ModelConfig
    data: DataConfig
    eval_data: dict[str, DataConfig]
    renderer: RendererConfig
    rewards: RewardSet
    environment: EnvironmentConfig
    engine: EngineConfig
    run: str | None
    adapter: str | None
    split: Literal["test", "train"]
    problems: int | None
    budgets: list[int]
    thinking_tokens: int | None
    completions: int | None
    ks: list[int] | None
    temperature: float
    seed: int
    device: Literal["auto", "cpu", "cuda", "mps"]
    language: Literal["en", "ja"]
    out: str

    def __post_init__(self) -> None:
        for data in (self.data, *self.eval_data.values()):
            data.instruction = self.rewards.instruction
        require(self.problems is None or self.problems >= 1, "problems", self.problems, "a positive integer, or null", 256)  # fmt: skip
        require(
            bool(self.budgets) and all(1 <= budget <= 10**7 for budget in self.budgets),
            "budgets", self.budgets, "integers from 1 to 10,000,000", "[64,128,256]",
        )  # fmt: skip
        check_thinking_tokens(self.thinking_tokens, {"budgets": self.budgets}, self.environment)
        require(
            self.temperature == 0 or 1e-6 <= self.temperature <= 1e6,
            "temperature", self.temperature, "0 (greedy) or a positive number", 1.0,
        )  # fmt: skip
        if self.eval_data and self.split == "train":
            raise UserError("split=train: eval_data evaluates on test problems; type data=NAME split=train")
        require(0 <= self.seed < 2**63, "seed", self.seed, "a whole number from 0 to 2**63 - 1", 0)
        n = self.completions
        require(n is None or n >= 1, "completions", n, "a positive integer, or null", 8)
        if self.temperature == 0 and n not in (None, 1):
            raise UserError(
                f"completions={n}: with temperature=0 all completions of a problem are the same; type completions=1, or"
                " temperature=1.0"
            )
        require(
            self.ks is None or (bool(self.ks) and all(1 <= k <= self.n for k in self.ks)),
            "ks", self.ks, f"numbers from 1 to the completions of a problem ({self.n})", f"[1,{self.n}]",
        )  # fmt: skip

    @property
    def sets(self) -> list[DataConfig]:
        """The data sets to evaluate on."""
        return list(self.eval_data.values()) or [self.data]

    @property
    def n(self) -> int:
        """Completions of each problem."""
        return self.completions or (SAMPLED_COMPLETIONS if self.temperature else 1)


@recipe("evaluate", EvaluateConfig)
def main(composed: Composed) -> None:
    """Samples each policy once at the widest budget, derives the smaller budgets from that, writes tables and files.

    With `eval_data`, the files of each set are in a folder of its name.
    """
    tree, weights, problem_seed = subject_of(composed, lambda max_tokens: {"budgets": [max_tokens]})
    config: EvaluateConfig = build(EvaluateConfig, tree)
    out = folder_of(composed, config)
    config.environment.check()
    if config.model.path is None:
        require_model(str(config.model.id), config.model.revision)
    sets = [(data, problems_of(config, data, problem_seed)) for data in config.sets]
    with ExitStack() as stack, closing(config.rewards) as rewards:
        rewards.start()
        with progress.task("starting"):
            _, renderer = open_renderer(config.model, config.renderer)
            tasks = [
                open_task(data.messages, renderer, config.environment, config.model, config.thinking_tokens)
                for data, _ in sets
            ]
            if config.environment.single_turn:
                prompts = [task.prompts(problems) for task, (_, problems) in zip(tasks, sets, strict=True)]
                require_budget_fits(config.model, list(chain(*prompts)), max(config.budgets))
            policies = config.engine.policies(config.model, renderer, weights, config.device)
            stack.callback(policies.close)
            rewards.check()
        for task, (data, problems) in zip(tasks, sets, strict=True):
            results = evaluate_set(config, policies, task, data, problems)
            targets = evaluate_targets(config, policies, task, data, problems)
            folder = out / data.name if config.eval_data else out
            show(config, data, len(problems), results, targets, folder)


def evaluate_set(
    config: EvaluateConfig,
    policies: Policies,
    task: Task,
    data: DataConfig,
    problems: Sequence[Problem],
) -> list[Result]:
    """The results of both sides on the problems of one set, read as the set says."""
    budgets, ks = sorted(set(config.budgets)), sorted(set(config.ks or [1, config.n]))
    sampled = {side: answers_of(config, policies, side, task, problems) for side in policies.sides}
    rewards = rewards_on(config.rewards, config.data, data)
    return evaluate(sampled, budgets, ks, task.renderer, rewards)


def evaluate_targets(
    config: EvaluateConfig,
    policies: Policies,
    task: Task,
    data: DataConfig,
    problems: Sequence[Problem],
) -> list[AtTarget]:
    """Both sides at each of `length.eval_targets`, at the widest budget; every prompt states the target."""
    rewards = rewards_on(config.rewards, config.data, data)
    found = []
    for target in evaluated_targets(rewards.length):
        print(f"target {target}:", flush=True)
        for side in policies.sides:
            rollouts = answers_of(config, policies, side, task, stating(problems, target))
            found.append(AtTarget(side, target, measure_at(target, rollouts, rewards)))
    return found


def show(
    config: EvaluateConfig,
    data: DataConfig,
    problems: int,
    results: Sequence[Result],
    targets: Sequence[AtTarget],
    folder: Path,
) -> None:
    """Prints the tables of one set and writes its files."""
    setting = {
        "base": config.model.name,
        "trained": config.run or config.adapter,
        "data": data.name,
        "split": config.split,
        "problems": problems,
        "completions": config.n,
        "temperature": config.temperature,
        "seed": config.seed,
        **({} if config.thinking_tokens is None else {"thinking_tokens": config.thinking_tokens}),
    }
    console = open_console()
    if config.eval_data:
        console.print(f"\n{data.name}", style="bold", highlight=False, markup=False)
    for table in tables(results, targets):
        console.print(table)
    with disk_errors(f"out={config.out}", folder):
        files = write_files(folder, setting, results, WORDS[config.language], targets)
    for name, file in files.items():
        console.print(f"{name + ':':10}{file}", soft_wrap=True, highlight=False, markup=False)


def problems_of(config: EvaluateConfig, data: DataConfig, seed: int) -> list[Problem]:
    """The first `problems` of the split. Raises UserError when the data set has no such split."""
    loaded = load_test(data, seed) if data.name in config.eval_data else load(data, seed)
    found = list((loaded.test if config.split == "test" else loaded.train)[: config.problems])
    if not found:
        other = "data.test_path=FILE.jsonl, or split=train" if config.split == "test" else "split=test"
        raise UserError(
            f"split={config.split}: data={data.name} has no {config.split} problems; type {other}"
        )
    return found


def folder_of(composed: Composed, config: EvaluateConfig) -> Path:
    """The output folder: `out`, or in a multirun the job's own folder."""
    if composed.job_dir is not None and "out" in typed_keys(composed):
        raise UserError(
            "out: one folder cannot hold all jobs of a sweep; type hydra.sweep.dir=FOLDER instead"
        )
    return made_folder("out", composed.job_dir or config.out)


def require_budget_fits(model: ModelConfig, prompts: Sequence[Sequence[int]], budget: int) -> None:
    """Raises UserError when the longest prompt and the widest budget exceed the model's context."""
    context, longest = context_of(model), max(map(len, prompts))
    if context is not None and longest + budget > context:
        raise UserError(
            f"budgets: the longest prompt ({longest} tokens) and the widest budget need {longest + budget} tokens, but"
            f" the context of {model.name} is {context}; type budgets of at most {max(1, context - longest)}"
        )


def answers_of(
    config: EvaluateConfig, policies: Policies, side: str, task: Task, problems: Sequence[Problem]
) -> list[Rollout]:
    """One side's rollouts at the widest budget; prints how many there are and how long they took."""
    n, budget = config.n, max(config.budgets)
    params = SamplingParams(budget, config.temperature, task.renderer.stop_ids, config.seed)
    print(f"{side}: {len(problems)} problems x {n} completions, {budget} tokens at most", flush=True)
    start = time.perf_counter()
    with memory_errors(f"completions={max(1, n // 2)}, or smaller budgets"), progress.task(side):
        sampled = roll_out(policies.sampler(side), task, problems, n, params)
    tokens = sum(rollout.length for rollout in sampled)
    seconds = time.perf_counter() - start
    print(f"{side}: {tokens:,} tokens in {seconds:.1f} s", flush=True)
    if task.thinking_tokens is not None:
        forced = sum(rollout.forced for rollout in sampled) / len(sampled)
        print(f"{side}: {forced:.1%} of the reasonings closed at {task.thinking_tokens} tokens", flush=True)
    return sampled


if __name__ == "__main__":
    main()
