"""The agent that Molt loads: conversations in the run's environment, scored with the run's own grader and rewards.

Runs in Molt's processes. A run writes a short agent.py (`write_agent`) that puts this project on Python's path.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from rl.blueprint import blueprint_from
from rl.engines.molt.conversation import Conversation, Scorer, problem_of
from rl.places import PROJECT
from rl.trajectories import MOST_THREADS

FILE = '''\
"""Molt's agent of this run; written by tanka-rl at each start."""

import sys

sys.path[:0] = [folder for folder in {folders!r} if folder not in sys.path]

from rl.engines.molt.agent import agent_runner  # noqa: E402

AgentRunner = agent_runner({run_dir!r}, {eos_ids!r})
'''

# Molt makes an Env itself, without arguments; each conversation is an asyncio task, with a context of its own.
CONVERSATION: contextvars.ContextVar[Conversation] = contextvars.ContextVar("conversation")


def write_agent(path: Path, run_dir: Path, eos_ids: list[int]) -> None:
    """Writes Molt's agent file. eos_ids: the end-of-sequence ids of the checkpoint's generation config."""
    text = FILE.format(folders=python_path(), run_dir=str(run_dir), eos_ids=eos_ids)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def python_path() -> list[str]:
    """The folders that hold this project and the user's own modules."""
    installed = ("site-packages", "dist-packages", "lib-dynload")
    own = [str(Path(folder).absolute()) for folder in sys.path if Path(folder).name not in installed]
    libraries = {Path(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    return list(
        dict.fromkeys(
            [
                str(PROJECT),
                *(f for f in own if Path(f).is_dir() and not libraries & set(Path(f).parents)),
            ]
        )
    )


def agent_runner(run_dir: str, eos_ids: list[int]) -> type:
    """Molt's `AgentRunner` class for a run. Imports Molt, so it works in Molt's environment only."""
    from molt.agents import Env, Result, StepEnvRunner

    run = ScoredRun(Path(run_dir), eos_ids)

    class RunEnv(Env):
        """One conversation, as Molt asks for it."""

        def __init__(self) -> None:
            self.conversation = CONVERSATION.get()

        async def reset(self, state: dict[str, Any], **_: Any) -> dict[str, Any]:
            return {**state, "observation": await run.acting(self.conversation.begin)}

        async def step(self, state: dict[str, Any], **_: Any) -> Any:
            answer = await run.acting(self.conversation.answer)
            if answer is not None:
                return Result(reward=0.0, observation=answer, terminated=False)
            return Result(terminated=True, **await run.scoring(self.conversation.outcome))

        async def close(self) -> None:
            await run.acting(self.conversation.one.environment.close)

    class AgentRunner(StepEnvRunner):
        def __init__(self) -> None:
            super().__init__(RunEnv)

        async def execute(
            self, prompt: Any, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any,
            llm_engine: Any, **more: Any,
        ) -> Any:  # fmt: skip
            scorer = await run.scoring(run.scorer, hf_tokenizer)
            conversation = Conversation(scorer, problem_of(label), label["split"], max_length)
            CONVERSATION.set(conversation)
            tokenizer = ExactTokenizer(hf_tokenizer, conversation)
            engine = WatchedEngine(llm_engine, conversation)
            return await super().execute(
                prompt, label, sampling_params, max_length, tokenizer, engine, **more
            )

    return AgentRunner


class ScoredRun:
    """A run directory as the agent sees it. The scorer is made at the first conversation, when a tokenizer is there."""

    def __init__(self, run_dir: Path, eos_ids: list[int]) -> None:
        self.run_dir, self.eos_ids = run_dir, eos_ids
        self.environments = ThreadPoolExecutor(MOST_THREADS, "environment")
        # One thread: grading runs in worker processes, and a set of rewards is not made for several threads.
        self.scores = ThreadPoolExecutor(1, "score")
        self._scorer: Scorer | None = None

    async def acting(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of an environment's work, without blocking Molt's event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.environments, function, *arguments)

    async def scoring(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The same for grading."""
        return await asyncio.get_running_loop().run_in_executor(self.scores, function, *arguments)

    def scorer(self, tokenizer: Any) -> Scorer:
        if self._scorer is None:
            tree = yaml.safe_load((self.run_dir / "config.yaml").read_text(encoding="utf-8"))
            samples = self.run_dir / "molt" / "samples"
            self._scorer = Scorer(blueprint_from(tree), tokenizer, self.eos_ids, samples)
        return self._scorer


class ExactTokenizer:
    """Molt's tokenizer, which gives a text of the conversation exactly the ids that the run's renderer wrote."""

    def __init__(self, tokenizer: Any, conversation: Conversation) -> None:
        self.tokenizer, self.conversation = tokenizer, conversation

    def __call__(self, text: str, **options: Any) -> Any:
        shown = self.conversation.shown.get(text)
        if shown is None:
            return self.tokenizer(text=text, **options)
        import torch

        return {"input_ids": torch.tensor([shown], dtype=torch.long)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


class WatchedEngine:
    """Molt's sampling client, which tells the conversation the sampled tokens: an Env is given text only.

    Sets the renderer's stop ids and what is left of the budget, so that a turn ends where it does on any other engine.
    """

    def __init__(self, engine: Any, conversation: Conversation) -> None:
        self.engine, self.conversation = engine, conversation

    async def generate(self, tokens: Any, sampling_params: Any, **more: Any) -> Any:
        sampling_params.stop_token_ids = sorted(self.conversation.scorer.renderer.stop_ids)
        sampling_params.max_tokens = self.conversation.limit(sampling_params.max_tokens)
        output, lag = await self.engine.generate(tokens, sampling_params, **more)
        sampled = output.outputs[0]
        self.conversation.take(list(sampled.token_ids), sampled.finish_reason == "length")
        return output, lag
