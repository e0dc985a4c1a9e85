"""The loop: collect, score, weigh, update, log, discard."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from renderers.base import Renderer
from rl import signals
from rl.blueprint import Blueprint
from rl.engines.base import Engine, SamplingParams, UpdateStats
from rl.errors import NotFinite
from rl.health import Health
from rl.loggers import Loggers
from rl.losses import weigh
from rl.metrics import rollout_metrics, update_metrics
from rl.problems import ProblemSet
from rl.rollouts import Problem, Rollout, TrainingRow
from rl.run_directory import RunDirectory
from rl.saving import export_final, require_metric, save, save_at

log = logging.getLogger("tanka")


@dataclass(frozen=True)
class Run:
    """The opened parts of one training run. `done` steps were trained before this start."""

    blueprint: Blueprint
    problems: ProblemSet
    renderer: Renderer
    engine: Engine
    loggers: Loggers
    directory: RunDirectory
    health: Health
    total_steps: int
    done: int


def train(run: Run) -> None:
    """Trains from the first step not yet done to the last, and leaves the trained weights in `final/`.

    A signal ends it between two forward passes: the step that was under way is dropped, the one before it is saved.
    """
    finished = run.done
    try:
        with signals.safe_points():
            for step in range(run.done + 1, run.total_steps + 1):
                train_step(run, step)
                finished = step
            finish(run)
    except signals.Interrupted:
        if finished:
            save(run, finished)
        raise


def train_step(run: Run, step: int) -> None:
    """One step, from its problems to its checkpoint."""
    signals.check()
    blueprint = run.blueprint
    timer = Timer()
    evaluation = evaluate_at(run, step)
    with timer("sample"):
        run.engine.publish()
        rollouts = collect(run, run.problems.batch(step - 1, blueprint.batch_size, blueprint.seed), step)
    with timer("score"):
        score(run, rollouts)
        rows = weigh(rollouts, blueprint.loss, blueprint.max_tokens)
    with timer("update"):
        learning_rate = blueprint.optimizer.rate(blueprint.learning_rate, step, run.total_steps)
        stats = update(run, rows, learning_rate)
    metrics = {**rollout_metrics(rollouts), **update_metrics(stats, learning_rate)}
    metrics |= run.health.metrics(metrics)
    metrics |= timer.metrics(sum(len(r.completion.tokens) for r in rollouts)) | evaluation
    if step == 1:
        require_metric(blueprint.keep_best, metrics)
    run.loggers.log(step, metrics)
    run.loggers.samples(step, samples(rollouts, blueprint.samples_per_step, "train"))
    run.health.check(step, metrics, rollouts, rows, stats)
    save_at(run, step)


def score(run: Run, rollouts: Sequence[Rollout]) -> None:
    """Rewards the rollouts; a reward that is not finite leaves the batch without rewards, so that no weight moves."""
    try:
        run.blueprint.rewards.score(rollouts)
    except NotFinite as error:
        log.warning("%s", error)
        for rollout in rollouts:
            rollout.reward = math.nan
            rollout.rewards = dict.fromkeys(run.blueprint.rewards.terms, math.nan)


def update(run: Run, rows: Sequence[TrainingRow], learning_rate: float) -> UpdateStats:
    """The batch's optimiser updates; the stats are the last one's."""
    loss = run.blueprint.loss
    stats = run.engine.update(rows, loss, learning_rate)
    with signals.postponed():  # half of a batch's updates is nothing that a checkpoint could continue
        for _ in range(1, loss.updates_per_batch):
            stats = run.engine.update(rows, loss, learning_rate)
    return stats


def collect(run: Run, problems: Sequence[Problem], step: int) -> list[Rollout]:
    """[P x G] rollouts of P problems, each with G completions, sampled from the current policy."""
    blueprint = run.blueprint
    seed_everything(derived_seed(blueprint.seed, "step", step))
    params = SamplingParams(
        max_tokens=blueprint.max_tokens,
        temperature=blueprint.temperature,
        stop_ids=run.renderer.stop_ids,
        seed=derived_seed(blueprint.seed, "train", step),
        support=blueprint.sampling,
        entropies=blueprint.loss.needs_entropies,
    )
    return roll_out(run, problems, blueprint.group_size, params)


def roll_out(run: Run, problems: Sequence[Problem], n: int, params: SamplingParams) -> list[Rollout]:
    """[P x n] rollouts, those of one problem next to each other."""
    prompts = [run.renderer.prompt(run.problems.messages(problem)) for problem in problems]
    sampled = run.engine.sample(prompts, n, params)
    return [
        Rollout(problem, group, prompt, cut, run.renderer.parse(cut))
        for group, (problem, prompt, completions) in enumerate(zip(problems, prompts, sampled, strict=True))
        for cut in map(run.renderer.cut, completions)
    ]


def evaluate_at(run: Run, step: int) -> dict[str, float]:
    """`eval/*` metrics of the policy that enters `step`, on the first test problems, greedily; {} when not due."""
    every = run.blueprint.eval_every
    return evaluate(run, step) if every and (step - 1) % every == 0 else {}


def evaluate(run: Run, step: int) -> dict[str, float]:
    """Greedy answers to the first `eval_problems` test problems: the same problems each time."""
    blueprint = run.blueprint
    problems = run.problems.test[: blueprint.eval_problems]
    if not problems:
        return {}
    seed_everything(derived_seed(blueprint.seed, "eval", step))
    params = SamplingParams(blueprint.max_tokens, temperature=0.0, stop_ids=run.renderer.stop_ids, seed=0)
    rollouts = roll_out(run, problems, 1, params)
    blueprint.rewards.score(rollouts, watch=False)
    run.loggers.samples(step, samples(rollouts, blueprint.samples_per_step, "test"))
    return {f"eval/{name}": value for name, value in rollout_metrics(rollouts).items()}


def finish(run: Run) -> None:
    """The trained weights in `final/`, and a last look at the test problems."""
    export_final(run)
    if run.blueprint.eval_every and (evaluation := evaluate(run, run.total_steps + 1)):
        log.info("test problems, greedy: reward_total %.3f", evaluation["eval/reward_total"])


def samples(rollouts: Sequence[Rollout], count: int, split: str) -> list[dict[str, Any]]:
    """`count` rollouts spread over the batch, as rows of samples.jsonl: what was asked, said, graded and why."""
    chosen = [rollouts[i * len(rollouts) // count] for i in range(min(count, len(rollouts)))]
    return [
        {
            "split": split,
            "id": r.problem.id,
            "language": r.problem.language,
            "question": r.problem.question,
            "thinking": r.parsed.thinking,
            "text": r.parsed.text,
            "raw": r.parsed.raw,
            "tokens": len(r.completion.tokens),
            "ended": r.parsed.ended,
            "gold": r.verdict.gold,
            "extracted": r.verdict.extracted,
            "correct": r.verdict.correct,
            "format": r.verdict.format,
            "reason": r.verdict.reason,
            "rewards": r.rewards,
            "reward": r.reward,
        }
        for r in chosen
    ]


def derived_seed(seed: int, purpose: str, step: int) -> int:
    """A seed for one purpose at one step: nothing random needs to be stored to resume."""
    return random.Random(f"{seed}/{purpose}/{step}").getrandbits(63)


def seed_everything(seed: int) -> None:
    """Python's, numpy's and torch's global generators: what rewards, data code and LoRA dropout may draw from."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


class Timer:
    """Wall seconds of the stages of one step."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - start

    def metrics(self, sampled_tokens: int) -> dict[str, float]:
        return {
            **{f"time/{stage}": seconds for stage, seconds in self.seconds.items()},
            "time/step": time.perf_counter() - self.start,
            "tokens_per_second": sampled_tokens / self.seconds["sample"],
        }
