"""The agent that Molt loads: scores completions with the run's own renderer, grader and rewards.

Runs in Molt's processes. A run writes a short agent.py (`write_agent`) that puts this project on Python's path.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

import renderers
from renderers.base import Renderer
from rl.blueprint import Blueprint, blueprint_from
from rl.engines.molt.logs import MEASURED, OURS
from rl.metrics import rollout_metrics
from rl.places import PROJECT
from rl.rollouts import Completion, Problem, Rollout
from rl.storage.jsonl import write_row

FILE = '''\
"""Molt's agent of this run; written by tanka-rl at each start."""

import sys

sys.path[:0] = [folder for folder in {folders!r} if folder not in sys.path]

from rl.engines.molt.agent import agent_runner  # noqa: E402

AgentRunner = agent_runner({run_dir!r}, {eos_ids!r})
'''


def write_agent(path: Path, run_dir: Path, eos_ids: list[int]) -> None:
    """Writes Molt's agent file. eos_ids: the end-of-sequence ids of the checkpoint's generation config."""
    text = FILE.format(folders=python_path(), run_dir=str(run_dir), eos_ids=eos_ids)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def python_path() -> list[str]:
    """The folders that hold this project and the user's own modules."""
    installed = tuple({sys.prefix, sys.base_prefix})
    own = [str(Path(folder).absolute()) for folder in sys.path if not folder.startswith(installed)]
    return list(dict.fromkeys([str(PROJECT), *(folder for folder in own if Path(folder).is_dir())]))


def agent_runner(run_dir: str, eos_ids: list[int]) -> type:
    """Molt's `AgentRunner` class for a run. Imports Molt, so it works in Molt's environment only."""
    from molt.agents import Env, Result, StepEnvRunner

    run = ScoredRun(Path(run_dir), eos_ids)

    class RunEnv(Env):
        """One conversation."""

        def __init__(self) -> None:
            self.conversation = CONVERSATION.get()

        async def step(self, state: dict[str, Any], **_: Any) -> Any:
            answer = await run.in_thread(self.conversation.step, state)
            return Result(**answer)

    class AgentRunner(StepEnvRunner):
        def __init__(self) -> None:
            super().__init__(RunEnv)

        async def execute(
            self, prompt: Any, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any,
            llm_engine: Any, **more: Any,
        ) -> Any:  # fmt: skip
            scorer = await run.in_thread(run.scorer, hf_tokenizer)
            conversation = Conversation(scorer, problem_of(label), label["split"])
            # Molt makes the Env itself, without arguments; each conversation is a task with a context of its own.
            CONVERSATION.set(conversation)
            watched = WatchedEngine(llm_engine, conversation)
            return await super().execute(
                prompt, label, sampling_params, max_length, hf_tokenizer, watched, **more
            )

    return AgentRunner


class ScoredRun:
    """A run directory as the agent sees it. The scorer is made at the first completion, when a tokenizer is there."""

    def __init__(self, run_dir: Path, eos_ids: list[int]) -> None:
        self.run_dir, self.eos_ids = run_dir, eos_ids
        # One thread: grading runs in worker processes, and a set of rewards is not made for several threads.
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="tanka-score")
        self._scorer: Scorer | None = None

    async def in_thread(self, function: Any, *arguments: Any) -> Any:
        """The function's result, without blocking Molt's event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, function, *arguments)

    def scorer(self, tokenizer: Any) -> Scorer:
        if self._scorer is None:
            tree = yaml.safe_load((self.run_dir / "config.yaml").read_text(encoding="utf-8"))
            self._scorer = Scorer(
                blueprint_from(tree), tokenizer, self.eos_ids, self.run_dir / "molt" / "samples"
            )
        return self._scorer


class Scorer:
    """Scores one completion after another with the run's rewards; writes some of them to samples/PID.jsonl."""

    def __init__(self, blueprint: Blueprint, tokenizer: Any, eos_ids: list[int], samples: Path) -> None:
        self.blueprint, self.rewards = blueprint, blueprint.rewards
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
        samples.mkdir(parents=True, exist_ok=True)
        self.file = (samples / f"{os.uname().nodename}-{os.getpid()}.jsonl").open("a", encoding="utf-8")

    def score(self, rollout: Rollout, split: str) -> dict[str, float]:
        """Sets the rollout's reward and returns the numbers that Molt logs."""
        from rl.train import samples

        self.rewards.score([rollout], watch=False)
        if self.every and self.scored[split] % self.every == 0:
            write_row(self.file, samples([rollout], 1, split)[0])
            self.file.flush()
        self.scored[split] += 1
        return measured(rollout)


class Conversation:
    """One conversation of a problem: what was sampled, and its score."""

    def __init__(self, scorer: Scorer, problem: Problem, split: str) -> None:
        self.scorer, self.problem, self.split = scorer, problem, split
        self.prompt: list[int] = []
        self.sampled: Completion | None = None

    def step(self, state: dict[str, Any]) -> dict[str, Any]:
        """Scores the turn that was just sampled; the fields of Molt's `Result`."""
        assert self.sampled is not None, "Molt samples before it calls step"
        renderer = self.scorer.renderer
        rollout = Rollout(self.problem, 0, self.prompt, self.sampled, renderer.parse(self.sampled))
        info = self.scorer.score(rollout, self.split)
        cut = self.sampled.stop_reason == "length"
        return {"reward": rollout.reward, "terminated": True, "truncated": cut, "info": info}


class WatchedEngine:
    """Molt's sampling client, which also tells the conversation the tokens: an Env is given text only.

    Adds the renderer's stop ids, so that an answer ends at the same tokens as on any other engine.
    """

    def __init__(self, engine: Any, conversation: Conversation) -> None:
        self.engine, self.conversation = engine, conversation

    async def generate(self, tokens: Any, sampling_params: Any, **more: Any) -> Any:
        sampling_params.stop_token_ids = sorted(self.conversation.scorer.renderer.stop_ids)
        output, lag = await self.engine.generate(tokens, sampling_params, **more)
        sampled = output.outputs[0]
        ids = list(sampled.token_ids)
        self.conversation.prompt = self.conversation.prompt or list(tokens)
        self.conversation.sampled = Completion(
            ids, [0.0] * len(ids), "length" if sampled.finish_reason == "length" else "stop"
        )
        return output, lag


CONVERSATION: contextvars.ContextVar[Conversation] = contextvars.ContextVar("conversation")


def problem_of(label: Any) -> Problem:
    """The problem in a row's label, as `write_problems` wrote it."""
    return Problem(**json.loads(label["problem"]))


def measured(rollout: Rollout) -> dict[str, float]:
    """The metrics of one scored rollout whose mean over a batch is the batch's metric."""
    metrics = rollout_metrics([rollout])
    return {
        name: float(value)
        for name, value in metrics.items()
        if (name.startswith(OURS) or name in MEASURED) and name != "reward_total" and math.isfinite(value)
    }
