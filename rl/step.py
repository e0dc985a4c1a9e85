"""What the stages of a step pass to each other: the opened run, a requested batch, a batch ready for its update."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from renderers.base import Renderer
from rl.arrival import Arrivals
from rl.blueprint import Blueprint
from rl.budget import Budget
from rl.data.pass_rates import PassRates
from rl.data.problems import ProblemSet
from rl.engines.base import Engine, PendingCompletions
from rl.loggers.background import Loggers
from rl.progress import Pace
from rl.rollouts import Problem, Rollout, TrainingRow
from rl.storage.run_directory import RunDirectory
from rl.task import Task
from rl.watchdog import Watchdog


@dataclass(frozen=True)
class PendingBatch:
    """One step's problems and prompts, and their requested completions.

    budget: the token budget of the completions. version: how many steps were trained when they were requested.
    """

    problems: list[Problem]
    prompts: list[list[int]]
    completions: PendingCompletions
    budget: int
    version: int


@dataclass
class SampledTokens:
    """Completion tokens that the training steps have sampled, and the number that ends the run (None: only steps do)."""

    total: int
    limit: int | None

    @property
    def spent(self) -> bool:
        return self.limit is not None and self.total >= self.limit


@dataclass(frozen=True)
class Run:
    """The opened parts of one training run. done: steps trained before this start.

    total_steps: where it ends, unless `sampled` reaches its limit earlier. pending: batches requested ahead of their step,
    by step. arrivals: the rollouts in flight, with engine.collect=arrival. pass_rates: measured so far, with
    curriculum=pass_rate. pace: how long the steps take.
    """

    blueprint: Blueprint
    problems: ProblemSet
    task: Task
    engine: Engine
    loggers: Loggers
    directory: RunDirectory
    watchdog: Watchdog
    budget: Budget
    sampled: SampledTokens
    total_steps: int
    done: int
    pending: dict[int, PendingBatch] = field(default_factory=dict)
    arrivals: Arrivals | None = None
    pass_rates: PassRates | None = None
    pace: Pace = field(default_factory=Pace)

    @property
    def renderer(self) -> Renderer:
        return self.task.renderer

    def ends_with(self, step: int) -> bool:
        """Whether `step`, which was just trained, is the last one."""
        return step >= self.total_steps or self.sampled.spent

    def evaluations(self) -> dict[str, Run]:
        """This run on each set of `eval_data`, by name; without them on its own test split, named ""."""
        return {
            name: replace(
                self,
                problems=problems,
                blueprint=self.blueprint.on(problems.config),
                task=replace(self.task, messages=problems.messages),
            )
            for name, problems in self.problems.evaluations.items()
        } or {"": self}


@dataclass(frozen=True)
class Batch:
    """One step's scored and weighed rollouts, ready for the update.

    evaluation: `eval/*` metrics, where due. discarded: scored rollouts that `refill` replaced, or unscored ones that were too
    old (engine.collect=arrival).
    """

    step: int
    rollouts: list[Rollout]
    rows: list[TrainingRow]
    learning_rate: float
    evaluation: dict[str, float]
    timer: Timer
    discarded: list[Rollout]


class Timer:
    """Wall-clock seconds of each stage of one step; a stage may be entered again."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def metrics(self, sampled_tokens: int, sampled_meanwhile: bool) -> dict[str, float]:
        """sampled_meanwhile: whether tokens are sampled during the other stages too, so that `sample` only waits for them."""
        step = time.perf_counter() - self.start
        return {
            **{f"time/{stage}": seconds for stage, seconds in self.seconds.items()},
            "time/step": step,
            "tokens_per_second": sampled_tokens / (step if sampled_meanwhile else self.seconds["sample"]),
        }
