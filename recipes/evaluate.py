"""A model inside token budgets: `python -m recipes.evaluate run=runs/rl_basic/... budgets=[32,64,128]`."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from rich.console import Console

from recipes.cli import Composed, recipe, resolved
from recipes.overrides import parse_override
from renderers.base import RendererConfig
from rewards.reward_set import RewardSet
from rl.blueprint import reward_set_from
from rl.data.config import DataConfig
from rl.data.problems import load
from rl.engines.base import SamplingParams
from rl.errors import UserError, require
from rl.evaluation.base_and_trained import Policies, load_policies, read_config
from rl.evaluation.files import tables, write_files
from rl.evaluation.measures import Sampled, evaluate
from rl.models.config import ModelConfig
from rl.models.device import memory_errors
from rl.models.export import find_weights
from rl.models.hub import require_model
from rl.models.loading import context_of, open_renderer
from rl.report.words import LABELS
from rl.rollouts import Problem
from rl.schema import build
from rl.storage.disk import disk_errors, made_folder

NODES = ("model", "data", "renderer", "rewards")  # what an evaluation takes from the run that it measures
SAMPLED_COMPLETIONS = 8
PIPE_WIDTH = 120  # columns where there is no terminal to ask


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """See conf/evaluate.yaml."""

    model: ModelConfig
    data: DataConfig
    renderer: RendererConfig
    rewards: RewardSet
    run: str | None
    adapter: str | None
    split: Literal["test", "train"]
    problems: int | None
    budgets: list[int]
    completions: int | None
    ks: list[int] | None
    temperature: float
    seed: int
    device: Literal["auto", "cpu", "cuda", "mps"]
    language: Literal["en", "ja"]
    out: str

    def __post_init__(self) -> None:
        if self.run is not None and self.adapter is not None:
            raise UserError("run, adapter: expected one of them; a run brings its own model and weights")
        require(self.problems is None or self.problems >= 1, "problems", self.problems, "a positive integer, or null", 256)  # fmt: skip
        require(
            bool(self.budgets) and all(1 <= budget <= 10**7 for budget in self.budgets),
            "budgets", self.budgets, "integers from 1 to 10,000,000", "[64,128,256]",
        )  # fmt: skip
        require(
            self.temperature == 0 or 1e-6 <= self.temperature <= 1e6,
            "temperature", self.temperature, "0 (greedy) or a positive number", 1.0,
        )  # fmt: skip
        require(0 <= self.seed < 2**63, "seed", self.seed, "a whole number from 0 to 2**63 - 1", 0)
        n = self.completions
        require(n is None or n >= 1, "completions", n, "a positive integer, or null", 8)
        if self.temperature == 0 and n not in (None, 1):
            raise UserError(
                f"completions={n}: with temperature=0 all of a problem's completions are the same one; type completions=1,"
                " or temperature=1.0"
            )
        require(
            self.ks is None or (bool(self.ks) and all(1 <= k <= self.n for k in self.ks)),
            "ks", self.ks, f"numbers from 1 to the completions of a problem ({self.n})", f"[1,{self.n}]",
        )  # fmt: skip

    @property
    def n(self) -> int:
        """Completions of each problem."""
        return self.completions or (SAMPLED_COMPLETIONS if self.temperature else 1)


@recipe("evaluate", EvaluateConfig)
def main(composed: Composed) -> None:
    """Samples each policy once at the widest budget, reads the smaller ones off, prints tables, writes files."""
    tree, weights, problem_seed = subject_of(composed)
    config: EvaluateConfig = build(EvaluateConfig, tree)
    out = folder_of(composed, config)
    budgets, ks = sorted(set(config.budgets)), sorted(set(config.ks or [1, config.n]))
    if config.model.path is None:
        require_model(str(config.model.id), config.model.revision)
    problems = problems_of(config, problem_seed)
    with closing(config.rewards) as rewards:
        rewards.start()
        _, renderer = open_renderer(config.model, config.renderer)
        prompts = [renderer.prompt(config.data.messages(problem)) for problem in problems]
        require_context(config.model, prompts, budgets[-1])
        policies = load_policies(config.model, renderer, weights, config.device)
        rewards.check()
        params = SamplingParams(budgets[-1], config.temperature, renderer.stop_ids, config.seed)
        sampled = {
            side: sample(policies, side, problems, prompts, config.n, params) for side in policies.models
        }
        results = evaluate(sampled, budgets, ks, renderer, rewards)
    setting = {
        "base": config.model.name,
        "trained": config.run or config.adapter,
        "data": config.data.name,
        "split": config.split,
        "problems": len(problems),
        "completions": config.n,
        "temperature": config.temperature,
        "seed": config.seed,
    }
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    for table in tables(results):
        console.print(table)
    with disk_errors(f"out={config.out}", out):
        files = write_files(out, setting, results, LABELS[config.language])
    for name, file in files.items():
        console.print(f"{name + ':':10}{file}", soft_wrap=True, highlight=False, markup=False)


def subject_of(composed: Composed) -> tuple[dict[str, Any], Path | None, int]:
    """What is measured: the config's tree, the trained weights if any, and the seed of generated problems.

    Raises UserError for what is no run, and for a folder without weights.
    """
    run, adapter = composed.tree["run"], composed.tree["adapter"]
    tree, seed = composed.tree, 0
    weights = None if adapter is None else find_weights(str(adapter), "adapter")
    if run is not None:
        weights = find_weights(str(run), "run")
        config = read_config(weights)
        tree, seed = with_run(composed, config), config["seed"]
    return {**tree, "rewards": reward_set_from(tree["rewards"])}, weights, seed


def with_run(composed: Composed, run: Mapping[str, Any]) -> dict[str, Any]:
    """The composed tree with the run's model, data, renderer, rewards and budget, but for what is typed of them."""
    typed = typed_keys(composed)
    if any(key.partition(".")[0] == "model" for key in typed - {"model.path"}):
        raise UserError(
            f"run={composed.tree['run']}: a run brings its own model; leave model out (model.path=FOLDER says where that"
            " lies now), or type adapter=FOLDER with it"
        )
    if missing := [key for key in (*NODES, "seed", "max_tokens") if key not in run]:
        raise UserError(
            f"run={composed.tree['run']}: its config.yaml lacks {missing[0]}; expected the one that a run writes"
        )
    config = copy.deepcopy(composed.raw)
    OmegaConf.set_struct(config, False)
    if "budgets" not in typed:
        config.budgets = [run["max_tokens"]]
    for node in NODES:
        if node not in typed:
            kept = {key: OmegaConf.select(config, key) for key in typed if key.startswith(f"{node}.")}
            config[node] = run[node]
            for key, value in kept.items():
                OmegaConf.update(config, key, value, merge=False)
    return resolved(config)


def typed_keys(composed: Composed) -> set[str]:
    """The groups and dotted keys that stand on the command line."""
    return {str(parse_override(text).key_or_group) for text in composed.overrides}


def problems_of(config: EvaluateConfig, seed: int) -> list[Problem]:
    """The first `problems` of the split. Raises UserError when the data set has no such split."""
    loaded = load(config.data, seed)
    found = list((loaded.test if config.split == "test" else loaded.train)[: config.problems])
    if not found:
        raise UserError(
            f"split=test: data={config.data.name} has no test problems; type data.test_path=FILE.jsonl, or split=train to"
            " measure on the train split"
        )
    return found


def folder_of(composed: Composed, config: EvaluateConfig) -> Path:
    """Where the files go: `out`, or in a multirun the job's own folder."""
    if composed.job_dir is not None and "out" in typed_keys(composed):
        raise UserError(
            "out: one folder cannot hold a sweep's jobs; type hydra.sweep.dir=FOLDER for all of them"
        )
    return made_folder("out", composed.job_dir or config.out)


def require_context(model: ModelConfig, prompts: Sequence[Sequence[int]], budget: int) -> None:
    """Raises UserError when the longest prompt and the widest budget are more than the model can attend to."""
    context, longest = context_of(model), max(map(len, prompts))
    if context is not None and longest + budget > context:
        raise UserError(
            f"budgets: the longest prompt ({longest} tokens) and the widest budget make {longest + budget} tokens, and the"
            f" context of {model.name} holds {context}; type a widest budget of {max(1, context - longest)} or less"
        )


def sample(
    policies: Policies,
    side: str,
    problems: Sequence[Problem],
    prompts: Sequence[list[int]],
    n: int,
    params: SamplingParams,
) -> Sampled:
    """One side's completions; says how many there will be and how long they took."""
    print(
        f"{side}: {len(problems)} problems x {n} completions, {params.max_tokens} tokens at most", flush=True
    )
    start = time.perf_counter()
    with memory_errors(f"completions={max(1, n // 2)}, or a smaller widest budget"):
        sampled = policies.sample(side, problems, prompts, n, params)
    tokens = sum(len(each.tokens) for group in sampled.completions for each in group)
    seconds = time.perf_counter() - start
    print(f"{side}: {tokens:,} tokens in {seconds:.1f} s", flush=True)
    return sampled


if __name__ == "__main__":
    main()
