"""Runs with tools that are stopped: what resumes exactly, what is left behind, and what a server that is down leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.recipes import ROOT, run_recipe

QUICK = (
    "model=tiny_tools",
    "eval_every=0",
    "preflight=off",
    "logger=none",
    "run_dir=run",
    "batch_size=4",
    "group_size=8",
)
TIMES = ("time/", "tokens_per_second", "memory", "sampler/")


def tool(name: str) -> list[str]:
    return ["environment=class", f"environment.path=tests.helpers.tool_classes.{name}"]


def metrics(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith(TIMES)} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", [["environment=calculator"], tool("ByPython")], ids=["calculator", "python"]
)
def test_a_resumed_run_equals_an_uninterrupted_one(environment, tmp_path):
    for name, lengths in (("whole", (3,)), ("halves", (1, 3))):
        (tmp_path / name).mkdir()
        for steps in lengths:
            done = run_recipe("rl_basic", *QUICK, *environment, f"max_steps={steps}", cwd=tmp_path / name)
            assert done.returncode == 0, done.stderr
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "halves")
    assert metrics(tmp_path / "whole")[0]["env/tool_calls"] > 0


def test_a_tool_server_that_goes_down_ends_the_run_in_one_line(tmp_path):
    done = run_recipe("rl_basic", *QUICK, *tool("ServedUntil"), "max_steps=5", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "the tool calculate cannot reach its server: nothing listens on port 9; start the server" in line
    steps = len(metrics(tmp_path))
    saved = sorted(path.name for path in (tmp_path / "run/checkpoints").glob("step-*"))
    assert 1 <= steps < 5 and saved[-1:] == [f"step-{steps:06d}"]
    again = run_recipe("rl_basic", *QUICK, *tool("ServedUntil"), f"max_steps={steps + 1}", cwd=tmp_path)
    assert "resuming" in (again.stdout + again.stderr).lower()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_run_killed_in_a_tool_call_leaves_no_process(tmp_path):
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    run = subprocess.Popen(
        [sys.executable, "-m", "recipes.rl_basic", *QUICK, *tool("Slowly"), "max_steps=1"],
        cwd=tmp_path, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 250
        while not (tools := children_in_sandbox(run.pid)):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(0.5)
        tools |= children_in_sandbox(run.pid)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    deadline = time.monotonic() + 20
    while any(
        Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in tools
    ):
        assert time.monotonic() < deadline, "processes of the tool are left"
        time.sleep(0.1)


def children_in_sandbox(pid: int) -> set[int]:
    """The tool's processes below `pid`."""
    parents, sandboxed = {}, set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
            if b"sandbox/child.py" in (stat.parent / "cmdline").read_bytes():
                sandboxed.add(int(stat.parent.name))
        except OSError:
            continue
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return below & sandboxed
