"""The loop: collect, score, weigh, update, log, discard."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from renderers.base import Renderer
from rl import checkpoint
from rl.blueprint import Blueprint
from rl.engines.base import Engine, SamplingParams
from rl.loggers import Loggers
from rl.losses import weigh
from rl.metrics import rollout_metrics, update_metrics
from rl.problems import ProblemSet
from rl.rollouts import Problem, Rollout
from rl.run_directory import RunDirectory

log = logging.getLogger("tanka")

RENDERER = "renderer.txt"  # the fingerprint of the chat format, beside the weights that were trained with it


@dataclass(frozen=True)
class Run:
    """The opened parts of one training run. `done` steps were trained before this start."""

    blueprint: Blueprint
    problems: ProblemSet
    renderer: Renderer
    engine: Engine
    loggers: Loggers
    directory: RunDirectory
    total_steps: int
    done: int


def train(run: Run) -> None:
    """Trains from the first step not yet done to the last, and leaves the trained weights in `final/`."""
    blueprint, engine = run.blueprint, run.engine
    for step in range(run.done + 1, run.total_steps + 1):
        timer = Timer()
        evaluation = evaluate_at(run, step)
        with timer("sample"):
            engine.publish()
            rollouts = collect(run, run.problems.batch(step - 1, blueprint.batch_size, blueprint.seed), step)
        with timer("score"):
            blueprint.rewards.score(rollouts)
            rows = weigh(rollouts, blueprint.loss, blueprint.max_tokens)
        with timer("update"):
            learning_rate = blueprint.optimizer.rate(blueprint.learning_rate, step, run.total_steps)
            for _ in range(blueprint.loss.updates_per_batch):
                stats = engine.update(rows, blueprint.loss, learning_rate)
        metrics = {
            **rollout_metrics(rollouts),
            **update_metrics(stats, learning_rate),
            **timer.metrics(sum(len(r.completion.tokens) for r in rollouts)),
            **evaluation,
        }
        run.loggers.log(step, metrics)
        run.loggers.samples(step, samples(rollouts, blueprint.samples_per_step, "train"))
        save_at(run, step)
    finish(run)


def collect(run: Run, problems: Sequence[Problem], step: int) -> list[Rollout]:
    """[P x G] rollouts of P problems, each with G completions, sampled from the current policy."""
    blueprint = run.blueprint
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
    params = SamplingParams(blueprint.max_tokens, temperature=0.0, stop_ids=run.renderer.stop_ids, seed=0)
    rollouts = roll_out(run, problems, 1, params)
    blueprint.rewards.score(rollouts)
    run.loggers.samples(step, samples(rollouts, blueprint.samples_per_step, "test"))
    return {f"eval/{name}": value for name, value in rollout_metrics(rollouts).items()}


def save_at(run: Run, step: int) -> None:
    """Status after every step; a checkpoint after every `save_every` steps and after the last."""
    every = run.blueprint.save_every
    if step == run.total_steps or (every and step % every == 0):
        checkpoint.save(
            run.directory.checkpoints, step, lambda folder: write(run, folder), run.blueprint.keep_last
        )
    run.directory.write_status("running", step)


def write(run: Run, folder: Path) -> None:
    """What a checkpoint holds: all that the next step needs beside the blueprint."""
    run.engine.save(folder)
    (folder / RENDERER).write_text(run.renderer.fingerprint(), encoding="utf-8")


def finish(run: Run) -> None:
    """The trained weights as transformers and peft load them, and a last look at the test problems."""
    run.directory.final.mkdir(exist_ok=True)
    run.engine.export(run.directory.final)
    (run.directory.final / RENDERER).write_text(run.renderer.fingerprint(), encoding="utf-8")
    if run.blueprint.eval_every:
        evaluation = evaluate(run, run.total_steps + 1)
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
