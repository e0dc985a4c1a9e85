"""The typed blueprint: every choice of one run, checked before anything heavy is imported.

This module and everything it imports stay free of torch and transformers, so that a typo is reported at once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from environments.base import EnvironmentConfig
from renderers.base import Renderer, RendererConfig
from rewards.from_config import rewards_on, with_reward_set
from rewards.reward_set import RewardSet
from rl.budget import BudgetSchedule, ThinkPrune, check_thinking_tokens
from rl.data.config import DataConfig
from rl.data.problems import ProblemSet
from rl.engines.base import Engine, SamplingConfig
from rl.engines.conformance import Conformance
from rl.engines.policies import Policies
from rl.engines.prices import Prices, published_prices
from rl.errors import UserError, require
from rl.loggers.base import Logger
from rl.losses.base import PolicyLoss
from rl.models.config import ModelConfig
from rl.optimizer import OptimizerConfig
from rl.schema import build

logger = logging.getLogger("tanka")


class EngineConfig:
    """An engine's options, and what callers need to know about it before its weights are loaded.

    resumable: engine keys that may change when a run is resumed, because they do not change what a step computes.
    samples_alone: whether it can sample without training, as `recipes.preflight` needs.
    has_entropies: whether its sampler can return the exact entropy of each token's distribution.
    needs_full_support: why it cannot train with top_p, top_k or min_p; "" when it can.
    trains_remainder: whether the problems that fill no whole batch make a smaller one at the end of each epoch.
    """

    resumable: ClassVar[frozenset[str]] = frozenset()
    samples_alone: ClassVar[bool] = True
    needs_full_support: ClassVar[str] = ""
    trains_remainder: ClassVar[bool] = False

    @property
    def has_entropies(self) -> bool:
        return False

    def check(self, blueprint: Blueprint) -> None:
        """Raises UserError when the blueprint cannot run on this engine or this machine; loads no weights."""

    def open(self, blueprint: Blueprint, tokenizer: Any) -> Engine:
        """Loads the weights, or connects to the service that holds them."""
        raise NotImplementedError

    def policies(self, model: ModelConfig, renderer: Renderer, weights: Path | None, device: str) -> Policies:
        """The base `model` and the `weights` trained from it. Raises UserError for another base or chat format."""
        raise UserError("engine: this one samples only while it trains; type engine=local, or engine=vllm")

    def started(self, run_dir: Path) -> bool:
        """Whether the run in `run_dir` has a checkpoint to continue from."""
        return any((run_dir / "checkpoints").glob("step-*"))

    def follow(self, blueprint: Blueprint) -> None:
        """On ranks above 0: runs what rank 0 calls, until rank 0 ends."""
        raise NotImplementedError

    def commands(self, blueprint: Blueprint, overrides: str) -> dict[str, str]:
        """Launch commands, and facts about them, that `plan=true` prints by label; {} when the recipe's own command is enough.

        Raises UserError when the engine cannot carry out the blueprint at all.
        """
        return {}

    def forward_passes(self, blueprint: Blueprint) -> int:
        """Cost of an update in forward passes: a backward pass costs two, or one when the base weights are frozen."""
        return 2 if blueprint.model.lora else 3

    def step_memory(self, blueprint: Blueprint, prompt_tokens: int) -> dict[str, float] | None:
        """Bytes by part, for a step whose longest prompt has `prompt_tokens`; None when there is no estimate."""
        return None

    def usd_per_million(self, blueprint: Blueprint) -> Prices | None:
        """A service's prices for this blueprint's model; None when no price is published."""
        return published_prices(blueprint.model.source)

    def rollouts_in_flight(self, blueprint: Blueprint) -> int | None:
        """How many rollouts are sampled at once while the learner trains on finished ones; None: batch after batch."""
        return None

    def compare(self, blueprint: Blueprint, problems: ProblemSet) -> Conformance:
        """Compares one training step on a service with the same step here. Raises UserError for a local engine."""
        raise UserError("engine: check_engine compares a service with this machine; type engine=tinker")


# Keys that may change on resume: length, what is saved and shown, and the device. None of them changes what a step
# computes, apart from the rounding of another device or micro-batch size.
RESUMABLE = frozenset((
    "max_steps", "max_sampled_tokens", "epochs", "save_every", "keep_last", "keep_best", "max_nonfinite_steps",
    "samples_per_step", "eval_data", "eval_every", "eval_problems", "eval_completions", "eval_temperature", "eval_max_tokens",
    "preflight", "report", "logger", "run_dir",
    "resume", "plan", "name", "device",
))  # fmt: skip


# Positive integers, or null where that is allowed, with an example of each.
POSITIVE = {
    "max_tokens": 256, "batch_size": 16, "group_size": 8, "max_steps": 40, "max_sampled_tokens": 200_000, "epochs": 1,
    "eval_problems": 64, "eval_completions": 1, "keep_last": 2, "max_nonfinite_steps": 3,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunReportConfig:
    """language: of the run's report and its plots."""

    language: Literal["en", "ja"] = "en"


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """One run. N = batch_size problems x group_size completions a step; see conf/rl_basic.yaml for each choice."""

    name: str
    model: ModelConfig
    data: DataConfig
    renderer: RendererConfig
    rewards: RewardSet
    environment: EnvironmentConfig
    loss: PolicyLoss
    budget: BudgetSchedule
    engine: EngineConfig
    logger: dict[str, Logger]
    optimizer: OptimizerConfig
    sampling: SamplingConfig
    report: RunReportConfig

    max_tokens: int
    thinking_tokens: int | None
    batch_size: int
    group_size: int
    learning_rate: float
    temperature: float
    max_steps: int | None
    max_sampled_tokens: int | None
    epochs: int
    refill: int
    curriculum: Literal["none", "difficulty", "pass_rate"]
    pass_rates: str | None
    eval_data: dict[str, DataConfig]
    eval_every: int
    eval_problems: int
    eval_completions: int
    eval_temperature: float
    eval_max_tokens: list[int] | None
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
        for name, example in POSITIVE.items():
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "a positive integer", example)
        require(self.max_tokens <= 10**7, "max_tokens", self.max_tokens, "at most 10,000,000", 256)
        require(
            0 <= self.learning_rate < 1, "learning_rate", self.learning_rate, "a number in [0, 1)", "1e-4"
        )
        require(1e-6 <= self.temperature <= 1e6, "temperature", self.temperature, "a positive number", 1.0)
        limit = self.max_sampled_tokens
        needs = self.optimizer.needs_steps or "budget=thinkprune" * isinstance(self.budget, ThinkPrune)
        if limit is not None and needs:
            raise UserError(
                f"max_sampled_tokens={limit}: the number of steps is not known, and {needs} needs it; type max_steps instead,"
                " or a constant learning rate and budget (optimizer.schedule=constant optimizer.warmup=0 budget=constant)"
            )
        require(self.eval_every >= 0, "eval_every", self.eval_every, "0 (never) or a number of steps", 10)
        require(
            self.eval_temperature == 0 or 1e-6 <= self.eval_temperature <= 1e6,
            "eval_temperature", self.eval_temperature, "0 (greedy) or a positive number", 0,
        )  # fmt: skip
        require(
            self.eval_max_tokens is None
            or (bool(self.eval_max_tokens) and all(1 <= budget <= 10**7 for budget in self.eval_max_tokens)),
            "eval_max_tokens", self.eval_max_tokens, "token budgets of 1 or more, or null", "[64,128,256]",
        )  # fmt: skip
        require(self.refill >= 0, "refill", self.refill, "0 (off) or a number of redraws", 4)
        require(
            self.save_every >= 0, "save_every", self.save_every, "0 (only at the end) or a number of steps", 20,
        )  # fmt: skip
        require(self.samples_per_step >= 0, "samples_per_step", self.samples_per_step, "0 or more", 4)
        require(0 <= self.seed < 2**63, "seed", self.seed, "a whole number from 0 to 2**63 - 1", 0)
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Raises UserError for choices that are valid alone but not together."""
        if self.loss.needs_groups and self.group_size == 1:
            raise UserError(
                "group_size=1: this loss compares completions of the same problem, so it needs a group_size of 2 or more;"
                " use group_size=8, or loss=flashreinforce for one completion a problem"
            )
        if self.data.train_split is None and not self.data.generator:
            raise UserError(
                f"data={self.data.name}: has no train rows; it is for evaluation: type eval_data=[{self.data.name}] beside"
                " the data to train on, or data.train_split=NAME"
            )
        for data in (self.data, *self.eval_data.values()):
            data.instruction = self.rewards.instruction
        length = self.rewards.length
        if length is not None and length.needs_groups and self.group_size == 1:
            raise UserError(
                f"group_size=1: length={length.name} compares the completions of one problem and needs a group_size of 2 or"
                " more; use group_size=8, or a length that judges each alone: cosine, laser, overlong"
            )
        if self.loss.needs_verdicts and not (
            self.rewards.needs_grading or self.rewards.judged_by_environment
        ):
            raise UserError(
                f"loss={self.loss.name}: with these settings it treats failed answers differently, but no reward of this set"
                " grades answers; add the reward correct, or type loss.negative_token_fraction=1.0"
            )
        if self.refill and not self.loss.needs_groups:
            raise UserError(
                f"refill={self.refill}: loss={self.loss.name} compares rewards within the whole batch, so no group is without"
                " signal; type refill=0, or loss=grpo"
            )
        if self.curriculum == "pass_rate" and not self.rewards.needs_grading:
            raise UserError(
                "curriculum=pass_rate: no reward of this set grades answers, so no pass rate is measured; add the reward"
                " correct, or type curriculum=none"
            )
        if self.pass_rates is not None and self.curriculum != "pass_rate":
            raise UserError(
                f"pass_rates={self.pass_rates}: only read by curriculum=pass_rate; type that too, or pass_rates=null"
            )
        if self.rewards.truncated.name == "scale" and self.loss.reads_parts:
            raise UserError(
                f"truncated=scale: loss={self.loss.name} compares each reward by itself, and this rule scales their sum; type"
                " truncated=zero or truncated=mask, or loss=grpo"
            )
        self.budget.first(self.max_tokens)
        budgets = {"max_tokens": [self.max_tokens], "eval_max_tokens": self.eval_budgets}
        check_thinking_tokens(self.thinking_tokens, budgets, self.environment)
        own_reward = self.environment.rewards_itself
        if self.rewards.uses_environment and not own_reward:
            raise UserError(
                f"rewards={self.rewards.name}: environment={self.environment.name} gives no reward of its own; define"
                " get_reward() in your class, or type rewards=boxed to grade the last answer"
            )
        if own_reward and not self.rewards.uses_environment:
            logger.warning(
                "environment=%s: no reward of rewards=%s uses the environment's own; type rewards=environment to use it",
                self.environment.name,
                self.rewards.name,
            )
        if truncated := self.sampling.truncated:
            if reason := self.engine.needs_full_support:
                raise UserError(f"sampling.{truncated}: {reason}; leave it off, or type engine=local")
            if not self.sampling.allow_truncated_support:
                raise UserError(
                    f"sampling.{truncated}: cutting tokens from the distribution makes importance weights wrong; leave it"
                    " off while training, or type sampling.allow_truncated_support=true"
                )

    def on(self, data: DataConfig) -> Blueprint:
        """This blueprint with rewards that read answers as `data`, a set of `eval_data`, says."""
        return replace(self, rewards=rewards_on(self.rewards, self.data, data))

    @property
    def eval_budgets(self) -> list[int]:
        """The budgets of each evaluation during training, in rising order; `max_tokens` is one of them."""
        return sorted({self.max_tokens, *(self.eval_max_tokens or ())})

    def total_steps(self, steps_per_epoch: int) -> int:
        """Steps of the run: `max_steps` if given (the data repeats as needed), else `epochs` passes over the data."""
        return self.max_steps if self.max_steps is not None else self.epochs * steps_per_epoch


def blueprint_from(tree: Mapping[str, Any]) -> Blueprint:
    """The checked blueprint from a composed, resolved config tree. Raises UserError."""
    if not isinstance(tree.get("rewards"), Mapping):
        raise UserError("rewards: missing; expected a set of rewards, e.g. rewards=boxed")
    return build(Blueprint, with_reward_set(tree))


def resumable_keys(blueprint: Blueprint) -> frozenset[str]:
    """The dotted keys and nodes that may change when a run is resumed."""
    return RESUMABLE | {f"engine.{key}" for key in blueprint.engine.resumable}
