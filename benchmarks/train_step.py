"""Seconds of each stage of a step, and the peak memory, of the main job on this machine.

`python -m benchmarks.train_step [override ...]` runs `python -m recipes.rl_basic` three times with the given overrides and
prints medians with the spread over all steps but the first two of each run, which still warm up.
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from rl.jsonl import read_jsonl

RUNS = 3
WARM_UP = 2
STAGES = ("time/sample", "time/score", "time/update", "time/step", "tokens_per_second")


def main(overrides: list[str]) -> None:
    """Prints one JSON object: the machine, the overrides, {min, median, max} of each stage, peak memory in MiB."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(RUNS):
            run = Path(folder, str(number))
            command = [
                sys.executable,
                "-m",
                "recipes.rl_basic",
                "max_steps=12",
                "logger=none",
                *overrides,
                f"run_dir={run}",
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            rows += read_jsonl(run / "metrics.jsonl")[WARM_UP:]
    stages = {name: [row[name] for row in rows] for name in STAGES}
    result = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
        },
        "overrides": overrides,
        "steps": len(rows),
        "stages": {name: {"min": min(v), "median": median(v), "max": max(v)} for name, v in stages.items()},
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
