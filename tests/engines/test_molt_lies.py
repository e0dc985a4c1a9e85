"""engine=molt as a user runs it, with a process that stands in for Molt and misbehaves: false lines, early ends, changed data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engines.test_molt_launch import STEPS, one_line, rows, run
from tests.helpers.forked import status
from tests.helpers.molt.stand_in import write_stand_in

FALSE = {
    "2": ["Global step 2: {'version': 1.2.3, 'rollout/reward_mean': nan"],
    "3": [f"Global step {'9' * 5000}: {{'a': 1}}", "Global step 99999: {'rollout/reward_mean': 7}"],
    "4": ["\udcff\udcfe\x00ERROR \x1b]0;title\x07", "x" * 100_000, "Global step -3: {'a': 1}"],
    "5": [
        "Global step 1: {'rollout/reward_mean': 9}",
        "Global step 5: {'ip': 10.0.0.1, 'reward_correct': 1e-1}",
    ],
}


@pytest.fixture
def folder(tmp_path) -> Path:
    write_stand_in(tmp_path)
    return tmp_path


def test_false_lines_change_no_record(folder):
    process = run(folder, prints=FALSE)
    assert process.wait() == 0, process.err
    found = rows(folder)
    assert [row["step"] for row in found] == [*range(1, STEPS + 1)]
    assert [row["reward_total"] for row in found if row["step"] != 5] == [0.51, 0.52, 0.53, 0.54, 0.56]
    assert found[4]["reward_correct"] == 0.1 and "molt/ip" not in found[4]
    assert "\x1b" not in process.out and "\x00" not in process.out
    assert status(folder / "run")["step"] == STEPS


@pytest.mark.slow
def test_a_run_ends_after_steps_that_are_not_finite(folder):
    broken = {str(step): [f"Global step {step}: {{'rollout/reward_mean': nan}}"] for step in (2, 4, 5)}
    error = one_line(run(folder, "max_nonfinite_steps=2", prints=broken))
    assert "max_nonfinite_steps=2: 2 steps in a row were not finite (reward_total nan)" in error
    assert [row["step"] for row in rows(folder)] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_an_early_end_and_a_kill_are_named(folder):
    process = run(folder, end_at=3)
    assert process.wait() == 0, process.err
    assert "the last step it reported is 3 of 6" in process.out
    assert "Molt was killed by SIGKILL (out of memory?) after step 2" in one_line(
        run(folder, "run_dir=other", killed_at=3)
    )


def data(folder: Path, last: int) -> None:
    lines = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in (*range(9), last)]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.slow
def test_a_run_continues_on_the_same_problems_only(folder):
    own = (
        "data=jsonl",
        "data.path=train.jsonl",
        "data.gold=plain",
        "data.test_size=null",
        "data.train_size=null",
        "eval_every=0",
    )
    data(folder, last=9)
    one_line(run(folder, *own, fail_at=4))
    data(folder, last=99)
    assert "is not what this run was started with" in one_line(run(folder, *own))
    data(folder, last=9)
    assert run(folder, *own).wait() == 0


@pytest.mark.slow
def test_what_an_earlier_start_left_is_not_taken_for_this_ones(folder):
    """Half an export of a killed start; steps that the checkpoint has and metrics.jsonl has not."""
    one_line(run(folder, fail_at=4))
    export = folder / "run/molt/export"
    export.mkdir()
    (export / "model.safetensors").write_bytes(b"half")
    metrics = folder / "run/metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines(keepends=True)[0])
    process = run(folder, no_export=True)
    assert "ended without weights" in one_line(process)
    assert (
        f"resuming {folder}/run after step 2" in process.out and "metrics.jsonl lacks steps 2" in process.out
    )
