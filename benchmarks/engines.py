"""A step of engine=vllm, by stage, beside engine=local and TRL's own loop: `python -m benchmarks.engines [rounds]`.

The main job on the embedded model, all weights trained. Each run of engine=vllm starts its own server (of the Python that
benchmarks.sampling uses) on the CPUs that the learner uses too, so that sampling and training slow each other down. What two
devices would take is computed from the stages at lag 0: with a lag, the longer of sampling and training.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.harness import Contender, Figures, Ratio, compare, in_fresh_process, rounds_from
from benchmarks.sampling import VLLM as PYTHON
from benchmarks.training import OURS, TRL, WARM_UP, main_job, trl
from rl.blueprint import blueprint_from
from rl.storage.jsonl import read_jsonl

STEPS = 12
VLLM = ("engine=vllm", f"engine.python={PYTHON}", "engine.server_device=cpu")
ENGINES = {"local": (), "vllm": VLLM, "vllm_lag_1": (*VLLM, "engine.max_lag=1")}


def main(rounds: int) -> None:
    if not PYTHON.exists():
        print(f"engines: left out, because {PYTHON} does not exist (make build/vllm/installed)")
        return
    contenders = [
        *(
            Contender(name, {"overrides": list(overrides), "steps": STEPS}, partial(ours, overrides))
            for name, overrides in ENGINES.items()
        ),
        Contender(
            "trl", {**TRL["trl"], "steps": STEPS}, partial(in_fresh_process, "benchmarks.engines", "trl")
        ),
    ]
    ratios = [
        *(Ratio("step_seconds", "vllm", other) for other in ("local", "trl")),
        Ratio("step_seconds", "vllm_lag_1", "vllm"),
        Ratio("sample_seconds", "vllm_lag_1", "vllm"),
    ]
    compare("engines", contenders, ratios, rounds)


def ours(overrides: tuple[str, ...]) -> Figures:
    """Medians over the steps after warm-up. sample_seconds: what the learner waited for completions.

    publish_seconds: handing over weights and verifying them. two_devices_seconds, of lag 0: a step with a lag, computed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "recipes.rl_basic", *OURS, "preflight=off", f"max_steps={STEPS}"]
        subprocess.run([*command, *overrides, f"run_dir={folder}/run"], check=True, stdout=subprocess.DEVNULL)
        rows = read_jsonl(Path(folder, "run", "metrics.jsonl"))[WARM_UP:]
    published = [row.get("publish/seconds", 0.0) for row in rows]
    sampled = [row["time/sample"] - seconds for row, seconds in zip(rows, published, strict=True)]
    figures = {
        "step_seconds": [row["time/step"] for row in rows],
        "sample_seconds": sampled,
        "publish_seconds": published,
        "score_seconds": [row["time/score"] for row in rows],
        "update_seconds": [row["time/update"] for row in rows],
        "tokens_per_second": [row["tokens_per_second"] for row in rows],
    }
    if overrides == VLLM:
        figures["two_devices_seconds"] = [
            max(seconds, row["time/step"] - seconds) for row, seconds in zip(rows, sampled, strict=True)
        ]
    return {name: statistics.median(values) for name, values in figures.items()}


def in_trl() -> None:
    """Prints the figures of TRL's loop."""
    _, times = trl(blueprint_from(main_job(*OURS, f"max_steps={STEPS}")), TRL["trl"])
    print(json.dumps({"step_seconds": statistics.median(time["seconds"] for time in times[WARM_UP:])}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["trl"]:
        in_trl()
    else:
        main(rounds_from(sys.argv[1:], default=3))
