"""What an engine is: a sampler and a learner of one policy. Imports nothing heavy.

The config of an engine, `EngineConfig`, is in rl/blueprint.py: it is the part that a blueprint holds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from rl.errors import UserError
from rl.losses.base import PolicyLoss
from rl.rollouts import Completion, TrainingRow


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
    sequence_kl, admitted: [N], in the order of the rows. ratio_*: over all completion tokens. metrics: the loss's own.
    """

    loss: float
    grad_norm: float
    stepped: bool
    sequence_kl: list[float]
    admitted: list[bool]
    ratio_mean: float
    ratio_max: float
    ratio_min: float
    metrics: dict[str, float] = field(default_factory=dict)


# Called with finished completions of the p-th prompt while others are still being sampled; a sampler may never call it.
Arrived = Callable[[int, Sequence[Completion]], None]


class PendingCompletions(Protocol):
    """Completions that were requested and have not been waited for."""

    def result(self) -> list[list[Completion]]:
        """[P][n] completions of P prompts; an empty group for a prompt whose completions could not be had."""


@dataclass(frozen=True)
class Finished:
    """Completions [P][n] that need no waiting."""

    completions: list[list[Completion]]

    def result(self) -> list[list[Completion]]:
        return self.completions


class Sampler(ABC):
    """Draws completions from the published weights.

    max_lag: how many updates old the sampled policy may be, so that later batches can be requested early. None: it
    shares the learner's weights and never lags.
    """

    max_lag: int | None = None

    def publish(self) -> None:
        """Makes the learner's current weights the ones that are sampled. Nothing to do where they are shared."""

    @abstractmethod
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        """[P][n] completions of P prompts."""

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> PendingCompletions:
        """Requests what `sample` returns. A sampler that runs elsewhere returns at once."""
        return Finished(self.sample(prompts, n, params, arrived))

    def metrics(self) -> dict[str, float]:
        """Counters of its own since the last call; see rl/metrics.py. Empty for a sampler in this process."""
        return {}

    def recall(self, metrics: Mapping[str, Any]) -> None:
        """Restores counters from the last metrics that the run logged: spending after the checkpoint still counts."""

    def close(self) -> None:
        """Frees what it holds."""


class Weights(ABC):
    """Weights that can be stored and restored."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Writes weights and optimiser state into an existing empty folder, for `load`."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Restores what `save` wrote. Raises UserError when it belongs to another model."""

    @abstractmethod
    def export(self, path: Path) -> None:
        """Writes a PEFT adapter or a full model that transformers and peft load."""

    def close(self) -> None:
        """Frees the weights."""


class Learner(Weights):
    """Updates the weights, batch by batch, when the training loop asks for it."""

    @abstractmethod
    def logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """[N][T] log-probabilities of the completions under the current weights, at the training temperature."""

    def reference_logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """[N][T] the same under the reference policy, the model before training; asked for once a batch.

        Raises UserError where the engine has no reference policy.
        """
        raise UserError("loss.kl_beta: this engine has no reference policy; type loss.kl_beta=0")

    @abstractmethod
    def update(self, rows: Sequence[TrainingRow], loss: PolicyLoss, learning_rate: float) -> UpdateStats:
        """Forward, backward and ONE optimiser step over all rows; none when every coefficient is 0."""


class Steps(Protocol):
    """The steps of a run that are still to do, for an engine that runs the training loop itself.

    total: steps of the whole run. problems: problems in a step's batch. directory: the run directory.
    """

    total: int
    problems: int
    directory: Path

    def prepare(self, step: int) -> list[TrainingRow]:
        """Collects, scores and weighs the batch of `step`; its N rows."""

    def conclude(self, stats: UpdateStats) -> None:
        """Logs, checks and saves the prepared step, whose update measured `stats`."""


class Driver(Weights):
    """Weights that are updated by a training loop of their own."""

    @abstractmethod
    def drive(self, steps: Steps) -> None:
        """All steps still to do: `prepare` before each one's updates, `conclude` after them."""


@dataclass(frozen=True)
class Engine:
    """A sampler and a learner of the same policy, opened for one run."""

    sampler: Sampler
    learner: Learner | Driver

    def close(self) -> None:
        """Frees both; one object may be the two."""
        for part in dict.fromkeys((self.sampler, self.learner)):
            part.close()
