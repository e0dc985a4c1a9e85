"""`max_sampled_tokens`: a run ends with the step that reaches the number, and resumes exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl.preflight.token_ceiling import token_ceiling
from rl.storage.jsonl import read_jsonl
from tests.helpers.blueprints import composed
from tests.helpers.recipes import rl_basic

# 4 rollouts of 16 tokens, all cut on the untrained model: about 64 tokens a step.
SMALL = ("batch_size=2", "group_size=2", "max_tokens=16", "eval_problems=2", "preflight=off", "logger=none", "max_steps=9", "eval_every=9")  # fmt: skip


def train(folder: Path, limit: int, run: str) -> list[dict[str, float]]:
    result = rl_basic(*SMALL, f"max_sampled_tokens={limit}", f"run_dir={run}", cwd=folder)
    assert result.returncode == 0, result.stderr
    return read_jsonl(folder / run / "metrics.jsonl")


def test_it_ends_with_the_step_that_reaches_the_number_and_resumes_exactly(tmp_path: Path) -> None:
    rows = train(tmp_path, 100, "r")
    totals = [row["sampled_tokens"] for row in rows]
    assert len(rows) >= 2 and totals[-2] < 100 <= totals[-1]
    tokens = [round(row["tokens/mean"] * 4) for row in rows]
    assert totals == [sum(tokens[: i + 1]) for i in range(len(tokens))]
    status = json.loads((tmp_path / "r/status.json").read_text())
    assert (status["state"], status["step"]) == ("finished", len(rows))
    assert (tmp_path / f"r/checkpoints/step-{len(rows):06d}").is_dir() and any(
        (tmp_path / "r/final").iterdir()
    )
    steps = [row["step"] for row in read_jsonl(tmp_path / "r/evaluations.jsonl")]
    assert steps == [1, len(rows) + 1]  # the trained policy too

    again = rl_basic(*SMALL, "max_sampled_tokens=100", "run_dir=r", cwd=tmp_path)
    assert "is finished" in again.stdout and "type a larger max_sampled_tokens" in again.stdout
    longer, whole = train(tmp_path, 230, "r"), train(tmp_path, 230, "whole")
    assert len(longer) > len(rows)
    for key in ("sampled_tokens", "reward_total", "loss", "grad_norm", "tokens/mean"):
        assert [row[key] for row in longer] == [row[key] for row in whole], key


def test_fewer_steps_end_it_earlier(tmp_path: Path) -> None:
    result = rl_basic(*SMALL, "max_steps=1", "max_sampled_tokens=10000", "run_dir=r", cwd=tmp_path)
    assert result.returncode == 0 and len(read_jsonl(tmp_path / "r/metrics.jsonl")) == 1


def test_the_plan_says_where_it_ends(tmp_path: Path) -> None:
    result = rl_basic(*SMALL, "max_sampled_tokens=100", "plan=true", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "at most 9" in result.stdout
    assert "to the step that reaches 100 tokens, at most 9 steps x" in " ".join(result.stdout.split())


def test_the_ceiling_by_hand() -> None:
    """The last step begins below the number: 99 tokens, and a whole batch of 4 x 16."""
    found = token_ceiling(composed(*SMALL, "max_sampled_tokens=100"), steps=9, problems=2, test_problems=[2])
    assert found.training.tokens == 99 + 64
    found = token_ceiling(composed(*SMALL, "max_sampled_tokens=9999"), steps=9, problems=2, test_problems=[2])
    assert found.training.tokens == 9 * 64


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["max_sampled_tokens=0"], "max_sampled_tokens=0: expected a positive integer"),
        (["max_sampled_tokens=many"], "max_sampled_tokens=many: expected a whole number"),
        (
            ["max_sampled_tokens=9", "optimizer.schedule=linear"],
            "optimizer.schedule=linear needs it; type max_steps",
        ),
        (["max_sampled_tokens=9", "optimizer.warmup=0.1"], "optimizer.warmup=0.1 needs it"),
        (
            ["max_sampled_tokens=9", "budget=thinkprune", "budget.rounds=[64,32]"],
            "budget=thinkprune needs it",
        ),
        (["max_sampled_tokens=9", "engine=trl"], "TRL's trainer needs the number of steps"),
        (["max_sampled_token=9"], "did you mean max_sampled_tokens?"),
    ],
)
def test_what_it_cannot_be(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = rl_basic(*arguments, cwd=tmp_path)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert words in result.stderr
