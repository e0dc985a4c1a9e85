"""The engine protocol: everything that holds weights, samples from them and updates them.

Importing this module costs nothing: configs live here, weights behind `EngineConfig.open`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from rl.errors import UserError
from rl.losses import PolicyLoss
from rl.rollouts import Completion, TrainingRow

if TYPE_CHECKING:
    from rl.blueprint import Blueprint
    from rl.train import Run


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Restrictions of the sampled distribution; all off while training (RL needs the full support).

    top_p, min_p: 1 and 0 turn them off. top_k: 0 turns it off.
    """

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    allow_truncated_support: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1:
            raise UserError(
                f"sampling.top_p={self.top_p}: expected a share in (0, 1]; e.g. sampling.top_p=1.0"
            )
        if not 0 <= self.min_p < 1:
            raise UserError(
                f"sampling.min_p={self.min_p}: expected a share in [0, 1); e.g. sampling.min_p=0.0"
            )
        if self.top_k < 0:
            raise UserError(f"sampling.top_k={self.top_k}: expected 0 (off) or more; e.g. sampling.top_k=0")

    @property
    def truncated(self) -> str:
        """The first setting that cuts the support, as typed; "" when none does."""
        settings = {"top_p": (self.top_p, 1.0), "top_k": (self.top_k, 0), "min_p": (self.min_p, 0.0)}
        return next((f"{name}={value}" for name, (value, off) in settings.items() if value != off), "")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (arXiv:1711.05101) and its schedule.

    schedule: `constant`, or `linear` / `cosine` decay from the learning rate towards `final_ratio` times it, which a step
    after the last one would have, so that every step moves the weights (as transformers' schedules count).
    warmup: share of all steps over which the rate rises linearly. max_grad_norm: inf turns clipping off.
    """

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: float = 0.0
    final_ratio: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < 1:
            raise UserError(
                f"optimizer.warmup={self.warmup}: expected a share of the steps in [0, 1); e.g. 0.03"
            )
        if not 0 <= self.final_ratio <= 1:
            raise UserError(f"optimizer.final_ratio={self.final_ratio}: expected a share in [0, 1]; e.g. 0.1")
        if not self.max_grad_norm > 0:
            raise UserError(
                f"optimizer.max_grad_norm={self.max_grad_norm}: expected a positive number; e.g. 1.0"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(
                f"optimizer.betas={list(self.betas)}: expected two numbers in [0, 1); e.g. [0.9,0.95]"
            )
        if not 0 <= self.eps < math.inf:
            raise UserError(f"optimizer.eps={self.eps}: expected 0 or more; e.g. 1e-8")
        if not 0 <= self.weight_decay < math.inf:
            raise UserError(f"optimizer.weight_decay={self.weight_decay}: expected 0 or more; e.g. 0.1")

    def rate(self, peak: float, step: int, total_steps: int) -> float:
        """The learning rate of `step` (1-based) of `total_steps`; `peak` is reached when the warm-up ends."""
        warmup_steps = round(self.warmup * total_steps)
        if step <= warmup_steps:
            return peak * step / (warmup_steps + 1)
        progress = (step - 1 - warmup_steps) / (total_steps - warmup_steps)
        if self.schedule == "linear":
            return peak * (1 - (1 - self.final_ratio) * progress)
        if self.schedule == "cosine":
            return peak * (self.final_ratio + (1 - self.final_ratio) * (1 + math.cos(math.pi * progress)) / 2)
        return peak


@dataclass(frozen=True)
class SamplingParams:
    """How to sample once.

    max_tokens: the budget T. temperature: 0 is greedy. stop_ids: any of them ends a completion.
    seed: the same seed, weights and prompts give the same tokens. entropies: also keep each token's exact entropy.
    """

    max_tokens: int
    temperature: float
    stop_ids: frozenset[int]
    seed: int
    support: SamplingConfig = field(default_factory=SamplingConfig)
    entropies: bool = False


@dataclass(frozen=True)
class UpdateStats:
    """One optimiser update over N rows, measured while it ran (before the step).

    loss: the SUM surrogate. grad_norm: before clipping; 0 without a step. stepped: whether the weights moved.
    sequence_kl, admitted: [N], in the order of the rows. ratio_*: over all completion tokens.
    """

    loss: float
    grad_norm: float
    stepped: bool
    sequence_kl: list[float]
    admitted: list[bool]
    ratio_mean: float
    ratio_max: float
    ratio_min: float


# Told of completions of the p-th prompt as soon as they are whole, while others of their batch are not.
Arrived = Callable[[int, Sequence[Completion]], None]


class Policy(Protocol):
    """Weights that can be sampled and saved: what an engine is, however it is updated."""

    def publish(self) -> None:
        """Makes the sampler use the learner's current weights."""

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        """[P][n] completions of P prompts. `arrived` is told of those that are whole before the others; of any, of none."""

    def save(self, path: Path) -> None:
        """Writes weights and optimiser state into an existing empty folder, for `load`."""

    def load(self, path: Path) -> None:
        """Restores what `save` wrote."""

    def export(self, path: Path) -> None:
        """Writes a PEFT adapter or a full model that transformers and peft load."""

    def close(self) -> None:
        """Frees the weights."""


class Engine(Policy, Protocol):
    """A policy that is updated from outside, batch by batch."""

    def logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """[N][T] log-probabilities of the completions under the learner's weights, at the training temperature."""

    def update(self, rows: Sequence[TrainingRow], loss: PolicyLoss, learning_rate: float) -> UpdateStats:
        """Forward, backward and ONE optimiser step over all rows; none when every coefficient is 0."""


class Asked(Protocol):
    """Completions that were asked for and are not yet waited for."""

    def result(self) -> list[list[Completion]]:
        """[P][n] completions of P prompts; a prompt whose completions could not be had has none."""


@runtime_checkable
class Remote(Engine, Protocol):
    """An engine whose weights lie elsewhere: it can be asked ahead, may lose a group, and has numbers of its own.

    max_lag: how many updates old the policy that samples may be; 0: none.
    """

    max_lag: int

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> Asked:
        """What `sample` does, from the learner's weights as they are now, without waiting for it."""

    def recall(self, metrics: Mapping[str, Any]) -> None:
        """Told, after `load`, of the last metrics that the run had logged: what was paid since the checkpoint is paid."""

    def metrics(self) -> dict[str, float]:
        """What the engine counted since it was asked last; see rl/metrics.py."""


@runtime_checkable
class Driver(Policy, Protocol):
    """A policy with a training loop of its own, which makes the updates itself."""

    def drive(self, run: Run) -> None:
        """All steps not yet done: `rl.train.prepare` before each one's updates, `rl.train.conclude` after them."""


class EngineConfig(Protocol):
    """The light half of an engine: built with the blueprint, opened when the run starts."""

    def check(self, blueprint: Blueprint) -> None:
        """Raises UserError when the blueprint cannot run on this engine or this machine; loads no weights."""

    def open(self, blueprint: Blueprint, tokenizer: object) -> Engine | Driver: ...
