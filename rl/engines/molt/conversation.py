"""One conversation inside Molt, by the rules of rl/trajectories.py, and its score."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any, cast

import renderers
from renderers.base import Renderer
from renderers.tokens import decode
from rl.blueprint import Blueprint
from rl.engines.base import Sampler, SamplingParams
from rl.engines.molt.logs import MEASURED, OURS
from rl.metrics import environment_metrics, rollout_metrics
from rl.rollouts import Completion, Problem, Rollout
from rl.samples import samples
from rl.storage.jsonl import write_row
from rl.task import Task
from rl.trajectories import Trajectory, Walk, directly


class Scorer:
    """Scores one conversation after another with the run's rewards; writes some of them to samples/HOST-PID.jsonl."""

    def __init__(self, blueprint: Blueprint, tokenizer: Any, eos_ids: list[int], folder: Path) -> None:
        self.blueprint, self.rewards, self.tokenizer = blueprint, blueprint.rewards, tokenizer
        model = blueprint.model
        self.renderer: Renderer = renderers.load(
            blueprint.renderer, tokenizer,
            model_renderer=model.renderer, stop_tokens=model.stop_tokens, eos_ids=eos_ids,
        )  # fmt: skip
        self.rewards.start()
        self.rewards.check()
        rollouts = blueprint.batch_size * blueprint.group_size
        self.every = (
            rollouts // min(rollouts, blueprint.samples_per_step) if blueprint.samples_per_step else 0
        )
        self.scored: Counter[str] = Counter()
        folder.mkdir(parents=True, exist_ok=True)
        self.file = (folder / f"{os.uname().nodename}-{os.getpid()}.jsonl").open("a", encoding="utf-8")

    def score(self, rollout: Rollout, split: str) -> dict[str, float]:
        """Sets the rollout's reward and returns the numbers that Molt logs."""
        self.rewards.score([rollout], watch=False)
        if self.every and self.scored[split] % self.every == 0:
            write_row(self.file, samples(self.blueprint, [rollout], split)[0])
            self.file.flush()
        self.scored[split] += 1
        return measured(rollout, self.blueprint.environment.single_turn)


class Conversation:
    """One problem's conversation. shown: the ids of each text that Molt is given to encode."""

    def __init__(self, scorer: Scorer, problem: Problem, split: str, max_length: int) -> None:
        blueprint, renderer = scorer.blueprint, scorer.renderer
        self.scorer, self.split = scorer, split
        self.shown: dict[str, list[int]] = {}
        self.one = Trajectory(problem, 0, 0, blueprint.environment.make(renderer.calls))
        budget = SamplingParams(
            blueprint.max_tokens, blueprint.temperature, renderer.stop_ids, blueprint.seed
        )
        task = Task(blueprint.data.messages, renderer, blueprint.environment, max_length)
        # Molt samples: of the walk only what happens between two turns is used.
        self.walk = Walk(cast(Sampler, None), task, budget, 1, directly, Event())

    def begin(self) -> str:
        """Starts the environment; returns the first prompt as text."""
        self.walk.start(self.one)
        return self._show(self.one.history)

    def limit(self, asked: int | None) -> int:
        """Tokens that the next turn may have. asked: Molt's own limit for a turn."""
        room = int(self.walk.task.max_context) - len(self.one.history)
        return max(1, min(limit for limit in (asked, self.walk.left(self.one), room) if limit is not None))

    def take(self, tokens: list[int], cut: bool) -> None:
        """The turn that was sampled. Its log-probabilities stay with Molt."""
        self.walk.take(self.one, Completion(tokens, [0.0] * len(tokens), "length" if cut else "stop"))

    def answer(self) -> str | None:
        """What the model is shown next, as text; None when the conversation has ended."""
        if self.one.ended is None:
            self.walk.step(self.one)
        if self.one.ended is None:
            return self._show(self.one.history[self.one.read :])
        if self.one.ended != "error":
            self.walk.finish(self.one)
        elif self.scorer.rewards.judged_by_environment:
            self.one.earned = 0.0
        return None

    def outcome(self) -> dict[str, Any]:
        """Score and numbers, as fields of Molt's `Result`."""
        rollout = self.one.rollout()
        info = self.scorer.score(rollout, self.split)
        cut = self.one.ended in ("budget", "turns", "context")
        return {"reward": rollout.reward, "truncated": cut, "info": info}

    def _show(self, tokens: list[int]) -> str:
        text = decode(self.scorer.tokenizer, tokens)
        self.shown[text] = tokens
        return text


def problem_of(label: Any) -> Problem:
    """The problem in a row's label, as `write_problems` wrote it."""
    return Problem(**json.loads(label["problem"]))


def measured(rollout: Rollout, single_turn: bool) -> dict[str, float]:
    """The metrics of one scored rollout whose mean over a batch is the batch's metric."""
    metrics = rollout_metrics([rollout]) | ({} if single_turn else environment_metrics([rollout]))
    return {
        name: float(value)
        for name, value in metrics.items()
        if (name.startswith(OURS) or name in MEASURED) and name != "reward_total" and math.isfinite(value)
    }
