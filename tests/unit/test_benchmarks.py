"""The benchmarks measure what they say: turns, ratios, tables, and the same learning on both sides."""

from __future__ import annotations

import json

import pytest

from benchmarks import harness, learner, table, training
from benchmarks import progress as progress_benchmark
from benchmarks.harness import Contender, Ratio, compare, spread
from rl import progress


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    return tmp_path


def scripted(name: str, seconds: list[float], turns: list[str]) -> Contender:
    """A contender whose rounds take the given seconds; `turns` notes who ran."""
    remaining = iter(seconds)

    def measure() -> dict[str, float]:
        turns.append(name)
        return {"seconds": next(remaining)}

    return Contender(name, {"threads": 2}, measure)


def test_contenders_take_turns_and_ratios_are_taken_within_a_round(results):
    """By hand: 1/4, 3/6 and 2/2; the medians' own quotient would be 2/4."""
    turns: list[str] = []
    contenders = [scripted("ours", [1, 3, 2], turns), scripted("peer", [4, 6, 2], turns)]
    compare("race", contenders, [Ratio("seconds", "ours", "peer", 0.5)], rounds=3)
    assert turns == ["ours", "peer", "peer", "ours", "ours", "peer"]
    (written,) = results.glob("*/race.json")
    result = json.loads(written.read_text())
    (ratio,) = result["ratios"]
    assert (ratio["runs"], ratio["median"]) == ([0.25, 0.5, 1.0], 0.5)
    assert result["contenders"]["peer"]["figures"]["seconds"]["runs"] == [4, 6, 2]
    assert result["machine"]["cores"] >= 1


def test_spread_by_hand():
    assert spread([5, 1, 2, 4, 3]) == {"median": 3, "q1": 2, "q3": 4, "runs": [5, 1, 2, 4, 3]}
    assert spread([7.0]) == {"median": 7.0, "q1": 7.0, "q3": 7.0, "runs": [7.0]}


@pytest.mark.parametrize(
    "figure, target, said",
    [
        ("seconds", 0.5, "≤ 0.5, kept"),
        ("seconds", 0.4, "≤ 0.4, not kept"),
        ("tokens_per_second", 0.5, "≥ 0.5, kept"),
        ("tokens_per_second", 1.7, "≥ 1.7, not kept"),
        ("seconds", None, ""),
    ],
)
def test_the_table_says_whether_a_promise_is_kept(results, figure, target, said):
    contenders = [
        Contender("ours", {}, lambda: {figure: 1500.0}),
        Contender("peer", {"bf16": False}, lambda: {figure: 3000.0}),
    ]
    compare("race", contenders, [Ratio(figure, "ours", "peer", target)], rounds=2)
    name = figure.replace("_", " ")
    numbers = "ours 1,500 (1,500-1,500) | peer 3,000 (3,000-3,000) | 0.5 (0.5-0.5)"
    assert f"| race | {name} | {numbers} | {said} |" in table.tables()
    assert "    * peer: bf16=False" in table.tables()


def test_the_page_holds_the_tables_of_the_results():
    """Whoever measures again runs `python -m benchmarks.table` too."""
    page = table.PAGE.read_text(encoding="utf-8")
    assert page.split(table.BEGIN)[1].split(table.END)[0].strip() == table.tables().strip()


def test_time_to_reward_by_hand():
    """Means of three: 0.7, 0.87, 0.97; so the fifth step ends it, after 1 + 2 + 3 + 4 + 5 seconds."""
    rewards = [0.4, 0.8, 0.9, 0.9, 1.1, 1.0]
    times = [{"seconds": float(i), "cpu_seconds": 2.0 * i} for i in range(1, 7)]
    assert training.figures(rewards, times) == {
        "seconds_to_reward": 15.0,
        "steps_to_reward": 5,
        "step_seconds": 5.0,
        "step_cpu_seconds": 10.0,
    }
    with pytest.raises(SystemExit, match="was not reached in 3 steps"):
        training.figures([0.1] * 3, times[:3])


def test_both_sides_of_the_learner_benchmark_have_the_same_gradient(monkeypatch):
    """Stock TRL's own loop and ours, on rows of two groups, at a shape that is small enough for a test."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    small = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 1024}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    monkeypatch.setattr(learner, "SHAPE", {**learner.SHAPE, **small, **heads})
    monkeypatch.setattr(learner, "PROMPT_TOKENS", 12)
    monkeypatch.setattr(learner, "COMPLETION_TOKENS", 20)
    gradients = []
    for update in (
        lambda model: learner.ours(model, "float32"),
        lambda model: learner.trl(model, learner.CONTENDERS["trl_accumulating"]),
    ):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **learner.SHAPE))
        assert update(model)["seconds"] > 0
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert gradients[0].abs().max() > 1e-2
    assert torch.allclose(*gradients, atol=1e-5)


def test_the_main_job_is_timed_step_by_step():
    small = ("max_steps=2", "batch_size=2", "group_size=2", "max_tokens=8", "preflight=off")
    rewards, times = training.ours(training.main_job(*training.OURS, *small))
    assert len(rewards) == len(times) == 2 and all(time["seconds"] > 0 for time in times)


def test_progress_can_be_turned_off_for_its_benchmark():
    with progress_benchmark.uncounted(), progress.task("sampling", 3, "rollouts") as task:
        task.done += 1
        assert progress.state() is None
