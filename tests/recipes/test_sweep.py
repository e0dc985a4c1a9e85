"""Multiruns as a user types them: with a failing job, repeated, in parallel, and with Optuna."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from recipes.cli.overrides import grid_size, parse_override, with_quotes
from recipes.cli.sweep import installable, missing_plugin
from rl.storage.jsonl import read_jsonl
from tests.helpers.forked import start
from tests.helpers.recipes import rl_basic

SMALL = ("batch_size=2", "group_size=2", "max_steps=1", "eval_problems=4", "preflight=off", "logger=none")

# A user's reward that says how many threads its job computes with.
THREADS = """
import torch

def threads(rollouts):
    print("threads:", torch.get_num_threads())
    return [0.0] * len(rollouts)
"""


def needs(plugin: str) -> pytest.MarkDecorator:
    found = importlib.util.find_spec("hydra_plugins") and importlib.util.find_spec(f"hydra_plugins.{plugin}")
    return pytest.mark.skipif(not found, reason=f"needs {plugin}")


def states(sweep: Path) -> dict[str, str]:
    return {file.parent.name: json.loads(file.read_text())["state"] for file in sweep.glob("*/status.json")}


def links(sweep: Path) -> list[str]:
    """The jobs' pages that the sweep's page leads to."""
    return re.findall('<a href="([^"]*)"', (sweep / "report.html").read_text(encoding="utf-8"))


def test_a_sweep_ends_with_a_report_and_typed_again_trains_what_is_missing(tmp_path: Path) -> None:
    arguments = ("-m", *SMALL, "hydra.sweep.dir=s")
    first = start("rl_basic", "max_tokens=16,0", *arguments, cwd=tmp_path)
    assert first.wait(250) == 1
    assert "1 of the sweep's jobs did not finish" in first.err
    assert "report: s/report.html\n" in first.out
    assert states(tmp_path / "s") == {"max_tokens=16": "finished", "max_tokens=0": "failed"}
    assert links(tmp_path / "s") == ["max_tokens%3D16/report.html"]

    written = (tmp_path / "s/max_tokens=16/metrics.jsonl").stat().st_mtime_ns
    second = start("rl_basic", "max_tokens=16,20", *arguments, cwd=tmp_path)
    assert second.wait(250) == 1  # the failed job's folder is still there
    assert second.out.count("is finished, step 1") == 1
    assert (tmp_path / "s/max_tokens=16/metrics.jsonl").stat().st_mtime_ns == written
    assert links(tmp_path / "s") == ["max_tokens%3D16/report.html", "max_tokens%3D20/report.html"]


@pytest.mark.slow
@needs("hydra_joblib_launcher")
def test_jobs_beside_each_other_share_the_cores_and_keep_their_output_apart(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(THREADS)
    done = rl_basic(
        "-m", "max_tokens=16,24,0", "hydra/launcher=joblib", "+rewards.threads._target_=mine.threads",
        "+rewards.threads.weight=0.1", *SMALL,
        cwd=tmp_path, environment={"OMP_NUM_THREADS": "", "LOKY_MAX_CPU_COUNT": "2"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (sweep,) = (tmp_path / "runs/rl_basic").iterdir()  # though every job is a process of its own
    assert states(sweep) == {
        "max_tokens=16": "finished",
        "max_tokens=24": "finished",
        "max_tokens=0": "failed",
    }
    for name in ("max_tokens=16", "max_tokens=24"):
        log = (sweep / "logs" / f"{name}.log").read_text()
        assert "threads: 1\n" in log and "weights:" in log  # two jobs at once on two cores
        assert f"{name}: finished" in done.stdout
    assert "max_tokens=0: failed: max_tokens=0: expected a positive integer" in done.stdout
    assert "weights:" not in done.stdout
    assert len(links(sweep)) == 2


@pytest.mark.slow
@needs("hydra_submitit_launcher")
def test_jobs_of_a_cluster_launcher_run_on_this_machine_too(tmp_path: Path) -> None:
    done = rl_basic(
        "-m", "max_tokens=16,0", "hydra/launcher=submitit_local", "hydra.sweep.dir=s", *SMALL, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert states(tmp_path / "s") == {"max_tokens=16": "finished", "max_tokens=0": "failed"}
    assert links(tmp_path / "s") == ["max_tokens%3D16/report.html"]


@pytest.mark.slow
@needs("hydra_optuna_sweeper")
def test_optuna_maximises_what_a_run_returns_and_goes_on_where_it_was(tmp_path: Path) -> None:
    small = (*SMALL, "eval_every=0", "hydra.sweep.dir=s")
    assert rl_basic("sweep=optuna", "hydra.sweeper.n_trials=2", *small, cwd=tmp_path).returncode == 0
    done = rl_basic("sweep=optuna", "hydra.sweeper.n_trials=3", *small, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.count("is finished, step 1") == 2
    outcomes = {file.parent.name: read_jsonl(file)[-1]["frac_all_good"] for file in tmp_path.glob("s/*/metrics.jsonl")}  # fmt: skip
    assert len(outcomes) == 3
    assert all("learning_rate=" in name and "rewards.format.weight=" in name for name in outcomes)
    best = yaml.safe_load((tmp_path / "s/optimization_results.yaml").read_text())
    assert best["best_value"] == max(outcomes.values())


@pytest.mark.parametrize(
    ("typed", "sweeper", "jobs"),
    [
        (["max_tokens=32,64,128", "loss=grpo,flashreinforce", "max_steps=2"], {"params": None}, 6),
        (["optimizer.betas=[0.9,0.95]"], {"params": {"max_tokens": "32,64,128"}}, 3),
        (["seed=range(4)"], {"params": None}, 4),
        (["learning_rate=interval(1e-5,1e-3)"], {"params": None, "n_jobs": 5}, 5),
    ],
)
def test_the_size_of_a_grid(typed: list[str], sweeper: dict[str, Any], jobs: int) -> None:
    assert grid_size(OmegaConf.create(sweeper), [parse_override(text) for text in typed]) == jobs


def test_a_jobs_folder_can_be_typed_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loss=grpo,max_tokens=64").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_override(with_quotes("run=loss=grpo,max_tokens=64")).value() == "loss=grpo,max_tokens=64"
    for other in ("max_tokens=32,64", "run=no=such", "name=a=b", "plan"):
        assert with_quotes(other) == other


def test_a_sweeper_that_is_not_installed_is_one_line() -> None:
    said = (
        "In 'hydra/config': Could not find 'hydra/sweeper/optuna' Available options in 'hydra/sweeper': basic"
    )
    assert missing_plugin(said) == "optuna is not installed; type pip install 'tanka-rl[optuna]'"
    assert missing_plugin("In 'hydra/config': Could not find 'hydra/launcher/mine'") is None
    assert installable("submitit", ["basic"]) == " (pip install 'tanka-rl[submitit]' adds submitit_local)"
    assert installable("joblib2", ["basic"]) == installable("joblib", ["basic", "joblib"]) == ""
