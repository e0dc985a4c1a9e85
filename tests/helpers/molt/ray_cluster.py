"""Runs in Molt's environment: a Ray cluster that claims eight GPUs, and what in_molt.py says about it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ray

SCRIPT = Path(__file__).parents[3] / "rl/engines/molt/in_molt.py"

if __name__ == "__main__":
    ray.init(num_cpus=1, num_gpus=8, include_dashboard=False)
    request = json.dumps({"arguments": [], "address": ray.get_runtime_context().gcs_address})
    done = subprocess.run([sys.executable, SCRIPT], input=request, text=True, capture_output=True)
    still_there = ray.is_initialized() and bool(ray.nodes())
    answer = json.loads(done.stdout.splitlines()[-1].partition(": ")[2])
    print(json.dumps({**answer, "still_there": still_there}))
