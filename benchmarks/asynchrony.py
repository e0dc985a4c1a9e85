"""Learning from older policies, on the embedded task: `python -m benchmarks.asynchrony [seeds, e.g. 0,1,2 [names]]`.

engine=local whose sampler has a copy of the weights, as a server has (tests/helpers/lagged.py). Each training is one entry of
results/cpu/asynchrony.json, written as soon as it ends; those that are there already are not run again. Ordered curves
depend on the seed only; with engine.collect=arrival the order of arrival, and so the curve, also depends on the machine.
`python -m benchmarks.asynchrony table` writes the tables of docs/flashreinforce.md.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from benchmarks.harness import RESULTS, machine
from recipes.cli.compose import CONF, register_resolvers, resolved
from rl.blueprint import blueprint_from, resumable_keys
from rl.data.problems import load
from rl.run import open_run
from rl.storage.jsonl import read_jsonl
from rl.storage.run_directory import open_directory
from rl.train import train

ROOT = Path(__file__).parents[1]
FILE = RESULTS / "cpu" / "asynchrony.json"
PAGE = ROOT / "docs" / "flashreinforce.md"
REWARD, WINDOW = 0.9, 3
ONLY_TRAINING = ("eval_every=0", "save_every=0", "logger=none", "preflight=off")
STEPS = 20
FLASH = (
    "loss=flashreinforce", "loss.delta=1e-2", "learning_rate=2e-4", "optimizer.schedule=linear",
    f"max_steps={STEPS}",
)  # fmt: skip
FAST = "learning_rate=5e-4"
GRPO = ("loss=grpo", "learning_rate=2e-4", "optimizer.schedule=linear", f"max_steps={STEPS}")
ARRIVAL = "engine.collect=arrival"
UNSTABLE = "loss.allow_unstable=true"
TOP_P = ("sampling.top_p=0.9", "sampling.allow_truncated_support=true")
# Of each table: what a row is called, and its overrides.
LAGS: dict[str, tuple[str, ...]] = {
    "flashreinforce, lag 0": FLASH,
    "flashreinforce, lag 1": (*FLASH, "engine.max_lag=1"),
    "flashreinforce, lag 2": (*FLASH, "engine.max_lag=2"),
    "flashreinforce, lag 4": (*FLASH, "engine.max_lag=4"),
    "flashreinforce, arrival, max_lag=2": (*FLASH, "engine.max_lag=2", ARRIVAL),
    "flashreinforce, arrival, max_lag=4": (*FLASH, "engine.max_lag=4", ARRIVAL),
    "grpo, lag 2": (*GRPO, "engine.max_lag=2"),
}
LAG_4 = (
    "as recommended",
    "loss.delta=inf (no trust region)",
    "recorded log-probabilities recomputed",
    "loss.updates_per_batch=2",
)
AGAINST: dict[str, tuple[str, ...]] = {
    "loss.delta=3e-3": ("loss.delta=3e-3",),
    "loss.delta=inf (no trust region)": ("loss.delta=inf",),
    "recorded log-probabilities recomputed": ("+loss.correction=recomputed", UNSTABLE),
    "sampling.top_p=0.9": TOP_P,
    "loss.updates_per_batch=2": ("loss.updates_per_batch=2", UNSTABLE),
    "loss.weighting=token_mean": ("loss.weighting=token_mean", UNSTABLE),
    "learning_rate=5e-4": (FAST,),
    "learning_rate=5e-4, loss.delta=inf": (FAST, "loss.delta=inf"),
    "learning_rate=5e-4, recomputed": (FAST, "+loss.correction=recomputed", UNSTABLE),
}
ABLATIONS = {
    f"lag {lag}, {name}": (*FLASH, f"engine.max_lag={lag}", *changes)
    for lag in (2, 4)
    for name, changes in {"as recommended": (), **AGAINST}.items()
    if lag == 2 or name in LAG_4
}
KEPT = (
    "reward_total",
    "trust/admitted",
    "trust/kl_mean",
    "ratio/max",
    "lag/mean",
    "tokens/mean",
    "lag/dropped",
)


def train_once(seed: int, overrides: Sequence[str]) -> dict[str, list[float]]:
    """The metrics in KEPT of one training, step by step."""
    register_resolvers()
    search = f"hydra.searchpath=[file://{ROOT / 'tests/helpers/conf'}]"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        everything = [search, "engine=lagged", *ONLY_TRAINING, *overrides, f"seed={seed}"]
        tree = resolved(compose("rl_basic", overrides=everything))
    blueprint = blueprint_from(tree)
    with tempfile.TemporaryDirectory() as folder:
        directory = open_directory(
            Path(folder, "run"), Path(folder), tree, [], resume=True, resumable=resumable_keys(blueprint)
        )
        with open_run(blueprint, load(blueprint.data, seed), directory, tree, []) as run:
            train(run)
        rows = read_jsonl(directory.path / "metrics.jsonl")
    return {name: [round(row[name], 5) for row in rows] for name in KEPT if name in rows[0]}


def main(seeds: Sequence[int], words: Sequence[str]) -> None:
    """Runs the trainings that the file lacks, those of the first seed first. words: only rows that contain one of them."""
    for seed in seeds:
        for name, overrides in {**LAGS, **ABLATIONS}.items():
            key, done = f"{' '.join(overrides)} seed={seed}", read()
            if key in done["trainings"] or not any(word in name for word in words or [""]):
                continue
            start = time.monotonic()
            metrics = train_once(seed, overrides)
            done["trainings"][key] = {"seconds": round(time.monotonic() - start), "metrics": metrics}
            done["machine"] = machine()
            write(done)
            print(name, seed, line(metrics), flush=True)


def read() -> dict[str, Any]:
    """The result file."""
    if FILE.exists():
        return json.loads(FILE.read_text(encoding="utf-8"))
    return {"benchmark": "asynchrony", "machine": {}, "trainings": {}}


def write(result: dict[str, Any]) -> None:
    """Writes the result file, one training a line."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result["trainings"].items()]
    head = json.dumps({name: value for name, value in result.items() if name != "trainings"})
    FILE.write_text(head[:-1] + ', "trainings": {\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


def line(metrics: dict[str, list[float]]) -> str:
    return (
        f"reward {metrics['reward_total'][-3:]}, admitted {statistics.fmean(metrics['trust/admitted']):.2f}"
    )


COLUMNS = (
    "first step with reward_total of 0.9 or more",
    f"reward_total, mean of the last {WINDOW} steps",
    "trust/admitted, mean (lowest)",
    "ratio/max",
    "lag/mean",
)


def table(rows: dict[str, tuple[str, ...]], first: str) -> str:
    """A Markdown table: the seeds that were run, separated by slashes, in order."""
    trainings, lines = read()["trainings"], [f"| {first} | " + " | ".join(COLUMNS) + " |", "|---" * 6 + "|"]
    for name, overrides in rows.items():
        keys = [f"{' '.join(overrides)} seed={seed}" for seed in range(10)]
        found = [trainings[key]["metrics"] for key in keys if key in trainings]
        if found:
            cells = [[cells_of(metrics)[i] for metrics in found] for i in range(len(COLUMNS))]
            lines.append(f"| {name} | " + " | ".join(" / ".join(column) for column in cells) + " |")
    return "\n".join(lines)


def cells_of(metrics: dict[str, list[float]]) -> list[str]:
    """One training's figures, a column each."""
    rewards, admitted = metrics["reward_total"], metrics["trust/admitted"]
    reached = next((str(step) for step, reward in enumerate(rewards, 1) if reward >= REWARD), "none")
    return [
        reached,
        f"{statistics.fmean(rewards[-WINDOW:]):.2f}",
        f"{statistics.fmean(admitted):.2f} ({min(admitted):.2f})",
        f"{max(metrics['ratio/max']):.3g}",
        f"{statistics.fmean(metrics['lag/mean']):.1f}",
    ]


def write_tables() -> None:
    """Replaces the tables of docs/flashreinforce.md."""
    page = PAGE.read_text(encoding="utf-8")
    for mark, rows, first in (("lag", LAGS, "run"), ("ablation", ABLATIONS, "run")):
        begin, end = f"<!-- {mark}: python -m benchmarks.asynchrony table -->", f"<!-- end of {mark} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{table(rows, first)}\n{end}{rest.split(end)[1]}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        write_tables()
    else:
        seeds = sys.argv[1] if len(sys.argv) > 1 else "0,1,2"
        main([int(seed) for seed in seeds.split(",")], sys.argv[2:])
