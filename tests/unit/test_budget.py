"""The budget's schedule and the problems' order: hand-derived numbers, and runs as a user starts them."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from rl.budget import Constant, Tighten, budget_after
from rl.data.curriculum import FIRST_SHARE, EasiestFirst
from rl.errors import UserError
from rl.rollouts import Problem
from tests.helpers.forked import timeless
from tests.helpers.recipes import rl_basic

SMALL = ("batch_size=8", "group_size=2", "logger=none", "eval_every=0", "preflight=off")


def test_the_budget_tightens_only_after_a_step_that_cut_few() -> None:
    schedule = Tighten(start=2.0, max_truncated=0.2, factor=0.9)
    budget = budget_after(schedule, 64, [], 10)
    course = [budget.tokens]
    for truncated in (0.5, 0.2, 0.1, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0):
        budget.observe({"frac_truncated": truncated})
        course.append(budget.tokens)
    # 128 stays; 115.2; 103.5; stays; 92.7; 82.8; 73.8; 65.7; then 58.5 is less than max_tokens
    assert course == [128, 128, 115, 103, 103, 92, 82, 73, 65, 64, 64]


def test_a_constant_budget_is_max_tokens() -> None:
    budget = budget_after(Constant(), 64, [], 10)
    budget.observe({"frac_truncated": 0.0})
    assert budget.tokens == 64


@pytest.mark.parametrize(
    ("override", "expected"),
    [("budget.start=0.5", "1 or more"), ("budget.factor=1", "(0, 1)"), ("budget.max_truncated=2", "[0, 1]")],
)
def test_a_schedule_that_cannot_tighten_is_one_line(override: str, expected: str, tmp_path: Path) -> None:
    result = rl_basic("budget=tighten", override, cwd=tmp_path)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert override in result.stderr.replace(".0:", ":") and expected in result.stderr


@pytest.mark.slow
def test_a_tightening_run_resumes_with_its_budget(tmp_path: Path) -> None:
    """Its rows equal those of a run that was never interrupted; Dr.GRPO's first loss is that of the wide budget."""
    settings = (*SMALL, "budget=tighten", "budget.max_truncated=1", "loss=dr_grpo", "save_every=2")
    runs = {
        "whole": (*settings, "max_steps=4"),
        "parts": (*settings, "max_steps=2"),
        "wide": (*SMALL, "max_tokens=128", "loss=dr_grpo", "max_steps=1"),
    }
    for name, overrides in runs.items():
        result = rl_basic(*overrides, f"run_dir={name}", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert rl_basic(*settings, "max_steps=4", "run_dir=parts", cwd=tmp_path).returncode == 0
    whole = timeless(tmp_path / "whole")
    assert [row["budget"] for row in whole] == [128, 115, 103, 92]
    assert max(row["tokens/max"] for row in whole[1:]) <= 115
    assert timeless(tmp_path / "parts") == whole
    (wide,) = timeless(tmp_path / "wide")
    assert {name: wide[name] for name in ("loss", "grad_norm")} == {
        name: whole[0][name] for name in ("loss", "grad_norm")
    }


def problems(steps: list[int]) -> list[Problem]:
    return [Problem(f"p{i}", "?", "1", "en", "test", steps=s) for i, s in enumerate(steps)]


def test_easy_problems_come_first_and_all_of_them_in_the_end() -> None:
    steps = [1 + i % 10 for i in range(1000)]
    curriculum = EasiestFirst(problems(steps), total_steps=50, name="test")
    batches = [curriculum.batch(step, 40, seed=0) for step in range(50)]
    assert [curriculum.batch(step, 40, seed=0) for step in (3, 49)] == [batches[3], batches[49]]
    assert all(len(set(batch)) == 40 for batch in batches)
    hardest = [max(steps[i] for i in batch) for batch in batches]
    assert hardest[0] == 1 and hardest[-1] == 10
    # Half-way the share is sqrt(0.01 + 0.99 * 24/49) = 0.7035: the problems of up to 8 steps, the eighth in part.
    assert math.isclose(curriculum.share(24), 0.7035, abs_tol=1e-4) and hardest[24] <= 8
    assert math.isclose(curriculum.share(0), FIRST_SHARE) and curriculum.share(49) == 1.0
    counts = Counter(steps[i] for batch in batches for i in batch)
    assert counts[1] > 2 * counts[10] > 0


def test_problems_of_unknown_difficulty_come_last() -> None:
    curriculum = EasiestFirst(problems([0, 3, 0, 1]), total_steps=10, name="test")
    assert list(curriculum.order) == [3, 1, 0, 2]
    with pytest.raises(
        UserError, match=r"curriculum=difficulty: test has no solution steps to sort by; type curriculum=none"
    ):
        EasiestFirst(problems([0, 0]), total_steps=10, name="test")


def test_a_run_with_a_curriculum_starts_with_short_problems(tmp_path: Path) -> None:
    result = rl_basic(
        *SMALL, "curriculum=difficulty", "max_steps=1", "max_tokens=8", "run_dir=run", "samples_per_step=16",
        "data=jsonl", "data.path=rows.jsonl", "data.gold=marker", cwd=written(tmp_path),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    samples = (tmp_path / "run" / "samples.jsonl").read_text()
    assert "short" in samples and "long" not in samples


def written(folder: Path) -> Path:
    """200 rows: every tenth solution has one step, the others three."""
    rows = [("short", "1+1=2") if i % 10 == 0 else ("long", "1+1=2\\n2+1=3\\n3+1=4") for i in range(200)]
    lines = [
        f'{{"question": "{kind} {i}: what is it?", "answer": "{solution}\\n#### 4"}}'
        for i, (kind, solution) in enumerate(rows)
    ]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return folder
