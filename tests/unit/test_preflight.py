"""What a preflight reads off completions: by hand, by brute force, and against sampling at each budget separately."""

from __future__ import annotations

import itertools
import json
import logging
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipes.preflight import budgets_around
from rewards.grading import Verdict
from rl.blueprint import Blueprint
from rl.collecting import roll_out
from rl.data.problems import load
from rl.engines.base import SamplingParams
from rl.evaluation.measures import measure
from rl.evaluation.statistics import Estimate
from rl.models.loading import open_renderer
from rl.preflight.check import Preflight, facts, prompts_of, read_budgets, remedies, sample_prompts
from rl.preflight.learning_signal import Baseline, baseline_of, group_signal, length_quantile
from rl.rollouts import Completion, Parsed, Problem, Rollout, StopReason
from rl.task import Task
from rl.watchdog import Watchdog
from tests.helpers.blueprints import composed
from tests.helpers.rollouts import one_turn

PROBLEM = Problem("p", "q", "1", "en", "test")


def rollout(group: int, reward: float) -> Rollout:
    """A rollout of which only the reward counts."""
    completion = Completion([1], [-1.0], "stop")
    verdict = Verdict(reward > 0, True, "1", "1", "correct", 0.0)
    return one_turn(
        PROBLEM, group, [1], completion, Parsed("", "", "", "stop"), verdict=verdict, reward=reward
    )


def test_group_signal_by_hand() -> None:
    # Of the 6 pairs among 1, 0, 0, 0 three are two zeros; all four together differ.
    assert group_signal([1, 0, 0, 0], 2) == 0.5
    assert group_signal([1, 0, 0, 0], 4) == 1
    assert group_signal([0.1] * 8, 8) == 0


@given(st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=1, max_size=8), st.data())
def test_group_signal_is_the_share_of_all_draws(rewards: list[float], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(rewards)))
    draws = list(itertools.combinations(rewards, size))
    assert group_signal(rewards, size) == pytest.approx(sum(len(set(d)) > 1 for d in draws) / len(draws))


def test_signal_of_groups_and_of_batches() -> None:
    rollouts = [rollout(0, r) for r in (1, 0, 0, 0)] + [rollout(1, r) for r in (0, 0, 0, 0)]
    groups = Baseline(grouped=True, size=2).signal(rollouts)
    assert groups.value == 0.25 and groups.low == 0 and groups.high == 0.5
    # 7 of 8 rewards are 0: a batch of 3 has no signal with chance (7/8)^3; resampled problems have 3/4 to all of them.
    batches = Baseline(grouped=False, size=3).signal(rollouts)
    assert batches == pytest.approx((1 - (7 / 8) ** 3, 0, 1 - (3 / 4) ** 3))


def test_a_group_that_lost_members_says_nothing_about_groups() -> None:
    rollouts = [rollout(0, r) for r in (1, 0)] + [rollout(1, 0), rollout(1, 0), rollout(1, 0)]
    assert Baseline(grouped=True, size=3).signal(rollouts).value == 0


@pytest.mark.parametrize(
    ("overrides", "completions", "expected"),
    [
        (["group_size=8"], 8, "groups of 8"),
        (["group_size=16"], 8, "groups of 8"),  # fewer of them have a signal than of the run's groups of 16
        (["group_size=4"], 8, "groups of 4"),
        (["loss=flashreinforce"], 1, "batches of 128"),
    ],
)
def test_the_baseline_is_what_the_loss_compares(
    overrides: list[str], completions: int, expected: str
) -> None:
    assert str(baseline_of(composed(*overrides), completions)) == expected


def ended(group: int, tokens: int, reason: StopReason = "stop") -> Rollout:
    """A rollout of which only the length and the end count."""
    completion = Completion([1] * tokens, [-1.0] * tokens, reason)
    return one_turn(PROBLEM, group, [1], completion, Parsed("", "", "", reason))


def test_quantiles_by_hand() -> None:
    rollouts = [ended(0, tokens) for tokens in (40, 10, 30, 20)]
    assert [length_quantile(rollouts, share).value for share in (0.25, 0.5, 0.51, 0.99)] == [10, 20, 30, 40]


def test_a_completion_that_was_cut_is_longer_than_any_budget() -> None:
    rollouts = [ended(0, 50), ended(0, 50), ended(1, 10), ended(1, 50, "length")]
    median = length_quantile(rollouts, 0.5)
    assert (median.value, median.low, median.high) == (50, 10, 50)
    assert length_quantile(rollouts, 0.9) == (math.inf, 50, math.inf)


def test_budgets_around() -> None:
    assert budgets_around(64, 256) == [16, 32, 64, 128, 256]
    assert budgets_around(256, 700) == [64, 128, 256, 512, 700]
    assert budgets_around(1, 4) == [1, 2, 4]


def reading(truncated: float, accuracy: float, signal: float) -> dict[str, Estimate]:
    values = {"truncated": truncated, "accuracy": accuracy, "signal": signal}
    return {name: Estimate(value, value, value) for name, value in values.items()}


class Thinks:
    name = "qwen3"


def advice(blueprint: Blueprint, readings: dict[int, dict[str, Estimate]], budget: int) -> Preflight:
    groups = Baseline(grouped=True, size=8)
    found = remedies(blueprint, Thinks(), readings, budget, groups)  # type: ignore[arg-type]
    return Preflight(budget, 16, 8, 1.0, groups, readings, {}, found, {})


def test_a_budget_that_cuts_most_is_warned_of_with_what_to_type() -> None:
    readings = {64: reading(1.0, 0, 0), 128: reading(0.7, 0.2, 0.5), 256: reading(0.2, 0.8, 0.4)}
    found = advice(composed("model=qwen3-8b", "max_tokens=64"), readings, 64)
    assert found.smallest == 128
    assert found.remedies == [
        "max_tokens=128 (70 % cut, 20 % correct, a signal in 50 % of the groups of 8)",
        "max_tokens=256 (20 % cut, 80 % correct, a signal in 40 % of the groups of 8)",
        "budget=tighten",
        "renderer=qwen3_disable_thinking",
        "model=qwen3-8b-base",
    ]
    assert found.warning is not None and "no step would change the weights" in found.warning


def test_nothing_to_say_and_nothing_that_helps() -> None:
    readings = {64: reading(0.4, 0.5, 0.6), 128: reading(0.0, 1.0, 0.0)}
    assert advice(composed(), readings, 64).warning is None
    easy = advice(composed(), readings, 128)
    assert easy.warning is not None and "max_tokens=64" in easy.warning and "tighten" not in easy.warning
    hopeless = advice(composed(), {64: reading(1.0, 0, 0), 128: reading(0.9, 0, 0)}, 64)
    assert hopeless.smallest is None and hopeless.remedies[0] == "max_tokens above 128"
    rare = advice(composed(), {64: reading(0.8, 0.1, 0.05), 128: reading(0.1, 0.9, 0.02)}, 64)
    assert rare.warning is not None and "perhaps too little" in rare.warning
    assert rare.remedies[0].startswith("max_tokens=128") and "above" not in rare.warning
    assert (
        facts(readings[64], Baseline(False, 128))
        == "40 % cut, 50 % correct, a signal in 60 % of the batches of 128"
    )


@pytest.mark.parametrize(
    "readings",
    [
        {64: reading(0.9, 0.1, 0.0), 128: reading(0.3, 0.0, 0.0)},  # nothing is right, cut or not
        {64: reading(0.7, 0.3, 0.5), 128: reading(0.1, 1.0, 0.0)},  # a wider budget solves them all
        {64: reading(0.2, 1.0, 0.0), 128: reading(0.0, 1.0, 0.0)},  # so does the run's own
    ],
)
def test_a_budget_without_a_signal_is_never_advised(readings: dict[int, dict[str, Estimate]]) -> None:
    found = advice(composed(), readings, 64)
    assert found.remedies[:2] == ["easier or harder problems", "a larger group_size"]
    assert found.warning is not None and "in 0 % of" not in found.warning.partition("; try ")[2]
    assert not any("max_tokens" in remedy or "tighten" in remedy for remedy in found.remedies)


def test_a_batch_without_a_signal_wants_more_problems() -> None:
    batches = Baseline(grouped=False, size=128)
    flat = {64: reading(0.0, 1.0, 0.0)}
    found = remedies(composed("loss=flashreinforce"), Thinks(), flat, 64, batches)  # type: ignore[arg-type]
    assert found == ["easier or harder problems", "a larger batch_size"]


BUDGETS = (16, 32, 64, 96, 128)


@pytest.fixture(scope="module")
def embedded():
    """The embedded model's preflight, and completions really sampled at each budget, of the same problems."""
    torch.set_num_threads(1)
    blueprint = composed()
    problems = load(blueprint.data, blueprint.seed)
    tokenizer, renderer = open_renderer(blueprint.model, blueprint.renderer)
    engine = blueprint.engine.open(blueprint, tokenizer)
    task = Task(problems.messages, renderer, blueprint.environment)
    prompted = prompts_of(blueprint, problems, task, 32)
    found = read_budgets(
        blueprint, renderer, sample_prompts(blueprint, task, engine.sampler, prompted, 8, 128), BUDGETS
    )
    separate = {}
    for seed, budget in enumerate(BUDGETS):
        params = SamplingParams(budget, 1.0, renderer.stop_ids, seed)
        rollouts = roll_out(engine.sampler, task, prompted.problems, 8, params)
        blueprint.rewards.score(rollouts, watch=False)
        separate[budget] = measure(rollouts) | {"signal": found.baseline.signal(rollouts)}
    engine.close()
    blueprint.rewards.close()
    return found, separate


def test_one_sample_predicts_every_budget(embedded) -> None:
    found, separate = embedded
    for budget, name in itertools.product(BUDGETS, ("truncated", "format", "accuracy", "reward", "signal")):
        ours, theirs = found.readings[budget][name], separate[budget][name]
        # Both are samples: 2.9 standard errors of their difference, so that none of 25 is outside by chance.
        allowed = 1.5 * math.hypot((ours.high - ours.low) / 2, (theirs.high - theirs.low) / 2)
        assert abs(ours.value - theirs.value) <= allowed, (budget, name, ours, theirs)


def test_it_finds_the_budget_under_which_more_than_half_is_cut(embedded) -> None:
    found, separate = embedded
    for reading_of in (found.readings, separate):
        assert [b for b in BUDGETS if reading_of[b]["truncated"].value > 0.5] == [16, 32, 64, 96]
    assert (
        found.smallest in (32, 64)
        and found.warning is not None
        and "max_tokens=128 (0 % cut" in found.warning
    )


def test_truncation_that_stays_is_said_every_twenty_steps(tmp_path: Path, caplog) -> None:
    calm = {
        "nonfinite": 0.0,
        "grad_norm": 1.0,
        "ratio/min": 1.0,
        "ratio/max": 1.0,
        "reward_total": 0.02,
        "budget": 64,
    }
    rows = [{"step": step, **calm, "frac_truncated": 0.95} for step in range(1, 16)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    watchdog = Watchdog(tmp_path, done=15, max_nonfinite_steps=3)
    said = []
    with caplog.at_level(logging.WARNING, "tanka"):
        for step in range(16, 70):
            caplog.clear()
            watchdog.check(step, calm | {"frac_truncated": 0.9 if step == 45 else 0.96}, [], [], None)  # type: ignore[arg-type]
            said += [step] * ("96 % at 64 tokens, reward_total 0.020" in caplog.text)
    # 15 such steps before the resume and 5 after it; 40 of them; one at 0.9 begins the count anew.
    assert said == [20, 40, 65]
