"""docs/environments.md as a user follows it, and environments in whole runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.helpers.recipes import ROOT, run_recipe

PAGE = (ROOT / "docs/environments.md").read_text(encoding="utf-8")
QUICK = (
    "eval_every=0",
    "preflight=off",
    "logger=none",
    "run_dir=run",
    "max_steps=1",
    "batch_size=2",
    "group_size=2",
)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_your_own_tools_in_15_lines(tmp_path):
    section = PAGE.partition("## Your own tools")[2].partition("\n## ")[0]
    python, rows = (
        re.search(rf"^```{kind}\n(.*?)^```$", section, re.M | re.S)[1] for kind in ("python", "json")
    )
    assert len(python.splitlines()) <= 15
    (tmp_path / "my_env.py").write_text(python, encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text(rows, encoding="utf-8")
    (typed,) = re.findall(r"^ {4}python -m recipes\.rl_basic (.+)$", section, re.M)
    done = run_recipe("rl_basic", *shlex.split(typed), *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (metrics,) = read(tmp_path / "run/metrics.jsonl")
    assert metrics["reward_earned"] == metrics["reward_total"] >= 0


def test_the_calculator_in_a_run(tmp_path):
    done = run_recipe(
        "rl_basic",
        "model=tiny_tools",
        "environment=calculator",
        *QUICK,
        "group_size=16",
        "samples_per_step=32",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (metrics,) = read(tmp_path / "run/metrics.jsonl")
    assert 0 < metrics["env/tool_calls"] < 1 and 1 < metrics["env/turns"] < 2


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["environment=class"], "needs your class; type environment.path=my_env.Shop"),
        (["environment=class", "environment.path=nowhere.Shop"], "environment.path=nowhere.Shop: cannot be imported"),
        (["environment=calculator"], "leaves out the tool calculate; choose a model that was taught to call tools"),
        (["environment=alfworld", "data=alfworld", "rewards=environment"], "type pip install 'tanka-rl[alfworld]'"),
        (["environment=python", "environment.seconds=0"], "environment.seconds=0.0: expected a number of seconds"),
        (["environment=calculater"], "did you mean environment=calculator"),
        (["environment=calculator", "environment.max_turn=3"], "did you mean environment.max_turns"),
        (["environment=calculator", "rewards=environment"], "environment=calculator gives no reward of its own"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_line(typed, words, tmp_path):
    done = run_recipe("rl_basic", *typed, *QUICK, cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert "Traceback" not in done.stderr
