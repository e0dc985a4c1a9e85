"""Runs in an environment of several turns, as a user types them: exact resume, and every recipe that samples."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.helpers.forked import set_up, start, timeless

# Tests' own environment, in tests/helpers/environments.py. The random model's answers are noise, of several turns.
NAG = ("environment._target_=tests.helpers.environments.NagConfig", "environment.name=nag")
MODEL = ("model.path=model", *NAG, "+environment.max_context=400", "max_tokens=64", "device=cpu")
RUN = (
    *MODEL, "+rewards.chance._target_=saboteur.chance", "learning_rate=1e-2", "data.train_size=12", "data.test_size=4",
    "batch_size=4", "group_size=3", "max_steps=4", "eval_every=2", "eval_problems=4", "preflight=off", "save_every=1",
    "logger=none",
)  # fmt: skip
PATIENCE = 280  # seconds for a command, on a busy machine


def ran(folder: Path, recipe: str, *arguments: str, exit_code: int = 0, **environment: str) -> str:
    process = start(recipe, *arguments, cwd=folder, environment=environment)
    assert process.wait(PATIENCE) == exit_code, process.err
    return process.out if not exit_code else process.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_random_model) -> Path:
    """A folder with a random model and `whole`, a run of four steps."""
    folder = tmp_path_factory.mktemp("trajectories")
    set_up(folder, *tiny_random_model())
    ran(folder, "rl_basic", *RUN, "run_dir=whole")
    return folder


def samples(run: Path) -> list[dict]:
    lines = (run / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["split"] == "train"]


def test_a_run_killed_between_two_turns_ends_as_the_uninterrupted_one(folder: Path) -> None:
    """The sixth call of the sampler belongs to a later turn of the first or second step."""
    ran(folder, "rl_basic", *RUN, "run_dir=killed", exit_code=-signal.SIGKILL, SABOTAGE="sample:6:9")
    steps = len((folder / "killed/metrics.jsonl").read_text().splitlines())
    assert steps < 4
    ran(folder, "rl_basic", *RUN, "run_dir=killed")
    whole, killed = folder / "whole", folder / "killed"
    assert timeless(killed) == timeless(whole) and samples(killed) == samples(whole)
    weights = "final/adapter_model.safetensors"
    assert (killed / weights).read_bytes() == (whole / weights).read_bytes()


def test_the_metrics_say_what_happened(folder: Path) -> None:
    found = timeless(folder / "whole")
    assert any(row["env/turns"] > 1 for row in found) and "eval/env/turns" in found[0]
    for row in found:
        assert row["env/turns"] <= 4 and row["env/tool_calls"] <= row["env/turns"]
        assert row["tokens/mean"] < row["tokens/context"] <= 400 and row["tokens/max"] <= 64
        ends = {name: value for name, value in row.items() if name.startswith("env/ended/")}
        assert len(ends) == 5 and sum(ends.values()) == pytest.approx(1)
        assert row["env/ended/budget"] == row["frac_truncated"]
        assert (
            0.999 < row["ratio/min"] <= row["ratio/max"] < 1.001
        )  # the learner scores what the sampler drew
    turns = [len(row["conversation"]) for row in samples(folder / "whole")]
    assert max(turns) > 1 and all(count % 2 for count in turns)


def test_evaluate_and_sample_use_the_runs_environment(folder: Path) -> None:
    ran(
        folder, "evaluate", "run=whole", "problems=4", "completions=2", "budgets=[9,64]", "out=evaluated", "device=cpu"
    )  # fmt: skip
    results = json.loads((folder / "evaluated/evaluation.json").read_text())["results"]
    tokens = {(row["policy"], row["budget"]): row["tokens"][0] for row in results if row["part"] == "all"}
    assert tokens["trained", 9] <= 9 < tokens["trained", 64] <= 64
    said = ran(folder, "sample", "run=whole", "rows=4", "max_tokens=64", "temperature=1.0", "device=cpu")
    assert " turns" in said and "→ Turn 1:" in said


def test_preflight_measures_budgets_of_whole_trajectories(folder: Path) -> None:
    ran(folder, "preflight", *MODEL, "problems=4", "completions=4", "budgets=[9,64]", "out=tried")
    budgets = json.loads((folder / "tried/preflight.json").read_text())["budgets"]
    assert [row["budget"] for row in budgets] == [9, 64]
    assert budgets[0]["tokens"][0] <= 9 < budgets[1]["tokens"][0] <= 64


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("+environment.max_turns=3", "environment.max_turns=3: environment=single_turn has one turn"),
        ("environment=games", "environment=games"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, typed: str, expected: str) -> None:
    said = ran(tmp_path, "rl_basic", typed, exit_code=2)
    assert expected in said and said.count("\n") == 1
