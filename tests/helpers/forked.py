"""Recipes as real processes that start at once: forked from a server that has torch imported already."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

CONTEXT = multiprocessing.get_context("forkserver")
ROOT = Path(__file__).parents[2]
OFFLINE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}


@functools.cache
def server(*preloaded: str) -> forkserver.ForkServer:
    """A running server that has imported these modules of this package."""
    started = forkserver.ForkServer()
    started.set_forkserver_preload([f"tests.helpers.{name}" for name in preloaded])
    with contextlib.chdir(ROOT), mock.patch.dict(os.environ, OFFLINE):  # where it finds this package
        started.ensure_running()
    return started


def start_process(target: Callable[..., object], *arguments: object, torch: bool = True) -> BaseProcess:
    """A started process that calls `target`. torch: it has torch and the other libraries of a run already."""
    chosen = server("forked", *(["warm_libraries"] if torch else []), "warm_hydra")
    process = CONTEXT.Process(target=target, args=arguments)
    with (
        mock.patch.object(forkserver, "connect_to_new_process", chosen.connect_to_new_process),
        mock.patch.multiple("__main__", __spec__=None, __file__=None, create=True),  # it would import pytest
    ):
        process.start()
    return process


@dataclass(frozen=True)
class Forked:
    """A started recipe."""

    process: BaseProcess
    output: Path

    def wait(self, seconds: float = 280) -> int:
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
    recipe: str, *arguments: str, cwd: Path, path: Path | None = None, stdin: str = "", environment: dict[str, str] | None = None,
    file_size: int | None = None, output: Path | None = None,
) -> Forked:  # fmt: skip
    """`python -m recipes.<recipe> ...` in `cwd`; no file may grow beyond `file_size` bytes.

    Differs from the real command in three things that cost seconds: libraries are imported already, pictures are one
    pixel, and the grader's self-test is left out. path: a folder that goes first on the Python path; torch is then not
    imported yet. output: the folder for what the recipe prints.
    """
    output = output or Path(tempfile.mkdtemp(prefix=".output-", dir=cwd))
    (output / "in.txt").write_text(stdin)
    variables = {**os.environ, **OFFLINE, **(environment or {})}
    process = start_process(
        _run, recipe, arguments, cwd, path, output, variables, file_size, torch=path is None
    )
    return Forked(process, output)


def _run(recipe: str, arguments: tuple[str, ...], cwd: Path, path: Path | None, output: Path, environment: dict[str, str], file_size: int | None) -> None:  # fmt: skip
    os.setsid()
    os.chdir(cwd)
    for descriptor, name in enumerate(("in.txt", "out.txt", "err.txt")):
        os.dup2(
            os.open(output / name, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT), descriptor
        )
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [str(place) for place in (cwd, path) if place]
    sys.argv = [recipe, *arguments]
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    main = importlib.import_module(f"recipes.{recipe}").main
    grader: Any = importlib.import_module("rewards.grading").Grader
    grader.start = grader.self_test = lambda self: None  # starts two workers; plain numbers need none
    main()


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
