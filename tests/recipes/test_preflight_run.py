"""`recipes.preflight` as a command, and the check that a run makes by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.forked import Forked, set_up, start, status, timeless

SETTINGS = (
    "model.path=model", "model.lora.rank=4", "learning_rate=1e-2", "+rewards.chance._target_=saboteur.chance",
    "data.train_size=7", "data.test_size=2", "batch_size=2", "group_size=2", "max_tokens=8", "max_steps=2",
    "eval_every=0", "save_every=1", "logger=none",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_random_model) -> Path:
    folder = tmp_path_factory.mktemp("preflight")
    set_up(folder, *tiny_random_model())
    return folder


def train(folder: Path, name: str, *more: str) -> Forked:
    return start("rl_basic", *SETTINGS, *more, f"run_dir={name}", cwd=folder)


def test_a_run_checks_its_budget_and_its_numbers_stay_the_same(folder) -> None:
    """The reward draws from every global generator, so it notices a preflight that changed one of them."""
    checked, unchecked = train(folder, "checked"), train(folder, "unchecked", "preflight=off")
    assert checked.wait() == 0, checked.err
    assert unchecked.wait() == 0, unchecked.err
    assert timeless(folder / "checked") == timeless(folder / "unchecked")
    assert not (folder / "unchecked/preflight.json").exists()
    found = json.loads((folder / "checked/preflight.json").read_text())
    assert [row["budget"] for row in found["budgets"]] == [4, 8, 16] and found["budget"] == 8
    assert found["problems"] == 2 and found["completions"] == 2
    assert found["warning"] in (folder / "checked/train.log").read_text()
    assert "% cut" in found["warning"] and "8 tokens" in found["warning"]


def test_only_a_run_that_starts_is_checked(folder) -> None:
    assert train(folder, "resumed", "preflight=off", "max_steps=1").wait() == 0
    resumed = train(folder, "resumed", "preflight=fail")
    assert resumed.wait() == 0, resumed.err
    assert status(folder / "resumed")["step"] == 2 and not (folder / "resumed/preflight.json").exists()


def test_preflight_fail_stops_before_the_first_step(folder) -> None:
    process = train(folder, "failed", "preflight=fail")
    assert process.wait() == 2
    (line,) = process.err.splitlines()
    assert line.startswith("error: preflight=fail: a budget of 8 tokens: ") and "try max_tokens" in line
    assert status(folder / "failed")["state"] == "failed" and status(folder / "failed")["step"] == 0
    assert (folder / "failed/metrics.jsonl").read_text() == ""


def test_the_command_prints_a_table_and_writes_numbers_and_pictures(folder) -> None:
    sizes = ("problems=3", "completions=2", "budgets=[16,4,16]", "out=found")
    process = start("preflight", *SETTINGS, *sizes, "language=ja", cwd=folder)
    assert process.wait() == 0, process.err
    assert "3 problems x 2 completions, 16 tokens at most" in process.out
    assert "this run" in process.out and "peak memory" in process.out
    text = (folder / "found/preflight.json").read_text()
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert [row["budget"] for row in found["budgets"]] == [4, 8, 16]
    for row in found["budgets"]:
        assert row["tokens"][0] <= row["budget"]
        assert all(
            row[name][1] <= row[name][0] <= row[name][2] for name in ("truncated", "accuracy", "signal")
        )
    cut = [row["truncated"][0] for row in found["budgets"]]
    assert cut == sorted(cut, reverse=True)
    assert found["estimate"]["steps"] == 2 and found["estimate"]["rollouts"] == 4
    assert found["memory_bytes"]["peak"] > found["memory_bytes"]["weights"] > 0
    assert {path.name for path in (folder / "found").glob("*.png")} == {
        "preflight-dark.png",
        "preflight-light.png",
    }
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["budgets=[0]"], "budgets=[0]: expected integers from 1"),
        (["budgets=[16,600]"], "budgets=600: the longest prompt leaves"),
        (["max_tokens=600"], "max_tokens=600: the longest prompt leaves"),
        (["problems=0"], "problems=0: expected a positive integer"),
        (["completions=1"], "completions=1: "),
        (["engine=trl"], "engine=trl: it samples only while it trains"),
        (["budgts=[16]"], "did you mean budgets?"),
    ],
)
def test_a_mistake_is_one_line(folder, overrides: list[str], answer: str) -> None:
    process = start("preflight", *SETTINGS, *overrides, cwd=folder)
    assert process.wait() == 2
    *warnings, line = process.err.splitlines()
    assert line.startswith("error: ") and answer in line
    assert all("renderer=auto" in warning for warning in warnings)
