"""The typed blueprint: every choice of one run, checked before anything heavy is imported.

This module and everything it names stay free of torch and transformers, so that a typo is answered at once.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from renderers.base import RendererConfig
from rewards.base import Reward
from rewards.reward_set import FunctionReward, RewardSet
from rl.budget import BudgetSchedule
from rl.engines.base import EngineConfig, OptimizerConfig, SamplingConfig
from rl.errors import UserError
from rl.loggers import Logger
from rl.losses import PolicyLoss
from rl.problems import DataConfig
from rl.schema import TARGET, build, convert, locate, target_parameters, unknown_key

PROJECT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """LoRA through peft (arXiv:2106.09685). target_modules: `all-linear`, or the names of the projections."""

    rank: int = 32
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: str | list[str] = "all-linear"

    def __post_init__(self) -> None:
        require(self.rank >= 1, "model.lora.rank", self.rank, "a positive integer", 32)
        require(0 < self.alpha < math.inf, "model.lora.alpha", self.alpha, "a positive number", 32)
        require(0 <= self.dropout < 1, "model.lora.dropout", self.dropout, "a number in [0, 1)", 0.0)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which weights, and what is known about them.

    id: Hub id. path: a local checkpoint, which wins over `id`. stop_tokens: texts of the tokens that end an answer.
    dtype: `auto` is bfloat16 on a GPU that has it, float32 elsewhere. lora: null trains all weights.
    recipe: what this model usually wants; the root scalars default to it. facts: see docs/renderers.md.
    """

    name: str
    id: str | None = None
    path: str | None = None
    revision: str | None = None
    renderer: str = "auto"
    stop_tokens: list[str] = field(default_factory=list)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    lora: LoraConfig | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.id is None and self.path is None:
            raise UserError(
                "model.path=null: expected a local checkpoint or a Hub id; e.g. model.path=~/models/mine"
            )
        if self.path is not None and not (self.local_path / "config.json").is_file():
            lacks = "no config.json in it" if self.local_path.is_dir() else "no such folder"
            raise UserError(
                f"model.path={self.path}: {lacks}: {self.local_path}; expected a folder that save_pretrained wrote"
            )

    @property
    def local_path(self) -> Path:
        """`path` against the start folder, or against the project for what it ships (assets/tiny)."""
        path = Path(self.path or "").expanduser()
        shipped = PROJECT / path
        return shipped if not path.exists() and shipped.exists() else path.absolute()

    @property
    def source(self) -> str:
        """What `from_pretrained` takes."""
        return str(self.local_path) if self.path is not None else str(self.id)


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """language: of the words in the report that a run leaves, and in its pictures."""

    language: Literal["en", "ja"] = "en"


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """One run. N = batch_size problems x group_size completions a step; see conf/rl_basic.yaml for each choice."""

    name: str
    model: ModelConfig
    data: DataConfig
    renderer: RendererConfig
    rewards: RewardSet
    loss: PolicyLoss
    budget: BudgetSchedule
    engine: EngineConfig
    logger: dict[str, Logger]
    optimizer: OptimizerConfig
    sampling: SamplingConfig
    report: ReportConfig

    max_tokens: int
    batch_size: int
    group_size: int
    learning_rate: float
    temperature: float
    max_steps: int | None
    epochs: int
    curriculum: Literal["none", "difficulty"]
    eval_every: int
    eval_problems: int
    eval_completions: int
    eval_temperature: float
    save_every: int
    keep_last: int
    keep_best: str | None
    max_nonfinite_steps: int
    preflight: Literal["warn", "fail", "off"]
    samples_per_step: int
    seed: int
    device: Literal["auto", "cpu", "cuda", "mps"]
    run_dir: str | None
    resume: bool
    plan: bool

    def __post_init__(self) -> None:
        require(1 <= self.max_tokens <= 10**7, "max_tokens", self.max_tokens, "a positive integer", 256)
        require(self.batch_size >= 1, "batch_size", self.batch_size, "a positive integer", 16)
        require(self.group_size >= 1, "group_size", self.group_size, "a positive integer", 8)
        require(
            0 <= self.learning_rate < 1, "learning_rate", self.learning_rate, "a number in [0, 1)", "1e-4"
        )
        require(1e-6 <= self.temperature <= 1e6, "temperature", self.temperature, "a positive number", 1.0)
        require(
            self.max_steps is None or self.max_steps >= 1,
            "max_steps",
            self.max_steps,
            "a positive integer",
            40,
        )
        require(self.epochs >= 1, "epochs", self.epochs, "a positive integer", 1)
        require(self.eval_every >= 0, "eval_every", self.eval_every, "0 (never) or a number of steps", 10)
        require(self.eval_problems >= 1, "eval_problems", self.eval_problems, "a positive integer", 64)
        require(
            self.eval_completions >= 1, "eval_completions", self.eval_completions, "a positive integer", 1
        )
        require(
            self.eval_temperature == 0 or 1e-6 <= self.eval_temperature <= 1e6,
            "eval_temperature",
            self.eval_temperature,
            "0 (greedy) or a positive number",
            0,
        )
        require(
            self.save_every >= 0,
            "save_every",
            self.save_every,
            "0 (only at the end) or a number of steps",
            20,
        )
        require(self.keep_last >= 1, "keep_last", self.keep_last, "a positive integer", 2)
        require(
            self.max_nonfinite_steps >= 1,
            "max_nonfinite_steps",
            self.max_nonfinite_steps,
            "a positive integer",
            3,
        )
        require(self.samples_per_step >= 0, "samples_per_step", self.samples_per_step, "0 or more", 4)
        require(0 <= self.seed < 2**63, "seed", self.seed, "a whole number from 0 to 2**63 - 1", 0)
        if self.loss.needs_groups and self.group_size == 1:
            raise UserError(
                "group_size=1: this loss compares the completions of one problem and needs a group_size of 2 or more;"
                " use group_size=8, or loss=flashreinforce for one completion a problem"
            )
        if self.sampling.truncated and not self.sampling.allow_truncated_support:
            raise UserError(
                f"sampling.{self.sampling.truncated}: it cuts tokens from the distribution, so that importance weights no"
                " longer hold; leave it off while training, or type sampling.allow_truncated_support=true"
            )

    def total_steps(self, steps_per_epoch: int) -> int:
        """Optimiser batches in the run: `max_steps` where given (epochs repeat as needed), else `epochs`."""
        return self.max_steps if self.max_steps is not None else self.epochs * steps_per_epoch


def blueprint_from(tree: Mapping[str, Any]) -> Blueprint:
    """The checked blueprint from a composed, resolved config tree. Raises UserError."""
    if not isinstance(tree.get("rewards"), Mapping):
        raise UserError("rewards: missing; expected a set of rewards, e.g. rewards=boxed")
    return build(Blueprint, {**tree, "rewards": reward_set_from(tree["rewards"])})


def reward_set_from(node: Mapping[str, Any]) -> RewardSet:
    """In YAML a reward stands beside the set's own choices, so that `rewards.format.weight=0.2` can be typed."""
    terms = {
        name: reward_from(child, f"rewards.{name}")
        for name, child in node.items()
        if isinstance(child, Mapping)
    }
    choices = {name: child for name, child in node.items() if name not in terms}
    return build(RewardSet, {**choices, "terms": terms}, "rewards")


def reward_from(node: Mapping[str, Any], key: str) -> Any:
    """A reward class built from its node, or a user's function `f(rollouts, ...)` wrapped as one."""
    target = locate(node[TARGET], f"{key}.{TARGET}") if TARGET in node else None
    if target is None or inspect.isclass(target):
        return convert(node, Reward, key)
    parameters = target_parameters(target)
    known = {*parameters, "weight", "baseline", TARGET}
    for name in node:
        if name not in known:
            raise unknown_key(key, name, known)
    own = {name: value for name, value in node.items() if name in parameters}
    rest = {name: value for name, value in node.items() if name not in own and name != TARGET}
    function = convert({TARGET: node[TARGET], **own}, Reward, key)
    return build(FunctionReward, {**rest, "function": function}, key)


def require(condition: bool, key: str, value: Any, expected: str, example: Any) -> None:
    """Raises UserError, naming the key, unless `condition` holds."""
    if not condition:
        raise UserError(f"{key}={value}: expected {expected}; e.g. {key}={example}")
