"""The time of each stage of a step and the peak memory, for any main job: `python -m benchmarks.train_step [override ...]`.

Runs `python -m recipes.rl_basic` once with the given overrides and prints one JSON object: medians with quartiles over
all steps except the first two, which are warm-up.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import machine, spread
from rl.storage.jsonl import read_jsonl

STEPS, WARM_UP = 12, 2
STAGES = ("time/sample", "time/score", "time/update", "time/step", "tokens_per_second")


def main(overrides: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"max_steps={STEPS}", "eval_every=0", "logger=none", *overrides, f"run_dir={folder}/run"]
        command = [sys.executable, "-m", "recipes.rl_basic", *settings]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = read_jsonl(Path(folder, "run", "metrics.jsonl"))[WARM_UP:]
    stages = {name: spread([row[name] for row in rows]) for name in STAGES}
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    result = {"machine": machine(), "overrides": overrides, "stages": stages, "peak_gib": peak}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
