"""What it costs to show progress: steps of the main job without and with it: `python -m benchmarks.progress [rounds]`.

`off`: nothing is counted. `lines`: counted, and a thread that would print a line every 30 s. `bar`: counted, and the bar
of a terminal, drawn twice a second into a buffer.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import rich

from benchmarks.harness import Contender, Ratio, compare, in_fresh_process, rounds_from
from benchmarks.training import OURS, WARM_UP, main_job, ours
from rl import progress, progress_view

STEPS = 12
WAYS = ("off", "lines", "bar")


def main(rounds: int) -> None:
    contenders = [
        Contender(way, {"steps": STEPS}, partial(in_fresh_process, "benchmarks.progress", "one", way))
        for way in WAYS
    ]
    ratios = [
        Ratio(figure, way, "off", 1.05)
        for figure in ("step_seconds", "step_cpu_seconds")
        for way in ("lines", "bar")
    ]
    compare("progress", contenders, ratios, rounds)


def one(way: str) -> None:
    """Prints the figures of one training."""
    with uncounted() if way == "off" else shown(way):
        _, times = ours(main_job(*OURS, "preflight=off", f"max_steps={STEPS}"))
    steady = times[WARM_UP:]
    print(
        json.dumps(
            {
                "step_seconds": statistics.median(time["seconds"] for time in steady),
                "step_cpu_seconds": statistics.median(time["cpu_seconds"] for time in steady),
            }
        )
    )


@contextmanager
def shown(way: str) -> Iterator[None]:
    """Inside, progress is shown as on a terminal (`bar`) or as in a pipe (`lines`)."""
    rich.reconfigure(file=io.StringIO(), width=120, force_terminal=way == "bar")
    with progress_view.shown():
        yield


@contextmanager
def uncounted() -> Iterator[None]:
    """Inside, tasks are not opened."""

    @contextmanager
    def nothing(opened: progress.Task) -> Iterator[Any]:
        yield opened

    with mock.patch.object(progress, "_opened", nothing):
        yield


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2])
    else:
        main(rounds_from(sys.argv[1:]))
