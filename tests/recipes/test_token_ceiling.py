"""The token ceiling: by hand, as a plan prints it, and against what a run samples."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rl.preflight.token_ceiling import evaluations, token_ceiling
from tests.helpers.blueprints import composed
from tests.helpers.recipes import rl_basic

SMALL = ("batch_size=3", "group_size=2", "max_tokens=2", "max_steps=3")


def ceiling(*overrides: str, steps: int, problems: int, tests: int | None = None) -> tuple[int, int, int]:
    found = token_ceiling(composed(*overrides), steps, problems, [tests])
    assert found.tokens == found.training.tokens + found.evaluations.tokens + found.preflight.tokens
    return found.training.tokens, found.evaluations.tokens, found.preflight.tokens


def test_by_hand() -> None:
    """Steps x rollouts x budget; evaluations x problems x completions x max_tokens; the check at twice the budget."""
    usual = ("batch_size=16", "group_size=8", "max_tokens=64", "eval_every=10", "eval_problems=64")
    assert ceiling(*usual, steps=40, problems=16) == (40 * 128 * 64, 5 * 64 * 64, 128 * 128)
    assert ceiling(*usual, "eval_completions=4", steps=40, problems=16, tests=10)[1] == 5 * 10 * 4 * 64
    assert ceiling(*usual, "eval_every=0", "preflight=off", steps=40, problems=16) == (40 * 128 * 64, 0, 0)
    assert ceiling(*usual, steps=40, problems=16, tests=0)[1] == 0
    # A set of 5 problems is one batch of 5, and the check has no more of them either.
    assert ceiling(*usual, steps=40, problems=5)[::2] == (40 * 40 * 64, 40 * 128)
    # budget=tighten starts at twice max_tokens, and the check at twice that; evaluations keep max_tokens.
    assert ceiling(*usual, "budget=tighten", steps=40, problems=16) == (
        40 * 128 * 128,
        5 * 64 * 64,
        128 * 256,
    )
    # Groups of 32 are checked with 8 completions each, batches of 128 with 16 problems.
    assert ceiling(*usual, "group_size=32", "batch_size=128", steps=1, problems=128)[2] == 16 * 8 * 128


@pytest.mark.parametrize(
    ("steps", "every", "count"), [(1, 10, 2), (10, 10, 2), (11, 10, 3), (40, 10, 5), (3, 1, 4), (3, 0, 0)]
)
def test_evaluations_before_every_nth_step_and_at_the_end(steps: int, every: int, count: int) -> None:
    assert evaluations(steps, every) == count


def printed(*overrides: str, cwd: Path) -> dict[str, str]:
    """The rows of the plan's last table."""
    plan = rl_basic(*overrides, "plan=true", cwd=cwd)
    assert plan.returncode == 0, plan.stderr
    rows = re.findall(r"^ ( ?[a-z ]+?|  [a-z]+) {2,}(\S.*?) *$", plan.stdout, re.MULTILINE)
    return {name.strip(): value for name, value in rows}


def test_a_plan_counts_evaluations_and_the_preflight(tmp_path: Path) -> None:
    rows = printed("max_steps=1", "batch_size=1", "group_size=2", cwd=tmp_path)
    assert rows["token ceiling"] == "8,576 completion tokens"
    assert rows["training"] == "1 steps x 2 rollouts x 64 tokens = 128"
    assert rows["evaluations"] == "2 x 64 rollouts x 64 tokens = 8,192"
    assert rows["preflight"] == "2 rollouts x 128 tokens = 256"


def test_a_plan_limits_evaluations_to_the_test_problems(tmp_path: Path) -> None:
    for name, count in {"train": 8, "test": 5}.items():
        lines = [json.dumps({"question": f"{name} {i}?", "answer": f"#### {i}"}) for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    settings = ("data=jsonl", "data.path=train.jsonl", "max_steps=1", "batch_size=2", "preflight=off")
    assert "evaluations" not in printed(*settings, cwd=tmp_path)
    tested = printed(*settings, "data.test_path=test.jsonl", cwd=tmp_path)
    assert tested["evaluations"] == "2 x 5 rollouts x 64 tokens = 640"


def test_a_run_samples_what_the_plan_says(tmp_path: Path) -> None:
    """At 2 tokens, and at 4 before step 1, every completion is cut: the ceiling is reached exactly."""
    settings = (
        *SMALL,
        "eval_every=2",
        "eval_problems=4",
        "eval_completions=2",
        "data.test_size=3",
        "save_every=0",
    )
    done = rl_basic(*settings, "logger=none", "run_dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = token_ceiling(composed(*settings), steps=3, problems=3, test_problems=[3])

    def rows(name: str) -> list[dict]:
        return [json.loads(line) for line in (tmp_path / "run" / name).read_text().splitlines()]

    trained = sum(row["tokens/mean"] * 6 for row in rows("metrics.jsonl"))
    tested = [row["tokens"][0] * row["problems"] * row["completions"] for row in rows("evaluations.jsonl")]
    check = json.loads((tmp_path / "run/preflight.json").read_text())
    checked = check["budgets"][-1]["tokens"][0] * check["problems"] * check["completions"]
    assert len(tested) == expected.evaluations.batches == 3  # before steps 1 and 3, and at the end
    assert trained == expected.training.tokens == 36
    assert sum(tested) == expected.evaluations.tokens == 36
    assert checked == expected.preflight.tokens == 24
    assert trained + sum(tested) + checked <= expected.tokens == 96
