"""TensorBoard and W&B, read back with their own formats."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl.loggers.background import Loggers
from rl.loggers.base import RunInfo
from rl.loggers.tensorboard import TensorBoard

ROOT = Path(__file__).parents[2]
SIX = ("reward_total", "reward_correct", "reward_format", "frac_all_good", "entropy", "learning_rate")


def metrics(step: int) -> dict[str, float]:
    return {name: step / 100 + i for i, name in enumerate(SIX)} | {"grad_norm": float("nan")}


def samples(step: int) -> list[dict[str, Any]]:
    answer = {"raw": f"答え{step}", "gold": "7", "reason": "wrong", "tokens": step, "reward": 0.5}
    return [{"id": f"p{i}", "question": f"Question {i}?", **answer} for i in range(2)]


def test_tensorboard_holds_every_step_once_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resumed_from, steps in ((0, range(1, 7)), (4, range(5, 9))):
        loggers = Loggers({"tensorboard": TensorBoard()})
        loggers.open(RunInfo(tmp_path, "tiny-test", {}, 10, resumed_from, "id-1"))
        for step in steps:
            loggers.log(step, {"reward_total": step + resumed_from / 10})
        loggers.close(0)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(event.step, round(event.value, 4)) for event in events.Scalars("reward_total")]
    assert found == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5.4), (6, 6.4), (7, 7.4), (8, 8.4)]


WANDB_RUN = """
import logging, sys, time
from pathlib import Path
from rl.loggers.background import Loggers
from rl.loggers.base import RunInfo
from rl.loggers.wandb import WandB
from tests.recipes.test_trackers import metrics, samples

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
folder, resumed_from, steps, exit_code = Path(sys.argv[1]), *map(int, sys.argv[2:5])
loggers = Loggers({"wandb": WandB()})
loggers.open(RunInfo(folder, "tiny-test", {"max_tokens": 64}, steps, resumed_from, "m=1,n=2:#日本-1"))
start = time.monotonic()
for step in range(resumed_from + 1, steps + 1):
    loggers.log(step, metrics(step))
    loggers.samples(step, samples(step))
print("steps took", time.monotonic() - start)
loggers.close(exit_code)
"""


def wandb_run(folder: Path, *arguments: int, **environment: str) -> str:
    """Runs it as a user without an account and without a terminal would; returns what was printed."""
    folder.mkdir(exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB") and key != "NETRC"}
    done = subprocess.run(
        [sys.executable, "-c", WANDB_RUN, str(folder), *map(str, arguments)],
        cwd=ROOT,
        env=kept | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def offline_records(run_file: Path) -> Iterator[Any]:
    """The protobuf records of a .wandb file: a LevelDB log (blocks of 32 KiB) behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts = run_file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(parts)
            parts = b""


def offline_run(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """The history rows and the exit code of the one offline run under `folder`."""
    (run_file,) = folder.glob("wandb/offline-run-*/*.wandb")
    records = list(offline_records(run_file))
    rows = []
    for record in records:
        if record.HasField("history"):
            items = record.history.item
            rows.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            )
    (exit_code,) = [record.exit.exit_code for record in records if record.HasField("exit")]
    return rows, exit_code


def test_wandb_without_an_account_is_offline_and_holds_the_six_names_at_every_step(tmp_path: Path) -> None:
    printed = wandb_run(tmp_path / "run", 0, 120, 3)
    (folder,) = (tmp_path / "run").glob("wandb/offline-run-*")
    assert (
        f"W&B is offline (no API key is configured); upload later with: wandb sync {shlex.quote(str(folder))}"
        in printed
    )
    rows, exit_code = offline_run(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(1, 121))
    for row in rows:
        assert {name: row[name] for name in SIX} == {name: metrics(row["step"])[name] for name in SIX}
    assert exit_code == 3


def test_wandb_follows_a_resumed_run_by_our_own_step(tmp_path: Path) -> None:
    wandb_run(tmp_path / "run", 50, 53, 0)
    rows, _ = offline_run(tmp_path / "run")
    assert [row["step"] for row in rows if SIX[0] in row] == [51, 52, 53]


def test_wandb_names_the_offline_folders_of_every_start_of_a_run(tmp_path: Path) -> None:
    wandb_run(tmp_path / "a run", 0, 2, 1)
    printed = wandb_run(tmp_path / "a run", 2, 4, 1)
    folders = sorted((tmp_path / "a run").glob("wandb/offline-run-*"))
    assert len(folders) == 2
    command = printed.split("upload later with: ")[1].splitlines()[0]
    assert shlex.split(command) == ["wandb", "sync", *map(str, folders)]


def test_wandb_holds_a_finished_runs_pictures_and_its_samples_before_and_after(tmp_path: Path) -> None:
    wandb_run(tmp_path / "run", 0, 4, 0)
    rows, exit_code = offline_run(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 4] and exit_code == 0
    media, files = rows[-1], next((tmp_path / "run").glob("wandb/offline-run-*/files"))
    assert (files / media["report/curves/path"]).read_bytes().startswith(b"\x89PNG")
    table = json.loads((files / media["report/samples/path"]).read_text(encoding="utf-8"))
    shown = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(row["question"], row["step"], row["answer"]) for row in shown] == [
        ("Question 0?", 1, "答え1"), ("Question 0?", 4, "答え4"),
        ("Question 1?", 1, "答え1"), ("Question 1?", 4, "答え4"),
    ]  # fmt: skip


def test_pictures_that_cannot_be_drawn_cost_wandb_nothing_else(tmp_path: Path) -> None:
    printed = wandb_run(tmp_path / "run", 0, 4, 0, MPLBACKEND="no such backend")
    assert printed.count("logger wandb") == 1
    rows, exit_code = offline_run(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and exit_code == 0


def test_wandb_disabled_by_its_own_variable_writes_nothing(tmp_path: Path) -> None:
    printed = wandb_run(tmp_path / "run", 0, 3, 0, WANDB_MODE="disabled")
    assert "W&B" not in printed
    assert not list((tmp_path / "run").glob("**/*.wandb"))


@pytest.mark.slow
def test_wandb_with_a_key_but_no_server_falls_back_and_costs_no_step(tmp_path: Path) -> None:
    server = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    printed = wandb_run(tmp_path / "run", 0, 5, 0, **server)
    assert "W&B is offline (the server cannot be used: " in printed
    assert float(printed.split("steps took ")[1].split()[0]) < 1
    rows, _ = offline_run(tmp_path / "run")
    assert [row["step"] for row in rows if SIX[0] in row] == [1, 2, 3, 4, 5]
