"""What all benchmarks share: contenders run in turns on one machine, and a result file records settings and machine.

A figure is a median with quartiles over rounds. Ratios are taken within each round, so that a slow minute of the
machine slows both sides.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

ON_GPU = torch.cuda.is_available()
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "trl", "peft")

Figures = dict[str, float]


@dataclass(frozen=True)
class Contender:
    """One side of a comparison. settings: recorded with the result. measure: does one run, returns {figure: value}."""

    name: str
    settings: dict[str, Any]
    measure: Callable[[], Figures]


@dataclass(frozen=True)
class Ratio:
    """`figure` of contender `of` divided by that of `to`.

    target: the largest ratio that is promised, or the smallest for figures per second; None: no promise.
    """

    figure: str
    of: str
    to: str
    target: float | None = None


def compare(name: str, contenders: Sequence[Contender], ratios: Sequence[Ratio], rounds: int) -> None:
    """Runs each contender once a round, in reverse order every second round; writes results/cpu/<name>.json."""
    runs: dict[str, list[Figures]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            figures = contender.measure()
            runs[contender.name].append(figures)
            print(f"{name} {number + 1}/{rounds} {contender.name}:", _line(figures), flush=True)
    result: dict[str, Any] = {
        "benchmark": name,
        "machine": machine(),
        "rounds": rounds,
        "contenders": {c.name: summary(c, runs[c.name]) for c in contenders},
        "ratios": [quotients(ratio, runs[ratio.of], runs[ratio.to]) for ratio in ratios],
    }
    write(name, result)
    for ratio in result["ratios"]:
        print(f"{name}: {ratio['figure']}, {ratio['of']} / {ratio['to']}: {ratio['median']:.2f}", flush=True)


def summary(contender: Contender, runs: Sequence[Figures]) -> dict[str, Any]:
    """A contender's settings and the spread of each figure."""
    figures = {name: spread([run[name] for run in runs]) for name in runs[0]}
    return {"settings": contender.settings, "figures": figures}


def quotients(ratio: Ratio, ours: Sequence[Figures], theirs: Sequence[Figures]) -> dict[str, Any]:
    """The ratio's own fields and its spread over the rounds."""
    pairs = zip(ours, theirs, strict=True)
    return {**asdict(ratio), **spread([a[ratio.figure] / b[ratio.figure] for a, b in pairs])}


def spread(values: Sequence[float]) -> dict[str, Any]:
    """The median, the quartiles and the values themselves."""
    runs = list(values)
    low, median, high = statistics.quantiles(runs, n=4, method="inclusive") if len(runs) > 1 else runs * 3
    return {"median": median, "q1": low, "q3": high, "runs": runs}


def write(name: str, result: dict[str, Any]) -> None:
    """Writes the result; GPU and CPU results have separate folders."""
    folder = RESULTS / ("gpu" if ON_GPU else "cpu")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


Moment = tuple[float, float]


def now() -> Moment:
    """(wall-clock seconds, CPU seconds), after waiting for pending GPU work."""
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def since(start: Moment) -> Figures:
    """`seconds`, and `cpu_seconds` of all threads, which other programs on the machine disturb less."""
    wall, cpu = now()
    return {"seconds": wall - start[0], "cpu_seconds": cpu - start[1]}


class Laps:
    """A lap timer: call it at the end of each lap; `figures` holds the time of each."""

    def __init__(self) -> None:
        self.figures: list[Figures] = []
        self.start = now()

    def __call__(self) -> None:
        self.figures.append(since(self.start))
        self.start = now()


def in_fresh_process(
    module: str, *arguments: str, environment: Mapping[str, str | None] | None = None
) -> Figures:
    """Runs `python -m module arguments`, whose last line of output is a JSON object of figures.

    environment: changes to the environment variables; None removes one.
    """
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        text=True,
        stdout=subprocess.PIPE,
        check=True,
        env={name: value for name, value in variables.items() if value is not None},
    )
    return json.loads(done.stdout.splitlines()[-1])


def peak_memory() -> float:
    """Peak memory of this process in GiB: GPU memory on a GPU, otherwise resident memory."""
    if ON_GPU:
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def machine() -> dict[str, Any]:
    """What a reader needs to judge the figures. load: the 15-minute load average."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if ON_GPU else None,
        "python": platform.python_version(),
        "packages": {package: importlib.metadata.version(package) for package in PACKAGES},
        "load": round(os.getloadavg()[2], 1),
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    """The CPU's model name, from /proc/cpuinfo on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _line(figures: Figures) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def rounds_from(arguments: Sequence[str], default: int = 5) -> int:
    """The number of rounds: the first argument of a benchmark, or `default`."""
    return int(arguments[0]) if arguments else default
