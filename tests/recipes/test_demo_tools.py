"""The embedded agent learns to call the calculator: `make demo-tools`."""

from __future__ import annotations

import json
from statistics import fmean

import pytest

from tests.helpers.recipes import run_recipe


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("loss", "seed"), [("grpo", 0), ("flashreinforce", 1)])
def test_it_learns_to_call(loss, seed, tmp_path):
    done = run_recipe(
        "rl_basic", "model=tiny_tools", "environment=calculator", f"loss={loss}", f"seed={seed}", "eval_every=40",
        "preflight=off", "logger=none", "run_dir=run", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 40
    assert rows[0]["reward_total"] < 0.38 and rows[0]["env/tool_calls"] < 0.35
    assert fmean(row["reward_total"] for row in rows[-5:]) > 0.9
    assert fmean(row["env/tool_calls"] for row in rows[-5:]) > 0.9
    evaluations = (tmp_path / "run/evaluations.jsonl").read_text().splitlines()
    assert json.loads(evaluations[-1])["accuracy"][0] > 0.9  # of greedy answers to test problems
