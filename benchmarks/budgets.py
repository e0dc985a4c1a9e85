"""What evaluate and preflight take beside the sampling in them: `python -m benchmarks.budgets [rounds]`.

Each command samples 256 problems x 8 completions of the embedded model once, for budgets of 16, 32 and 64 tokens. It runs
as a user types it, in a fresh process; `seconds` are those from the start of its sampling to its end: grading, measuring,
writing files, and in preflight a trial of the learner. `_sampling` is the same call of the sampler and nothing else.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from benchmarks.harness import Contender, Ratio, compare, in_fresh_process, now, rounds_from, since
from rl.engines.local import engine, sampler

SETTINGS = ("problems=256", "completions=8", "budgets=[16,32,64]")
COMMANDS = ("evaluate", "preflight")


def main(rounds: int) -> None:
    contenders = [
        Contender(
            f"{command}{part}",
            {"overrides": list(SETTINGS)},
            partial(in_fresh_process, "benchmarks.budgets", "one", command, part),
        )
        for command in COMMANDS
        for part in ("", "_sampling")
    ]
    ratios = [Ratio("seconds", command, f"{command}_sampling", 1.2) for command in COMMANDS]
    compare("budgets", contenders, ratios, rounds)


def one(command: str, part: str) -> None:
    """Prints the figures of one run."""
    starts: list[Any] = []
    act = measured_alone if part else lambda _: starts.append(now())
    with (
        tempfile.TemporaryDirectory() as out,
        mock.patch("sys.argv", [command, *SETTINGS, f"out={out}"]),
        before_sampling(act),
    ):
        importlib.import_module(f"recipes.{command}").main()
    (start,) = starts  # one sampling for all budgets
    print(json.dumps(since(start)))


@contextmanager
def before_sampling(act: Callable[[Callable[[], object]], object]) -> Iterator[None]:
    """Inside, `act` is given each call of the sampler before it is made."""
    real = sampler.sample

    def sample(*arguments: Any, **options: Any) -> Any:
        act(partial(real, *arguments, **options))
        return real(*arguments, **options)

    with mock.patch.object(sampler, "sample", sample), mock.patch.object(engine, "sample", sample):
        yield


def measured_alone(sample: Callable[[], object]) -> None:
    """Prints the figures of the call, and ends the program."""
    start = now()
    sample()
    print(json.dumps(since(start)), flush=True)
    raise SystemExit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2], sys.argv[3])
    else:
        main(rounds_from(sys.argv[1:]))
