"""A run that is killed and started again ends with the metrics of an uninterrupted run."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.helpers.forked import Forked, set_up, start, status, timeless

STEPS = 9  # 7 problems in batches of 2 are 3 steps an epoch: three epochs
SETTINGS = (
    "model.lora.rank=4", "model.lora.dropout=0.2", "learning_rate=1e-2", "+rewards.chance._target_=saboteur.chance",
    "data.train_size=7", "data.test_size=2", "batch_size=2", "group_size=2", "max_tokens=8", f"max_steps={STEPS}",
    "eval_every=2", "eval_problems=2", "save_every=2", "logger=none", "optimizer.schedule=cosine",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_random_model) -> Path:
    """A folder with a small random model and the module that ends runs."""
    folder = tmp_path_factory.mktemp("resume")
    set_up(folder, *tiny_random_model())
    return folder


def run(folder: Path, name: str, *more: str, sabotage: str = "log:0:0") -> Forked:
    return start(
        "rl_basic",
        "model.path=model",
        *SETTINGS,
        *more,
        f"run_dir={name}",
        cwd=folder,
        environment={"SABOTAGE": sabotage},
    )


@pytest.fixture(scope="module")
def whole(folder) -> tuple[list[dict], float]:
    """The metrics of the uninterrupted run, and the seconds it took."""
    assert run(folder, "first", "max_steps=1").wait() == 0  # starts the server, before the clock runs
    begin = time.monotonic()
    process = run(folder, "whole")
    assert process.wait() == 0, process.err
    rows = timeless(folder / "whole")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    # It is worth something only if every step learns and draws at random.
    assert all(row["grad_norm"] > 0 and not row["skipped"] for row in rows)
    assert len({row["reward_chance"] for row in rows}) == STEPS
    return rows, time.monotonic() - begin


def finish(folder: Path, name: str) -> None:
    process = run(folder, name)
    assert process.wait() == 0, process.err
    assert status(folder / name)["state"] == "finished"


# Inside an epoch, at its end, in a later one; while sampling, learning, evaluating, logging, saving, after a save, at the end.
PLACES = (
    "sample:2",
    "update:3",
    "evaluate:1",
    "log:2",
    "save:1",
    "saved:2",
    "sample:1",
    "save:2",
    "export:2",
)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ended_at_every_stage_the_run_goes_on_as_if_nothing_had_happened(number, folder, whole):
    name = f"run-{number}"
    codes = []
    for place in PLACES if number != signal.SIGINT else PLACES[:3]:
        process = run(folder, name, sabotage=f"{place}:{int(number)}")
        codes.append(process.wait())
        if number != signal.SIGKILL:
            assert status(folder / name)["state"] in ("interrupted", "finished"), process.err
    expected = -number if number == signal.SIGKILL else 128 + number
    assert codes.count(expected) >= 3 and set(codes) <= {expected, 0}
    finish(folder, name)
    assert timeless(folder / name) == whole[0]
    assert (folder / name / "samples.jsonl").read_text() == (folder / "whole/samples.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_20_random_moments(folder, whole):
    rows, seconds = whole
    codes = []
    for kill in range(20):
        name = f"random-{kill}"
        process = run(folder, name, "save_every=1")
        time.sleep(random.Random(kill).uniform(0.1, 1) * seconds)
        process.process.kill()
        codes.append(process.wait())
        finish(folder, name)
        assert timeless(folder / name) == rows
    assert codes.count(-signal.SIGKILL) >= 15, "most were to be killed before they finished"


def test_a_finished_run_says_so_and_more_steps_train_on(folder):
    for _ in range(2):
        process = run(folder, "finished", "max_steps=1")
        assert process.wait() == 0, process.err
    assert "is finished, step 1" in process.out and "report.html" in process.out
    assert len(timeless(folder / "finished")) == 1
    process = run(folder, "finished", "max_steps=2", "save_every=1", "logger=none")
    assert process.wait() == 0, process.err
    assert [row["step"] for row in timeless(folder / "finished")] == [1, 2]


def test_another_blueprint_is_refused_with_the_difference(folder):
    assert run(folder, "changed", "max_steps=1").wait() == 0
    process = run(folder, "changed", "max_steps=2", "learning_rate=1e-3", "loss.clip_low=0.1")
    assert process.wait() == 2
    assert "learning_rate: 0.01 -> 0.001" in process.err and "loss.clip_low: 0.2 -> 0.1" in process.err
    assert "max_steps" not in process.err and "save_every" not in process.err, "only what differs is named"
    assert len(process.err.splitlines()) == 1
    process = run(folder, "changed", "max_steps=2", "resume=false")
    assert process.wait() == 2 and "resume=true" in process.err


def test_the_best_checkpoint_is_kept(folder):
    """The best is the checkpoint of the step before the highest value: a step measures the weights that enter it."""
    process = run(folder, "best", "max_steps=6", "save_every=1", "keep_last=1", "keep_best=reward_chance")
    assert process.wait() == 0, process.err
    rewards = {row["step"] - 1: row["reward_chance"] for row in timeless(folder / "best") if row["step"] > 1}
    best = max(rewards, key=rewards.__getitem__)
    kept = sorted(p.name for p in (folder / "best/checkpoints").iterdir())
    assert kept == sorted({f"step-{best:06d}", "step-000006"})
    process = run(folder, "typo", "keep_best=reward_chanse")
    assert process.wait() == 2 and "did you mean reward_chance" in process.err


def test_a_finished_run_without_its_weights_exports_them_again(folder):
    assert run(folder, "bare", "max_steps=1").wait() == 0
    before = timeless(folder / "bare")
    weights = {path.name for path in (folder / "bare/final").iterdir()}
    shutil.rmtree(folder / "bare/final")
    process = run(folder, "bare", "max_steps=1")
    assert process.wait() == 0, process.err
    assert "is finished" not in process.out
    assert {path.name for path in (folder / "bare/final").iterdir()} == weights
    assert timeless(folder / "bare") == before


def test_metrics_cut_short_are_trained_again_from_the_checkpoint_that_they_reach(folder, whole):
    settings = ("save_every=1", "keep_last=9", "max_steps=4", "optimizer.schedule=constant")
    assert run(folder, "cut", *settings).wait() == 0
    before = timeless(folder / "cut")
    lines = (folder / "cut/metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "cut/metrics.jsonl").write_text("".join(lines[:2]) + lines[2][:50])
    process = run(folder, "cut", *settings[:2], "max_steps=5", settings[3])
    assert process.wait() == 0, process.err
    assert "resuming from step-000002, not step-000004" in process.out
    assert timeless(folder / "cut")[:4] == before and len(timeless(folder / "cut")) == 5


def test_lost_metrics_are_named_and_the_run_goes_on(folder):
    assert run(folder, "lost", "max_steps=2").wait() == 0
    (folder / "lost/metrics.jsonl").unlink()
    process = run(folder, "lost", "max_steps=3")
    assert process.wait() == 0, process.err
    assert "metrics.jsonl lacks steps 1-2" in process.out
    assert [row["step"] for row in timeless(folder / "lost")] == [3]


def test_other_data_under_a_resumed_run_is_refused(folder):
    def write(last: int) -> None:
        rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in (1, 2, 3, last)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    # The shared settings name the generated data; this run reads a file.
    settings = [s for s in SETTINGS if not s.startswith(("data.", "eval_"))]
    settings += ["model.path=model", "data=jsonl", "data.path=rows.jsonl", "run_dir=data"]
    write(4)
    first = start("rl_basic", *settings, "max_steps=1", cwd=folder)
    assert first.wait() == 0, first.err
    assert json.loads((folder / "data/data.json").read_text())["train"]["kept"] == 4
    write(5)
    other = start("rl_basic", *settings, "max_steps=2", cwd=folder)
    assert other.wait() == 2 and len(other.err.splitlines()) == 1, other.err
    assert "data.path=rows.jsonl" in other.err and "run_dir=" in other.err
    after = status(folder / "data")
    assert (after["state"], after["step"]) == ("finished", 1) and "data.path=rows.jsonl" in after["reason"]
    write(4)
    same = start("rl_basic", *settings, "max_steps=2", cwd=folder)
    assert same.wait() == 0, same.err
    assert (status(folder / "data")["step"], status(folder / "data")["reason"]) == (2, "")
