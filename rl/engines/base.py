"""The engine interface: a sampler and a learner of one policy. Imports nothing heavy.

An engine's config class, `EngineConfig`, is in rl/blueprint.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rl.data.problems import ProblemSet
from rl.errors import UserError
from rl.losses.base import PolicyLoss
from rl.rollouts import Completion, TrainingRow
from rl.task import Task


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Truncation of the sampled distribution. Off by default: importance weights need the full support.

    top_p=1, min_p=0 and top_k=0 turn them off. allow_truncated_support: train with truncation all the same.
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
        """The first setting that truncates the distribution, as typed; "" when none does."""
        settings = {"top_p": (self.top_p, 1.0), "top_k": (self.top_k, 0), "min_p": (self.min_p, 0.0)}
        return next((f"{name}={value}" for name, (value, off) in settings.items() if value != off), "")


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one sampling call.

    max_tokens: the budget T. temperature: 0 is greedy. stop_ids: any of them ends a completion.
    seed: the same seed, weights and prompts give the same tokens. entropies: also return each token's exact entropy.
    limits: [P] each prompt's own budget, at most `max_tokens`; (): `max_tokens` for all. seeds: [P] each prompt's own
    seed; (): derived from `seed`.
    """

    max_tokens: int
    temperature: float
    stop_ids: frozenset[int]
    seed: int
    support: SamplingConfig = field(default_factory=SamplingConfig)
    entropies: bool = False
    limits: Sequence[int] = ()
    seeds: Sequence[int] = ()

    def limit(self, p: int) -> int:
        """The budget of the p-th prompt's completions."""
        return self.limits[p] if self.limits else self.max_tokens

    def of(self, prompts: Sequence[int]) -> SamplingParams:
        """The parameters of some of the prompts, by their indices."""
        return replace(
            self,
            limits=[self.limits[p] for p in prompts] if self.limits else (),
            seeds=[self.seeds[p] for p in prompts] if self.seeds else (),
        )


@dataclass(frozen=True)
class UpdateStats:
    """Measurements of one optimiser update over N rows, at the weights before the step.

    loss: the SUM surrogate. grad_norm: before clipping; 0 without a step. stepped: whether the weights moved.
    sequence_kl, admitted: [N], in row order. ratio_*: over all sampled tokens. metrics: the loss's own.
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
    """Completions that were requested but not yet waited for."""

    def result(self) -> list[list[Completion]]:
        """Waits for the [P][n] completions of P prompts; an empty group for a prompt whose sampling failed."""


@dataclass(frozen=True)
class Finished:
    """Completions [P][n] that are already available."""

    completions: list[list[Completion]]

    def result(self) -> list[list[Completion]]:
        return self.completions


class Sampler(ABC):
    """Draws completions from the weights that were published last.

    Only the thread that trains calls `publish`, before it samples; `sample` and `submit` publish by themselves only if
    nothing has been published yet. So weights are never published in the middle of an update.

    max_lag: how many updates old the sampled policy may be, so that later batches can be requested early. None: the
    sampler shares the learner's weights and never lags. concurrent: whether `sample` may be called from several threads
    at once, also while the learner updates: each trajectory of several turns then goes on by itself, and
    `engine.collect=arrival` is possible.
    """

    max_lag: int | None = None
    concurrent: bool = False

    def publish(self) -> None:
        """Makes the learner's current weights the sampled ones. Does nothing when they are shared."""

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
        """Requests what `sample` returns. A remote sampler returns at once."""
        return Finished(self.sample(prompts, n, params, arrived))

    def conversations(self) -> AbstractContextManager[None]:
        """Inside, prompts continue what was sampled before, and the weights stay: a sampler may reuse its work."""
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        """The sampler's own counters since the last call; see rl/metrics.py. {} for a local sampler."""
        return {}

    def recall(self, metrics: Mapping[str, Any]) -> None:
        """Restores cost counters from the run's last logged metrics: spending after the checkpoint still counts."""

    def close(self) -> None:
        """Frees the sampler's resources."""


class Weights(ABC):
    """Weights that can be saved and restored."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Writes weights and optimiser state into an existing empty folder, for `load`."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Restores what `save` wrote. Raises UserError when it was saved from another model."""

    @abstractmethod
    def export(self, path: Path) -> None:
        """Writes a PEFT adapter or a full model that transformers and peft load."""

    def close(self) -> None:
        """Frees the weights."""


class Learner(Weights):
    """Weights that our training loop updates, batch by batch."""

    @abstractmethod
    def logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """[N][T] log-probabilities of the sampled tokens under the current weights, at the training temperature.

        0 at the tokens of a response that were not sampled.
        """

    def reference_logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """[N][T] the same under the reference policy, the model before training; asked for once a batch.

        Raises UserError where the engine has no reference policy.
        """
        raise UserError("loss.kl_beta: this engine has no reference policy; type loss.kl_beta=0")

    @abstractmethod
    def update(self, rows: Sequence[TrainingRow], loss: PolicyLoss, learning_rate: float) -> UpdateStats:
        """Forward, backward and ONE optimiser step over all rows; no step when every coefficient is 0."""


class Steps(Protocol):
    """The remaining steps of a run, for an engine that runs its own training loop.

    total: steps of the whole run. problems: problems per batch. directory: the run directory.
    """

    total: int
    problems: int
    directory: Path

    def prepare(self, step: int) -> list[TrainingRow]:
        """Collects, scores and weighs the batch of `step`; returns its N rows."""

    def conclude(self, stats: UpdateStats) -> None:
        """Logs, checks and saves the prepared step. stats: of its update."""


class Driver(Weights):
    """Weights that are updated by the engine's own training loop."""

    @abstractmethod
    def drive(self, steps: Steps) -> None:
        """Runs all remaining steps: calls `prepare` before each step's updates and `conclude` after them."""


class Record(Protocol):
    """The run that a job fills: what it trains on, and where its numbers go.

    directory: the run directory. done: steps trained before this start. total: steps of the whole run.
    """

    directory: Path
    done: int
    total: int
    problems: ProblemSet
    task: Task

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes one finished step's metrics and the run's progress."""

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes some of a step's rollouts, as rows of samples.jsonl."""


class Job(Weights):
    """A run that another program carries out: it samples, scores, trains, evaluates and saves by itself."""

    @abstractmethod
    def last_step(self, directory: Path) -> int:
        """The step of its newest checkpoint in a run directory, from which it continues; 0: none."""

    @abstractmethod
    def carry_out(self, record: Record) -> None:
        """Starts the program and records what it reports, until it ends. A signal ends it.

        Raises UserError when it fails.
        """

    def save(self, path: Path) -> None:
        """Nothing: the program saves its own checkpoints."""

    def load(self, path: Path) -> None:
        """Nothing: the program reads its own checkpoints."""


@dataclass(frozen=True)
class Engine:
    """A sampler and a learner of the same policy, opened for one run."""

    sampler: Sampler
    learner: Learner | Driver | Job

    def close(self) -> None:
        """Closes both parts, once if they are the same object."""
        for part in dict.fromkeys((self.sampler, self.learner)):
            part.close()
