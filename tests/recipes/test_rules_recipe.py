"""`truncated=`, `refill=`, `budget=thinkprune`, `curriculum=pass_rate`, `eval_max_tokens=` and `loss.correction` as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl.storage.jsonl import read_jsonl
from tests.helpers.blueprints import composed, options
from tests.helpers.forked import set_up, start, timeless

COIN = """
import random

def coin(rollouts):
    return [float(random.random() < 0.3) for _ in rollouts]
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["truncated=zero"],
        ["truncated=mask"],
        ["truncated=scale", "truncated.factor=0.5"],
        ["refill=4"],
        ["budget=thinkprune"],
        ["budget=thinkprune", "budget.rounds=[256,128,64]"],
        ["curriculum=pass_rate"],
        ["eval_max_tokens=[32,64,128]"],
        ["length=l1_exact", "length.eval_targets=[32,64]"],
        ["loss=gdpo", "length=kimi"],
        *[[f"loss.correction={kind}"] for kind in ("none", "tis", "icepop", "sequence_mask")],
    ],
)
def test_every_word_composes(arguments, tmp_path):
    process = start("rl_basic", *arguments, "plan=true", cwd=tmp_path)
    assert process.wait() == 0, process.err
    assert "command line" in process.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["truncated=maks"], ["truncated=maks: no such option; did you mean truncated=mask?", "scale", "zero"]),
        (["truncated=scale", "truncated.factor=2"], ["truncated.factor=2.0: expected a number from 0"]),
        (["rewards.truncated=mask"], ["rewards.truncated=mask", "type truncated=mask"]),
        (["refil=4"], ["did you mean refill?"]),
        (["refill=-1"], ["refill=-1: expected 0 (off)", "refill=4"]),
        (["refill=2", "loss=flashreinforce"], ["refill=2: loss=flashreinforce", "loss=grpo"]),
        (["budget=thinkprun"], ["did you mean budget=thinkprune?"]),
        (["budget=thinkprune", "budget.rounds=[4000,3000,2000]"], ["the last round is 2000 tokens, but max_tokens=64", "type max_tokens=2000"]),
        (["budget=thinkprune", "budget.rounds=[64,128]"], ["budget.rounds=[64, 128]: expected falling", "[4000,3000,2000]"]),
        (["budget=thinkprune", "budget.rounds=[]"], ["budget.rounds=[]: expected falling"]),
        (["curriculum=passrate"], ["did you mean curriculum=pass_rate?"]),
        (["pass_rates=p.jsonl"], ["pass_rates=p.jsonl", "curriculum=pass_rate"]),
        (["curriculum=pass_rate", "pass_rates=p.jsonl"], ["pass_rates=p.jsonl: no such file", "recipes.preflight"]),
        (["curriculum=pass_rate", "~rewards.correct"], ["curriculum=pass_rate", "add the reward correct"]),
        (["curriculum=pass_rate", "max_steps=9"], ["all 9 steps are in the first epoch", "pass_rates=FILE", "epochs=2"]),
        (["eval_max_tokens=[]"], ["eval_max_tokens=[]", "[64,128,256]"]),
        (["eval_max_tokens=64"], ["eval_max_tokens=64: expected a list in brackets"]),
        (["length=l1_max", "length.eval_targets=[0]"], ["length.eval_targets=[0]", "length.eval_targets=[32,64]"]),
        (["loss=gpdo"], ["did you mean loss=gdpo?"]),
        (["loss.correction=icpop"], ["did you mean loss.correction=icepop?"]),
        (["loss=flashreinforce", "loss.correction=tis"], ["loss.correction=tis: flashreinforce already weighs"]),
        (["loss=gdpo", "truncated=scale"], ["truncated=scale: loss=gdpo", "truncated=mask"]),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(arguments, words, tmp_path):
    process = start("rl_basic", *arguments, "preflight=off", "logger=none", cwd=tmp_path)
    assert process.wait() == 2, process.out
    (line,) = process.err.splitlines()
    assert line.startswith("error: ") and all(word in line for word in words), line


def test_the_words():
    assert options("truncated") == ["mask", "scale", "zero"]
    assert options("budget") == ["constant", "thinkprune", "tighten"]
    assert composed().rewards.truncated.name == "zero" and composed().refill == 0
    assert composed("truncated=scale").rewards.truncated.factor == 0
    assert composed("max_tokens=128", "eval_max_tokens=[256,64]").eval_budgets == [64, 128, 256]
    assert composed().eval_budgets == [64]


def test_a_plan_counts_redraws_targets_and_wide_evaluations(tmp_path):
    process = start(
        "rl_basic", "refill=3", "max_steps=2", "batch_size=4", "group_size=2", "eval_problems=5", "eval_every=1",
        "eval_max_tokens=[32,256]", "length=l1_max", "length.eval_targets=[16,32]", "preflight=off", "plan=true", cwd=tmp_path,
    )  # fmt: skip
    assert process.wait() == 0, process.err
    assert "6 redraws x 8 rollouts x 64 tokens = 3,072" in process.out
    assert "3 x 15 rollouts x 256 tokens = 11,520" in process.out
    assert f"{2 * 8 * 64 + 3072 + 11520:,} completion tokens" in process.out


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_random_model) -> Path:
    folder = tmp_path_factory.mktemp("rules")
    set_up(folder, *tiny_random_model())
    (folder / "coin.py").write_text(COIN)
    return folder


SMALL = (
    "model.path=model", "+rewards.coin._target_=coin.coin", "data.train_size=7", "data.test_size=2", "batch_size=2",
    "group_size=2", "max_tokens=8", "learning_rate=1e-2", "eval_every=0", "preflight=off", "logger=none", "save_every=2",
)  # fmt: skip
RULES = ("refill=3", "budget=thinkprune", "budget.rounds=[12,10,8]", "curriculum=pass_rate", "loss=gdpo", "loss.correction=tis")  # fmt: skip


def run(folder: Path, name: str, *more: str, sabotage: str = "log:0:0", code: int = 0) -> list[dict]:
    arguments = (*SMALL, *more, f"run_dir={name}")
    process = start("rl_basic", *arguments, cwd=folder, environment={"SABOTAGE": sabotage})
    assert process.wait() == code, process.err
    return timeless(folder / name)


def test_a_run_with_every_rule_resumes_exactly(folder):
    """Nine steps are three epochs; killed after step 5 and while step 8 samples, with checkpoints every two steps."""
    rules = (*RULES, "max_steps=9", "+rewards.chance._target_=saboteur.chance", "+rewards.chance.weight=0")
    whole = run(folder, "whole", *rules)
    for place in ("log:5", "sample:6"):
        run(folder, "parts", *rules, sabotage=f"{place}:9", code=-9)
    assert run(folder, "parts", *rules) == whole
    for name in ("pass_rates.jsonl", "samples.jsonl"):
        assert (folder / "parts" / name).read_text() == (folder / "whole" / name).read_text()
    assert [row["budget"] for row in whole] == [12] * 3 + [10] * 3 + [8] * 3
    assert sum(row["sampled_discarded"] for row in whole) > 0
    assert all("mismatch/max" in row and "entropy_exact" in row for row in whole)


def test_refill_replaces_groups_whose_rewards_are_equal(folder):
    """Without it a step with equal rewards moves nothing; with enough redraws every group teaches."""
    many = ("max_steps=5", "data.train_size=60", "samples_per_step=9")
    plain, filled = run(folder, "plain", *many), run(folder, "filled", *many, "refill=9")
    assert any(row["skipped"] for row in plain) and not any(row["skipped"] for row in filled)
    samples = read_jsonl(folder / "filled/samples.jsonl")
    for step in range(1, 6):
        groups: dict[str, set[float]] = {}
        for row in (each for each in samples if each["step"] == step):
            groups.setdefault(row["id"], set()).add(row["rewards"]["coin"])
        assert list(groups.values()) == [{0.0, 1.0}] * 2


def test_masked_steps_move_no_weights_when_everything_is_cut(folder):
    """At 1 token each completion is cut: `mask` leaves nothing to train on, `zero` trains on the coin."""
    cut = ("max_steps=3", "max_tokens=1", "loss=rloo", "group_size=4")
    assert not all(row["skipped"] for row in run(folder, "zero", *cut))
    masked = [row for row in run(folder, "mask", *cut, "truncated=mask") if row["frac_truncated"] == 1]
    assert masked and all(row["skipped"] and row["loss"] == 0 for row in masked)


def test_scaled_rewards_of_cut_completions(folder):
    """Every completion is cut, so the mean reward is the factor times that of the same run without the rule."""
    cut = ("max_steps=1", "max_tokens=1", "group_size=8")
    (zero,) = run(folder, "graded", *cut)
    (half,) = run(folder, "half", *cut, "truncated=scale", "truncated.factor=0.25")
    (none,) = run(folder, "none", *cut, "truncated=scale")
    assert zero["reward_total"] > 0
    assert half["reward_total"] == pytest.approx(zero["reward_total"] / 4) and none["reward_total"] == 0
    assert half["reward_coin"] == zero["reward_coin"]


def test_evaluations_read_every_budget_off_one_sampling(folder):
    rows = run(folder, "budgets", "max_steps=1", "eval_every=1", "eval_max_tokens=[2,4,16]", "eval_completions=2", "eval_temperature=1")  # fmt: skip
    alone = run(folder, "alone", "max_steps=1", "eval_every=1", "eval_completions=2", "eval_temperature=1")
    first, last = read_jsonl(folder / "budgets/evaluations.jsonl")
    assert [each["budget"] for each in first["budgets"]] == [2, 4, 8, 16] and first["budget"] == 8
    for each in first["budgets"]:
        value, low, high = each["tokens"]
        assert low <= value <= high and value <= each["budget"]
        assert rows[0][f"eval/budget/{each['budget']}/tokens"] == value
    # What the run's own budget gives does not depend on the wider one.
    (own,) = (each for each in first["budgets"] if each["budget"] == 8)
    assert own["tokens"] == first["tokens"] == read_jsonl(folder / "alone/evaluations.jsonl")[0]["tokens"]
    shared = {
        name for name in alone[0] if name.startswith("eval/") and "reward" not in name
    }  # the coin is no answer
    assert {name: rows[0][name] for name in shared} == {name: alone[0][name] for name in shared}
    assert "eval/budget/8/tokens" not in alone[0] and last["step"] == 2
    assert (folder / "budgets/report/budgets-light.png").is_file()
    assert not (folder / "alone/report/budgets-light.png").exists()


def test_evaluations_at_stated_targets(folder):
    """The random model never stops: it uses all 8 tokens, so the deviation from 3 is 5 and from 8 is 0."""
    rows = run(folder, "targets", "max_steps=1", "eval_every=1", "length=l1_exact", "length.eval_targets=[3,8]", "model.stop_tokens=[]")  # fmt: skip
    for target, deviation in {3: 5.0, 8: 0.0}.items():
        assert rows[0][f"eval/target/{target}/accuracy"] == 0
        if rows[0]["eval/tokens/mean"] == 8:
            assert rows[0][f"eval/target/{target}/deviation"] == deviation
    first = read_jsonl(folder / "targets/evaluations.jsonl")[0]
    assert [each["target"] for each in first["targets"]] == [3, 8]
    assert "deviation" in (folder / "targets/report.html").read_text()
    process = start("evaluate", "run=targets", "problems=4", "completions=2", "out=at_targets", cwd=folder)
    assert process.wait() == 0, process.err
    found = json.loads((folder / "at_targets/evaluation.json").read_text())["targets"]
    assert [(each["policy"], each["target"]) for each in found] == [
        (p, t) for t in (3, 8) for p in ("base", "trained")
    ]
    assert all(abs(each["deviation"][0] - abs(each["target"] - each["tokens"][0])) < 1e-9 for each in found)
    assert (
        "stated targets" in process.out
        and "| 3 | base |" in (folder / "at_targets/evaluation.md").read_text()
    )


def test_a_preflight_writes_the_pass_rates_that_a_run_starts_with(folder):
    settings = ("model.path=model", "data.train_size=7", "max_tokens=8", "batch_size=2", "group_size=2")
    process = start("preflight", *settings, "problems=7", "completions=2", "out=p", cwd=folder)
    assert process.wait() == 0, process.err
    rates = [json.loads(line) for line in (folder / "p/pass_rates.jsonl").read_text().splitlines()]
    assert len(rates) == 7 and {row["pass_rate"] for row in rates} == {0.0}
    easy = rates[4]["id"]
    lines = [{"id": row["id"], "pass_rate": 0.5 if row["id"] == easy else 0.0} for row in rates]
    (folder / "p/pass_rates.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    run(
        folder,
        "ordered",
        "curriculum=pass_rate",
        "pass_rates=p/pass_rates.jsonl",
        "max_steps=1",
        "samples_per_step=9",
    )
    assert easy in {row["id"] for row in read_jsonl(folder / "ordered/samples.jsonl")}
    (folder / "p/pass_rates.jsonl").write_text('{"id": "elsewhere", "pass_rate": 0.5}\n')
    process = start("rl_basic", *SMALL, "curriculum=pass_rate", "pass_rates=p/pass_rates.jsonl", "run_dir=other", cwd=folder)  # fmt: skip
    assert process.wait() == 2 and "none of its ids is a train problem" in process.err
    (folder / "p/pass_rates.jsonl").write_text('{"id": "x", "pass_rate": 2}\n')
    process = start("rl_basic", *SMALL, "curriculum=pass_rate", "pass_rates=p/pass_rates.jsonl", "run_dir=bad", cwd=folder)  # fmt: skip
    assert process.wait() == 2 and "line 1 is no pass rate" in process.err


def test_a_preflight_estimates_what_redraws_throw_away(folder):
    settings = (
        "model.path=model",
        "data.train_size=7",
        "max_tokens=8",
        "batch_size=2",
        "group_size=2",
        "refill=2",
    )
    process = start("preflight", *settings, "max_steps=3", "problems=4", "completions=2", "out=q", cwd=folder)
    assert process.wait() == 0, process.err
    estimate = json.loads((folder / "q/preflight.json").read_text())["estimate"]
    # No group has a signal, so each of the two redraws samples the whole batch again.
    assert estimate["discarded_tokens"] == 2 * estimate["completion_tokens"] > 0
    assert "thrown away a step" in process.out
