"""Loggers seen from outside: what is on disk afterwards, what a bad logger does to training."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.loggers.background import Loggers
from rl.loggers.base import Logger, RunInfo
from rl.storage.jsonl import continue_jsonl, read_jsonl

SAMPLE = {
    "id": "p1",
    "question": "りんごは何個ですか。",
    "text": "答えは\\boxed{11}です。",
    "rewards": {"correct": 1.0},
}


def run_info(folder: Path, resumed_from: int = 0) -> RunInfo:
    return RunInfo(folder, "tiny-test", {"max_tokens": 64}, 10, resumed_from, "id-1")


def metrics(step: int) -> dict[str, float]:
    return {"entropy": step / 7, "grad_norm": math.nan}


class Recorder(Logger):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def open(self, run: RunInfo) -> None:
        self.calls.append(("open", run.name))

    def log(self, step: int, metrics: Any) -> None:
        self.calls.append(("log", step, metrics["entropy"]))

    def samples(self, step: int, rows: Any) -> None:
        self.calls.append(("samples", step, len(rows)))

    def close(self, exit_code: int) -> None:
        self.calls.append(("close", exit_code))


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_the_record_is_strict_json_and_readable_text(tmp_path: Path) -> None:
    loggers = Loggers({})
    loggers.open(run_info(tmp_path))
    loggers.log(1, {"reward_total": 0.25, "grad_norm": math.nan, "loss": -math.inf})
    loggers.samples(1, [SAMPLE | {"text": "日本語 \ud800\n\u2028end", "rewards": {"correct": math.nan}}])
    line = '{"step": 1, "reward_total": 0.25, "grad_norm": null, "loss": null}\n'
    assert (tmp_path / "metrics.jsonl").read_text() == line  # to be read while the run goes on
    loggers.close(0)
    (line,) = (tmp_path / "samples.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    row = json.loads(line, parse_constant=refuse)
    assert row["text"] == "日本語 \ud800\n\u2028end"
    assert row["rewards"] == {"correct": None}
    assert "答えは" not in line and "りんごは何個ですか。" in line


def test_no_logger_leaves_the_record_and_nothing_else(tmp_path: Path) -> None:
    loggers = Loggers({})
    loggers.open(run_info(tmp_path))
    loggers.log(1, metrics(1))
    loggers.close(0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "evaluations.jsonl", "metrics.jsonl", "samples.jsonl",
    ]  # fmt: skip


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    first = Loggers({})
    first.open(run_info(tmp_path))
    for step in range(1, 7):
        first.log(step, metrics(step))
        first.samples(step, [SAMPLE, SAMPLE])
    first.close(1)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(
            '{"step": 7, "text": "日'.encode()[:-1]
        )  # killed in the middle of a line and of a character
    second = Loggers({})
    second.open(run_info(tmp_path, resumed_from=4))
    second.log(5, {"reward_total": 5.5})
    second.close(0)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[3]["entropy"] == metrics(4)["entropy"]
    assert rows[4] == {"step": 5, "reward_total": 5.5}
    assert [row["step"] for row in read_jsonl(tmp_path / "samples.jsonl")] == [1, 1, 2, 2, 3, 3, 4, 4]


@given(
    steps=st.lists(st.integers(1, 30), max_size=20).map(sorted),
    last=st.integers(0, 30),
    text=st.text(),
    torn=st.integers(0, 40),
)
def test_cutting_keeps_exactly_the_steps_before(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], last: int, text: str, torn: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "samples.jsonl"
    rows = [{"step": step, "text": text} for step in steps]
    whole = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(whole + json.dumps({"step": 31, "text": "torn"})[:torn].rstrip("}"))
    continue_jsonl(path, last).close()
    assert read_jsonl(path) == [row for row in rows if row["step"] <= last]
    assert [p.name for p in path.parent.iterdir()] == ["samples.jsonl"]


def test_another_logger_gets_everything_in_order(tmp_path: Path) -> None:
    recorder = Recorder()
    loggers = Loggers({"recorder": recorder})
    loggers.open(run_info(tmp_path))
    reused = {"entropy": 0.0}
    for step in range(1, 201):
        reused["entropy"] = float(step)  # the caller may change its dict afterwards
        loggers.log(step, reused)
    loggers.samples(200, [SAMPLE, SAMPLE])
    loggers.close(7)
    steps = [("log", step, float(step)) for step in range(1, 201)]
    assert recorder.calls == [("open", "tiny-test"), *steps, ("samples", 200, 2), ("close", 7)]


@pytest.mark.parametrize("broken", ["open", "log", "samples", "close"])
def test_a_logger_that_raises_is_reported_once_and_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    calls: list[str] = []

    class Broken(Recorder):
        def __getattribute__(self, name: str) -> Any:
            if name not in ("open", "log", "samples", "close"):
                return super().__getattribute__(name)

            def call(*arguments: Any) -> None:
                calls.append(name)
                if name == broken:
                    raise ValueError("boom\nsecond line")

            return call

    good = Recorder()
    loggers = Loggers({"broken": Broken(), "good": good})
    loggers.open(run_info(tmp_path))
    for step in range(1, 11):
        loggers.log(step, metrics(step))
        loggers.samples(step, [SAMPLE])
    loggers.close(0)
    assert [record.getMessage() for record in caplog.records if "broken" in record.getMessage()] == [
        f"logger broken {'is off' if broken == 'open' else 'is dropped after 3 failures'}, training goes on: "
        "ValueError: boom second line"
    ]
    assert calls.count(broken) == {"open": 1, "log": 3, "samples": 3, "close": 1}[broken]
    assert ("close" in calls) == (broken != "open")
    assert len(good.calls) == 22
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 10


def test_a_logger_that_sleeps_slows_neither_the_steps_nor_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Sleeper(Logger):
        close_seconds = 0.2

        def log(self, step: int, metrics: Any) -> None:
            time.sleep(5)

    loggers = Loggers({"sleeper": Sleeper()})
    loggers.open(run_info(tmp_path))
    start = time.monotonic()
    for step in range(1, 101):
        loggers.log(step, metrics(step))
    assert time.monotonic() - start < 0.5
    loggers.close(0)
    assert time.monotonic() - start < 1.5
    assert "sleeper is still busy" in caplog.text
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 100


def test_a_full_queue_drops_its_oldest_records_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rl.loggers.background.QUEUE_SIZE", 3)
    busy, go_on = threading.Event(), threading.Event()

    class Stuck(Recorder):
        def log(self, step: int, metrics: Any) -> None:
            super().log(step, metrics)
            busy.set()
            go_on.wait(10)

    stuck = Stuck()
    loggers = Loggers({"stuck": stuck})
    loggers.open(run_info(tmp_path))
    loggers.log(1, metrics(1))
    assert busy.wait(5)
    for step in range(2, 11):
        loggers.log(step, metrics(step))
    threading.Timer(0.1, go_on.set).start()
    loggers.close(0)
    # Step 1 is in the logger's hands; of 2..10 the queue of three holds 8, 9, 10; then close takes 8's place.
    assert [call[1] for call in stuck.calls if call[0] == "log"] == [1, 9, 10]
    assert stuck.calls[-1] == ("close", 0)
    assert "logger stuck was too slow: 7 records dropped" in caplog.text
