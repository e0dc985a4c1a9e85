"""`length=NAME` as a user types it: every word composes, mistakes are one line, a run logs what its rule changed."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from rl.storage.jsonl import read_jsonl
from tests.helpers.blueprints import composed, options
from tests.helpers.forked import start

WORDS = [word for word in options("length") if word != "none"]
GROUPED = ["efficient", "kimi", "linear"]


def test_the_words():
    assert WORDS == ["cosine", "efficient", "kimi", "l1_exact", "l1_max", "laser", "linear", "overlong"]
    assert composed().rewards.length is None
    for word in WORDS:
        rule = composed(f"length={word}").rewards.length
        assert rule is not None and rule.name == word and rule.needs_groups == (word in GROUPED)


@pytest.mark.parametrize("word", ["none", *WORDS])
@pytest.mark.parametrize("rewards", ["boxed_penalty", "think_answer"])
def test_every_word_composes_with_any_reward_set(word, rewards, tmp_path):
    process = start("rl_basic", f"length={word}", f"rewards={rewards}", "plan=true", cwd=tmp_path)
    assert process.wait() == 0, process.err
    assert f"length={word}, command line" in process.out


@pytest.mark.parametrize(
    ("language", "words"), [("en", "in at most 20 tokens, reasoning"), ("ja", "20トークン以内")]
)
def test_l1_states_the_target_in_the_language_of_the_problem(language, words, tmp_path):
    arguments = ("length=l1_max", "length.target=[20,20]", f"data.language={language}", "plan=true")
    process = start("rl_basic", *arguments, cwd=tmp_path)
    assert process.wait() == 0, process.err
    assert words in "".join(process.out.split("│")).replace("\n", "").replace("  ", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["length=kimii"], ["length=kimii: no such option; did you mean length=kimi?"]),
        (["length=l1max"], ["did you mean length=l1_max?"]),
        (["length=laser", "length.traget=9"], ["did you mean length.target?"]),
        (["length=laser", "length.target=0"], ["length.target=0", "length.target=32"]),
        (["length=l1_max", "length.target=[9,8]"], ["length.target=[9,8]", "length.target=[16,64]"]),
        (["length=l1_max", "length.target=9"], ["length.target=9: expected a list of 2 values"]),
        (["length=efficient", "length.alpha=2"], ["length.alpha=2.0: expected a number from 0 to 1"]),
        (["length=overlong", "length.cache_tokens=65"], ["length.cache_tokens=65: expected 1 to max_tokens (64)"]),
        (["rewards.length=kimi"], ["rewards.length=kimi", "type length=kimi"]),
        *[(["loss=flashreinforce", f"length={word}"], [f"group_size=1: length={word}", "group_size=8"]) for word in GROUPED],
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(arguments, words, tmp_path):
    process = start("rl_basic", *arguments, cwd=tmp_path)
    assert process.wait() == 2
    (line,) = process.err.splitlines()
    assert line.startswith("error: ") and all(word in line for word in words), line


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """`r`: a run of the embedded model in 128 tokens, which most of its answers do not need, with length=kimi."""
    folder = tmp_path_factory.mktemp("length")
    process = start(
        "rl_basic", "length=kimi", "max_tokens=128", "max_steps=2", "batch_size=2", "group_size=4", "data.test_size=6",
        "eval_every=0", "samples_per_step=8", "preflight=warn", "logger=none", "run_dir=r", cwd=folder,
    )  # fmt: skip
    assert process.wait() == 0, process.err
    return folder


def test_a_run_logs_what_its_rule_changed(folder):
    rows, samples = read_jsonl(folder / "r/metrics.jsonl"), read_jsonl(folder / "r/samples.jsonl")
    first = [row for row in samples if row["step"] == 1]
    assert len(first) == 8 and len({row["tokens"] for row in first}) > 1
    changes = [row["rewards"]["length"] for row in first]
    assert max(changes) == 0.5 and min(changes) == -0.5
    assert rows[0]["reward_length"] == pytest.approx(fmean(changes))
    for row in first:
        parts = row["rewards"]
        expected = 0.9 * parts["correct"] + 0.1 * parts["format"] + parts["length"]
        assert row["reward"] == pytest.approx(expected)
    assert "| rewards | boxed, length=kimi |" in (folder / "r/final/README.md").read_text()


def test_an_evaluation_of_a_run_keeps_its_rule(folder):
    """The reward includes it where groups are whole; accuracy never does."""
    found = {}
    for name, more in {"own": [], "none": ["length=none"], "laser": ["length=laser"], "alone": ["completions=1"]}.items():  # fmt: skip
        process = start(
            "evaluate",
            "run=r",
            "problems=4",
            "completions=3",
            "budgets=[128]",
            *more,
            f"out={name}",
            cwd=folder,
        )
        assert process.wait() == 0, process.err
        rows = json.loads((folder / name / "evaluation.json").read_text())["results"]
        found[name] = next(row for row in rows if (row["policy"], row["part"]) == ("base", "all"))
    own, none, laser, alone = (found[name] for name in ("own", "none", "laser", "alone"))
    assert own["accuracy"] == none["accuracy"] == laser["accuracy"] and own["accuracy"][0] > 0
    assert own["reward"] != none["reward"] and laser["reward"][0] >= none["reward"][0]
    share, correct, format_ = alone["reward"][0], alone["accuracy"][0], alone["format"][0]
    assert share == pytest.approx(0.9 * correct + 0.1 * format_)


@pytest.mark.parametrize("word", ["cosine", "l1_max"])
def test_an_evaluation_without_a_run_takes_the_words_too(word, tmp_path):
    process = start(
        "evaluate", f"length={word}", "problems=2", "completions=2", "budgets=[16]", "out=e", cwd=tmp_path
    )
    assert process.wait() == 0, process.err
    rows = json.loads((tmp_path / "e/evaluation.json").read_text())["results"]
    assert rows[0]["accuracy"][0] == 0 and rows[0]["reward"][0] == {"cosine": -1, "l1_max": 0}[word]


def test_a_preflight_reads_rewards_with_the_rule(tmp_path):
    process = start(
        "preflight", "length=linear", "problems=4", "completions=4", "budgets=[16,128]", "out=p", cwd=tmp_path
    )
    assert process.wait() == 0, process.err
    rows = {row["budget"]: row for row in json.loads((tmp_path / "p/preflight.json").read_text())["budgets"]}
    assert rows[16]["reward"][0] == 0  # nothing is right, so nothing costs
    earned = 0.9 * rows[128]["accuracy"][0] + 0.1 * rows[128]["format"][0]
    assert earned - 0.25 <= rows[128]["reward"][0] < earned


def test_the_reward_overlong_still_composes():
    rewards = composed("+reward@rewards.overlong=overlong").rewards
    assert set(rewards.terms) == {"correct", "format", "overlong"} and rewards.length is None


def test_a_step_whose_reward_is_not_finite_logs_no_length_reward(tmp_path):
    (tmp_path / "lost.py").write_text("def nan(rollouts):\n    return [float('nan')] * len(rollouts)\n")
    process = start(
        "rl_basic", "length=kimi", "+rewards.lost._target_=lost.nan", "max_tokens=8", "max_steps=1", "batch_size=1",
        "group_size=2", "eval_every=0", "preflight=off", "logger=none", "run_dir=r", cwd=tmp_path,
    )  # fmt: skip
    assert process.wait() == 0, process.err
    (row,) = read_jsonl(tmp_path / "r/metrics.jsonl")
    assert row["nonfinite"] == 1 and row["reward_length"] is None and row["reward_correct"] is None


def trained(folder: Path, word: str) -> dict[str, float]:
    """Means of the last ten of 30 steps with a budget of 128 tokens, inside which the embedded model answers already."""
    process = start(
        "rl_basic", f"length={word}", "max_tokens=128", "max_steps=30", "eval_every=0", "save_every=0", "preflight=off",
        "logger=none", f"run_dir={word}", cwd=folder,
    )  # fmt: skip
    assert process.wait(1200) == 0, process.err
    rows = read_jsonl(folder / word / "metrics.jsonl")[-10:]
    return {name: fmean(row[name] for row in rows) for name in ("reward_correct", "tokens/mean")}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_training_with_a_rule_shortens_answers(tmp_path):
    """Measured (docs/budget.md): about 97 tokens without a rule, 35 to 36 with one; kimi costs the most right answers."""
    without = trained(tmp_path, "none")
    assert without["tokens/mean"] >= 85 and without["reward_correct"] >= 0.9
    for word, correct in {"kimi": 0.75, "efficient": 0.85, "cosine": 0.88}.items():
        found = trained(tmp_path, word)
        assert found["tokens/mean"] <= 0.6 * without["tokens/mean"], word
        assert found["reward_correct"] >= correct, word
