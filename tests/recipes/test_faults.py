"""Faults of the user, the disk or the machine: one clear line, and no trained step is lost."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl import signals
from rl.errors import NotFinite, UserError
from rl.storage import checkpoint
from rl.storage.jsonl import read_jsonl
from rl.storage.run_directory import default_folder
from tests.helpers.forked import Forked, set_up, start, start_process, status, timeless
from tests.helpers.rollouts import one_turn_row

SETTINGS = (
    "model.path=model", "+rewards.chance._target_=saboteur.chance", "data.train_size=8", "data.test_size=2", "batch_size=2",
    "group_size=2", "max_tokens=8", "max_steps=4", "save_every=1", "logger=none", "learning_rate=1e-2",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_random_model) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    set_up(folder, *tiny_random_model())
    return folder


def run(folder: Path, run_dir: Path | str, *more: str, **environment: str) -> Forked:
    return start("rl_basic", *SETTINGS, f"run_dir={run_dir}", *more, cwd=folder, environment=environment)


def one_line(process: Forked) -> str:
    """The only line on stderr of a run that failed by the user's or the machine's fault."""
    assert process.wait() == 2, process.err
    assert process.err.startswith("error: ") and len(process.err.splitlines()) == 1, process.err
    return process.err


def test_a_file_size_limit_leaves_the_last_checkpoint_and_one_line(folder):
    assert run(folder, "limited", "max_steps=2").wait() == 0
    limited = start("rl_basic", *SETTINGS, "run_dir=limited", cwd=folder, file_size=30_000)
    assert "File too large" in one_line(limited) and "run_dir=limited" in limited.err
    assert status(folder / "limited")["state"] == "failed"
    latest = checkpoint.latest(folder / "limited/checkpoints")
    assert latest and latest.name == "step-000002"
    assert run(folder, "limited").wait() == 0
    assert [row["step"] for row in timeless(folder / "limited")] == [1, 2, 3, 4]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_and_a_read_only_disk(folder, small_disk):
    assert run(folder, small_disk / "run", "max_steps=1").wait() == 0
    (small_disk / "filler").write_bytes(b"0" * (os.statvfs(small_disk).f_bavail * 4096 - 100_000))
    assert "No space left on device" in one_line(run(folder, small_disk / "run"))
    latest = checkpoint.latest(small_disk / "run/checkpoints")
    assert latest and latest.name == "step-000001"
    (small_disk / "filler").unlink()
    process = run(folder, small_disk / "run", "max_steps=2")
    assert process.wait() == 0, process.err
    assert [row["step"] for row in timeless(small_disk / "run")] == [1, 2]
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert "Read-only file system" in one_line(run(folder, small_disk / "run"))
    assert "Read-only file system" in one_line(run(folder, small_disk / "new"))


def damage_truncated(newest: Path) -> None:
    with (newest / "state.pt").open("r+b") as file:
        file.truncate(100)


def damage_empty_marker(newest: Path) -> None:
    (newest / checkpoint.MARKER).write_text("")


def damage_missing_file(newest: Path) -> None:
    (newest / "state.pt").unlink()


@pytest.mark.parametrize("damage", [damage_truncated, damage_empty_marker, damage_missing_file])
def test_a_broken_checkpoint_is_passed_over_and_named(damage, folder):
    name = damage.__name__
    assert run(folder, name, "max_steps=3").wait() == 0
    before = timeless(folder / name)
    damage(folder / name / "checkpoints/step-000003")
    process = run(folder, name)
    assert process.wait() == 0, process.err
    assert "step-000003 is incomplete" in process.out and "after step 2" in process.out
    assert timeless(folder / name)[:3] == before and len(timeless(folder / name)) == 4


def test_a_status_file_of_no_length_and_leftovers_of_a_first_start_do_not_stop_a_run(folder):
    assert run(folder, "empty", "max_steps=1").wait() == 0
    (folder / "empty/status.json").write_text("")
    assert run(folder, "empty", "max_steps=2").wait() == 0
    assert status(folder / "empty")["step"] == 2
    (folder / "begun").mkdir()
    (folder / "begun/.config.yaml.tmp").write_text("half")
    assert run(folder, "begun", "max_steps=1").wait() == 0


def test_what_is_not_a_run_is_refused(folder):
    (folder / "photos").mkdir()
    (folder / "photos/cat.png").write_text("")
    assert "not a run" in one_line(run(folder, "photos"))
    assert "is a file" in one_line(run(folder, "photos/cat.png"))


def test_a_nan_loss_skips_the_step_and_is_counted(folder):
    process = run(folder, "not-a-number", "loss._target_=saboteur.NaNLoss", NAN_STEPS="2")
    assert process.wait() == 0, process.err
    rows = timeless(folder / "not-a-number")
    assert [row["nonfinite"] for row in rows] == [row["skipped"] for row in rows] == [0, 1, 0, 0]
    assert rows[1]["loss"] is None and "step 2 moved no weights" in process.out
    kept = read_jsonl(folder / "not-a-number/nonfinite.jsonl")
    assert {row["step"] for row in kept} == {2} and len(kept) == 4
    assert all(row["question"] and row["response_tokens"] for row in kept)


def test_nan_after_nan_stops_the_run_and_a_restart_counts_on(folder):
    settings = ("loss._target_=saboteur.NaNLoss", "max_nonfinite_steps=2")
    killed = run(folder, "diverged", *settings, NAN_STEPS="2", SABOTAGE=f"saved:2:{int(signal.SIGKILL)}")
    assert killed.wait() == -signal.SIGKILL
    stopped = run(folder, "diverged", *settings, NAN_STEPS="1")
    assert "2 steps in a row" in one_line(stopped) and "nonfinite.jsonl" in stopped.err
    assert status(folder / "diverged")["state"] == "failed"
    latest = checkpoint.latest(folder / "diverged/checkpoints")
    assert latest and latest.name == "step-000002"


def test_a_reward_that_is_not_finite_leaves_the_batch_without_rewards(caplog):
    from rl.scoring import score

    class Rewards:
        names = ("mine",)

        def score(self, rollouts, watch):
            raise NotFinite("rewards.mine: returned nan on problem 7; expected a finite number")

    rollouts = [SimpleNamespace(reward=1.0, rewards={}) for _ in range(2)]
    with caplog.at_level(logging.WARNING, "tanka"):
        score(SimpleNamespace(blueprint=SimpleNamespace(rewards=Rewards())), rollouts)
    assert all(math.isnan(r.reward) and math.isnan(r.rewards["mine"]) for r in rollouts)
    assert "problem 7" in caplog.text


def test_a_stuck_logger_does_not_hold_up_the_end(folder):
    process = run(
        folder, "stuck", "+logger.stuck._target_=saboteur.Stuck", "max_steps=100000", "save_every=0"
    )
    process.wait_for(folder / "stuck/metrics.jsonl")
    time.sleep(1)
    os.kill(process.process.pid, signal.SIGTERM)
    begin = time.monotonic()
    assert process.wait() == 143
    assert time.monotonic() - begin < 10
    assert (
        status(folder / "stuck")["state"] == "interrupted" and status(folder / "stuck")["reason"] == "SIGTERM"
    )
    assert "run_dir=" in process.out
    latest = checkpoint.latest(folder / "stuck/checkpoints")
    assert latest and checkpoint.step_of(latest) == timeless(folder / "stuck")[-1]["step"]


def test_two_runs_on_one_directory(folder):
    first = run(folder, "shared", "max_steps=100000")
    first.wait_for(folder / "shared/checkpoints/step-000001")
    assert f"pid {first.process.pid}" in one_line(run(folder, "shared", "max_steps=100000"))
    first.process.kill()  # a dead owner's lock does not hold
    assert first.wait() == -signal.SIGKILL
    done = checkpoint.step_of(checkpoint.latest(folder / "shared/checkpoints"))
    second = run(folder, "shared", f"max_steps={done + 2}")
    assert second.wait() == 0, second.err
    assert [row["step"] for row in timeless(folder / "shared")] == list(range(1, done + 3))


def ask_twice(first: int, second: int) -> None:
    with signals.handled(), signals.safe_points():
        os.kill(os.getpid(), first)
        try:
            os.kill(os.getpid(), second)
            time.sleep(60)
        finally:
            os._exit(1)  # no clean-up is waited for


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_the_second_signal_exits_at_once(numbers):
    process = start_process(ask_twice, *numbers)
    process.join(30)
    assert process.exitcode == 128 + numbers[1]


def test_a_signal_waits_for_the_next_safe_point():
    with signals.handled(), signals.safe_points():
        os.kill(os.getpid(), signal.SIGTERM)
        with signals.postponed():
            signals.check()
        with pytest.raises(signals.Interrupted) as caught:
            signals.check()
        signals.check()  # what saves the run must not be interrupted by the same signal
    assert caught.value.exit_code == 143 and str(caught.value) == "SIGTERM"
    with ThreadPoolExecutor() as pool:  # nothing of it is left for what the process does next
        pool.submit(signals.check).result()
    with signals.handled(), pytest.raises(signals.Interrupted):
        os.kill(os.getpid(), signal.SIGINT)


def write_then_die(checkpoints: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "a").write_text("new")
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.save(checkpoints, 2, write)


def test_killed_between_two_files_of_a_checkpoint(tmp_path):
    checkpoint.save(tmp_path, 1, lambda folder: (folder / "a").write_text("old"))
    process = start_process(write_then_die, tmp_path)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    latest = checkpoint.latest(tmp_path)
    assert latest and latest.name == "step-000001" and (latest / "a").read_text() == "old"
    newest = checkpoint.save(tmp_path, 2, lambda folder: (folder / "a").write_text("new"))
    checkpoint.prune(tmp_path, newest, keep_last=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]


def test_a_broken_newer_checkpoint_does_not_push_out_whole_ones(tmp_path):
    for step in (1, 2, 9):
        newest = checkpoint.save(tmp_path, step, lambda folder: (folder / "a").write_text("x"))
    (newest / "a").unlink()
    (tmp_path / "step-by-step.txt").write_text("the user's own")
    saved = checkpoint.save(tmp_path, 3, lambda folder: (folder / "a").write_text("x"))
    checkpoint.prune(tmp_path, saved, keep_last=2)
    latest = checkpoint.latest(tmp_path)
    assert latest and latest.name == "step-000003"
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-000002", "step-000003", "step-000009"]


def test_out_of_memory_halves_the_micro_batch_once(tiny_random_model, monkeypatch, caplog):
    import torch

    from rl.engines.local.learner import LocalLearner
    from rl.losses.grpo import GRPO
    from rl.optimizer import OptimizerConfig

    rows = [one_turn_row([5, 6], [7, 8], [-5.0, -5.0], [0.1 * n] * 2) for n in range(1, 5)]
    expected = LocalLearner(tiny_random_model()[0], OptimizerConfig(), 1.0, 16)
    stats = expected.update(rows, GRPO(), 1e-2)

    learner = LocalLearner(tiny_random_model()[0], OptimizerConfig(), 1.0, 16)
    forward = learner._forward

    def too_large(layout):
        if layout.shape[0] > 3:  # rows; 8 tokens hold the prompt and three of the four completions
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(layout)

    monkeypatch.setattr(learner, "_forward", too_large)
    with caplog.at_level(logging.WARNING, "tanka"):
        halved = learner.update(rows, GRPO(), 1e-2)
    assert "engine.microbatch_tokens=8" in caplog.text and learner.microbatch_tokens == 8
    assert halved.stepped and halved.loss == pytest.approx(stats.loss, rel=1e-5)
    for a, b in zip(expected.parameters, learner.parameters, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    monkeypatch.setattr(
        learner, "_forward", lambda batch: (_ for _ in ()).throw(torch.OutOfMemoryError("again"))
    )
    with pytest.raises(UserError, match=r"out of memory .*engine\.microbatch_tokens=4"):
        learner.update(rows, GRPO(), 1e-2)


def test_numbers_that_stand_out_are_logged(tmp_path, caplog):
    from rl.watchdog import Watchdog

    usual = {
        "step": 1, "nonfinite": 0.0, "grad_norm": 1.0, "ratio/min": 1.0, "ratio/max": 1.0, "frac_truncated": 0.0,
    }  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(usual | {"step": s}) + "\n" for s in range(1, 21))
    )
    watchdog = Watchdog(tmp_path, done=20, max_nonfinite_steps=3)
    with caplog.at_level(logging.WARNING, "tanka"):
        watchdog.check(21, usual | {"grad_norm": 9.0}, [], [], None)
        assert caplog.text == ""
        watchdog.check(22, usual | {"grad_norm": 11.0}, [], [], None)
        assert "step 22: gradient norm 11, usually 1" in caplog.text
        watchdog.check(23, usual | {"ratio/max": 30.0}, [], [], None)
        assert "step 23" in caplog.text and "30 times" in caplog.text


@pytest.fixture(scope="module")
def finished(folder) -> Path:
    process = run(folder, "finished", "max_steps=1")
    assert process.wait() == 0, process.err
    return folder / "finished"


def test_a_folder_that_cannot_be_is_one_line(folder):
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    for place in ("dangling", "loop", "/proc/x", "x" * 500, "~no-such-user/x"):
        assert "run_dir=" in one_line(run(folder, f"'{place}'")), place
    assert "run_dir=''" in one_line(run(folder, "''"))


@pytest.mark.parametrize(
    ("name", "damage", "answer"),
    [
        (".lock", "folder", ".lock is a folder"),
        ("checkpoints", "file", "checkpoints is a file"),
        ("config.yaml", "", "config.yaml is broken"),
        ("config.yaml", "{: [", "config.yaml is broken"),
        ("train.log", "folder", "train.log cannot be used"),
    ],
)
def test_a_damaged_run_is_one_line(name, damage, answer, finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "run") / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if damage == "folder":
        path.mkdir()
    else:
        path.write_text(damage)
    assert answer in one_line(run(finished.parent, tmp_path / "run", "max_steps=2"))


@pytest.mark.parametrize("text", ["[]", "5", '{"state": "finished"}', '{"state": 1, "step": "x"}'])
def test_a_status_of_another_shape_does_not_stop_a_run(text, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run/status.json").write_text(text)
    process = run(finished.parent, tmp_path / "run", "max_steps=2")
    assert process.wait() == 0, process.err
    assert [row["step"] for row in timeless(tmp_path / "run")] == [1, 2] and status(tmp_path / "run")[
        "run_id"
    ]


def test_a_finished_run_without_metrics_says_where_its_weights_are(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    for text in ("", "5\n"):
        (tmp_path / "run/metrics.jsonl").write_text(text)
        process = run(finished.parent, tmp_path / "run", "max_steps=1")
        assert process.wait() == 0, process.err
        assert "is finished" in process.out and "weights: " in process.out


def test_jsonl_goes_on_behind_a_line_that_is_no_row(tmp_path):
    for spoilt in ("5", "[]", '{"step": "2"}', "{}", '{"ste'):
        (tmp_path / "rows.jsonl").write_text(f'{{"step": 1}}\n{spoilt}\n{{"step": 3}}\n')
        assert read_jsonl(tmp_path / "rows.jsonl") == [{"step": 1}, {"step": 3}]


@pytest.mark.parametrize("name", ["../../x", "a\0b\nc", "x" * 500, "名" * 300, "\\"])
def test_a_name_stays_one_folder_below_the_recipe(name, tmp_path):
    path = tmp_path / default_folder("rl_basic", name)
    assert path.parent == tmp_path / "runs/rl_basic" and path.name.isprintable()
    path.mkdir(parents=True)
    assert len(path.name.encode()) <= 120


def hang_up(ignored: bool) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with signals.handled():
            os.kill(os.getpid(), signal.SIGHUP)
    except signals.Interrupted as interrupt:
        os._exit(interrupt.exit_code)
    os._exit(0)


@pytest.mark.parametrize(("ignored", "code"), [(False, 129), (True, 0)])
def test_a_closed_terminal_interrupts_but_not_under_nohup(ignored, code):
    process = start_process(hang_up, ignored)
    process.join(30)
    assert process.exitcode == code
