"""The embedded model trained with each rule, loss and correction of docs/budget.md and docs/losses.md."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from rl.storage.jsonl import read_jsonl
from tests.helpers.forked import start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def trained(folder: Path, *arguments: str, steps: int = 30) -> list[dict]:
    """The metrics of a run with the default budget of 64 tokens, seed 0."""
    process = start(
        "rl_basic", f"max_steps={steps}", "eval_every=0", "save_every=0", "preflight=off", "logger=none", "run_dir=r",
        *arguments, cwd=folder,
    )  # fmt: skip
    assert process.wait(3000) == 0, process.err
    return read_jsonl(folder / "r/metrics.jsonl")


def last(rows: list[dict], name: str) -> float:
    return fmean(row[name] for row in rows[-5:])


@pytest.mark.parametrize(
    "arguments",
    [
        ("truncated=mask",),
        ("truncated=scale",),
        ("refill=2",),
        ("budget=thinkprune",),
        ("curriculum=pass_rate", "data.train_size=160"),
        ("thinking_tokens=48",),
        ("loss=gdpo",),
        ("loss.correction=icepop", "loss.updates_per_batch=2"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_rule_learns_to_answer_inside_the_budget(arguments, tmp_path):
    """Rewards start near 0.1 at 64 tokens. `mask` learns from finished answers only, and still fits the budget in the end."""
    rows = trained(tmp_path, *arguments)
    assert last(rows, "reward_total") >= 0.8
    assert last(rows, "frac_truncated") <= 0.2
    if "refill=2" in arguments:
        # Redraws keep nearly every group mixed, also when most problems are solved.
        assert sum(row["sampled_discarded"] for row in rows[-10:]) > 0
        assert last(rows, "by_group/frac_mixed") >= 0.3
    if "thinking_tokens=48" in arguments:
        # Nearly every reasoning is closed by force at first; the model learns to close it itself.
        assert rows[0]["thinking/forced"] >= 0.7 and last(rows, "thinking/forced") <= 0.3
    if "budget=thinkprune" in arguments:
        assert [rows[i]["budget"] for i in (0, 9, 10, 19, 20, 29)] == [128, 128, 96, 96, 64, 64]
    if "curriculum=pass_rate" in arguments:
        # Every epoch after the first starts with problems that were often solved, but not always.
        rates = {row["step"]: row["rates"] for row in read_jsonl(tmp_path / "r/pass_rates.jsonl")}
        first, final = rates[11], rates[20]
        assert fmean(rates_before(rates, first, 10)) > fmean(rates_before(rates, final, 10))


def rates_before(rates: dict[int, dict[str, float]], problems: dict[str, float], step: int) -> list[float]:
    """What was measured for these problems up to `step`; 0 for those never measured and those always solved."""
    known: dict[str, float] = {}
    for number in range(1, step + 1):
        known |= rates[number]
    return [known.get(name, 0.0) % 1 for name in problems]


def test_gdpo_with_a_length_rule_is_right_and_short(tmp_path):
    """At 128 tokens, which cut nothing, answers take 97 tokens before training."""
    rows = trained(tmp_path, "loss=gdpo", "length=kimi", "loss.length_weight=0.3", "max_tokens=128")
    assert last(rows, "reward_correct") >= 0.85 and last(rows, "tokens/mean") <= 60


def test_l1_moves_towards_its_targets(tmp_path):
    """Evaluations at stated targets: deviations from 40 tokens shrink, with an alpha that suits short answers."""
    arguments = (
        "length=l1_exact",
        "length.target=[40,40]",
        "length.eval_targets=[40]",
        "length.alpha=0.01",
        "max_tokens=128",
    )
    process = start(
        "rl_basic", *arguments, "max_steps=30", "eval_every=30", "eval_problems=32", "save_every=0", "preflight=off", "logger=none",
        "run_dir=r", cwd=tmp_path,
    )  # fmt: skip
    assert process.wait(3000) == 0, process.err
    before, after = read_jsonl(tmp_path / "r/evaluations.jsonl")
    (start_row,), (end_row,) = before["targets"], after["targets"]
    assert (
        start_row["deviation"][0] >= 55 and end_row["deviation"][0] <= 45
    )  # 66 and 36 when this was written
    assert end_row["accuracy"][0] >= 0.7
