"""Recipes as real processes that start at once: forked from a server that has torch imported already."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import sys
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "peft",
        "transformers.models.auto.modeling_auto",
        "transformers.models.qwen3.modeling_qwen3",
        "recipes.rl_basic",
        "rl.run",
        "rl.report.plots",
        "rl.report.run_page",
        "rl.engines.local.engine",
        "rl.engines.local.sampler",
        "rl.engines.local.learner",
    ]
)


@dataclass(frozen=True)
class Forked:
    """A started recipe."""

    process: BaseProcess
    output: Path

    def wait(self, seconds: float = 120) -> int:
        """The exit code as a shell reports it; the output is in `out` and `err`."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running after {seconds} s"
        return self.process.exitcode

    def wait_for(self, path: Path, seconds: float = 60) -> None:
        """Waits until the process has made a file."""
        deadline = time.monotonic() + seconds
        while not path.exists():
            assert self.process.is_alive() and time.monotonic() < deadline, self.err
            time.sleep(0.005)

    @property
    def out(self) -> str:
        return (self.output / "out.txt").read_text()

    @property
    def err(self) -> str:
        return (self.output / "err.txt").read_text()


def start(
    recipe: str, *arguments: str, cwd: Path, stdin: str = "", environment: dict[str, str] | None = None, file_size: int | None = None
) -> Forked:  # fmt: skip
    """`python -m recipes.<recipe> ...` in `cwd`; no file may grow beyond `file_size` bytes."""
    output = cwd / f".output-{time.monotonic_ns()}"
    output.mkdir()
    (output / "in.txt").write_text(stdin)
    process = CONTEXT.Process(
        target=_run, args=(recipe, arguments, cwd, output, environment or {}, file_size)
    )
    process.start()
    return Forked(process, output)


def _run(recipe: str, arguments: tuple[str, ...], cwd: Path, output: Path, environment: dict[str, str], file_size: int | None) -> None:  # fmt: skip
    os.setsid()
    os.chdir(cwd)
    for descriptor, name in enumerate(("in.txt", "out.txt", "err.txt")):
        os.dup2(
            os.open(output / name, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT), descriptor
        )
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", **environment}
    sys.path.insert(0, str(cwd))
    sys.argv = [recipe, *arguments]
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    importlib.import_module(f"recipes.{recipe}").main()


def set_up(folder: Path, model: Any, tokenizer: Any) -> None:
    """A folder for these runs: a checkpoint in `model`, and the module that ends or breaks runs."""
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "saboteur.py").write_text(SABOTEUR)


def timeless(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without measured times."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if not k.startswith("time/") and k != "tokens_per_second"}
        for row in rows
    ]


def status(run: Path) -> dict[str, Any]:
    return json.loads((run / "status.json").read_text())


# A user's module that ends or breaks the run that imports it, at the n-th call of a function: SABOTAGE=place:n:signal.
SABOTEUR = '''
import math, os, random
import numpy, torch
import rl.engines.local.sampler, rl.evaluating, rl.loggers.base, rl.loggers.jsonl, rl.losses.grpo, rl.report.run_page, rl.saving, rl.train
from rewards.grading import Grader
from rl.engines.local.learner import LocalLearner
from rl.engines.local.engine import LocalSampler

Grader.start = Grader.self_test = lambda self: None  # plain numbers need no workers
rl.report.run_page.write_report = lambda run_dir: run_dir / "report.html"  # seconds, tested elsewhere
torch.set_num_threads(1)

PLACES = {
    "sample": (LocalSampler, "sample"),
    "draw": (rl.engines.local.sampler, "draw"),
    "update": (LocalLearner, "_forward"),
    "evaluate": (rl.evaluating, "evaluate"),
    "save": (rl.saving, "write"),
    "saved": (rl.train, "save_at"),
    "log": (rl.loggers.jsonl.JSONL, "log"),
    "export": (LocalLearner, "export"),
}
place, number, signal = os.environ.get("SABOTAGE", "log:0:0").split(":")
owner, name = PLACES[place]
original, calls = getattr(owner, name), 0

def sabotaged(*arguments, **named):
    global calls
    calls += 1
    result = original(*arguments, **named)
    if calls == int(number):
        os.kill(os.getpid(), int(signal))
    return result

setattr(owner, name, sabotaged)

def chance(rollouts):
    """A reward that draws from every global generator, with a different value for most rollouts."""
    noise = random.random() + numpy.random.random() + torch.rand(()).item()
    return [(sum(r.completion.tokens) * noise) % 1 for r in rollouts]

class NaNLoss(rl.losses.grpo.GRPO):
    """NaN in the rows of the steps that NAN_STEPS names (one micro-batch a step)."""
    def objective(self, logprobs, log_ratio, coefficients, mask):
        global nan_calls
        nan_calls += 1
        value = super().objective(logprobs, log_ratio, coefficients, mask)
        return value * (math.nan if str(nan_calls) in os.environ["NAN_STEPS"].split(",") else 1)

nan_calls = 0

class Stuck(rl.loggers.base.Logger):
    close_seconds = 60.0
    def log(self, step, metrics):
        raise RuntimeError("no such server")
    def close(self, exit_code):
        import time
        time.sleep(60)
'''
