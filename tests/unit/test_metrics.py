"""Every logged number on batches made by hand."""

from __future__ import annotations

import math

import pytest

from rewards.grading import Verdict
from rl.engines.base import UpdateStats
from rl.metrics import group_metrics, percentile, rollout_metrics, update_metrics
from rl.rollouts import Completion, Parsed, Problem, Rollout
from rl.samples import spread
from tests.helpers.rollouts import one_turn


def rollout(
    group, tokens, cut, correct, form, reason, thinking="", text="", logprob=-0.5, entropies=None
) -> Rollout:
    return one_turn(
        problem=Problem(f"p{group}", "q", "18", "en", "test"),
        group=group,
        prompt_tokens=[1, 2],
        completion=Completion([7] * tokens, [logprob] * tokens, "length" if cut else "stop", entropies),
        parsed=Parsed(thinking, text, f"{thinking}{text}", "length" if cut else "stop"),
        verdict=Verdict(correct=correct, format=form, extracted="18", gold="18", reason=reason, seconds=0.0),
        rewards={"correct": float(correct), "format": float(form)},
        reward=0.9 * correct + 0.1 * form,
    )


# Group 0: right, and wrong in the right form. Group 1: two cut answers, one of which closed a right box before.
BATCH = [
    rollout(
        0,
        10,
        cut=False,
        correct=True,
        form=True,
        reason="correct",
        thinking="ああab",
        text="1234",
        logprob=-1.0,
    ),
    rollout(0, 20, cut=False, correct=False, form=True, reason="wrong", thinking="abcd", text=""),
    rollout(1, 64, cut=True, correct=False, form=False, reason="truncated", thinking="", text=""),
    rollout(1, 64, cut=True, correct=True, form=True, reason="correct", thinking="三つ", text="12"),
]


def test_rollout_metrics_by_hand():
    metrics = rollout_metrics(BATCH)
    expected = {
        "reward_total": (1.0 + 0.1 + 0.0 + 1.0) / 4,
        "reward_correct": 0.5,
        "reward_format": 0.75,
        "frac_all_good": 0.5,
        "by_group/frac_all_good": 0.0,
        "by_group/frac_mixed": 1.0,
        "by_group/frac_all_bad": 0.0,
        "entropy": (10 * 1.0 + 148 * 0.5) / 158,  # a mean over tokens, not over rollouts
        "frac_truncated": 0.5,
        "tokens/mean": 158 / 4,
        "tokens/p50": 42.0,
        "tokens/p90": 64,
        "tokens/max": 64,
        "tokens/thinking": (10 * 4 / 8 + 20 + 0 + 64 * 2 / 4) / 4,
        "tokens_per_correct": 158 / 2,
        "correct_given_finished": 0.5,
        "thinking_ja_share": (2 / 4 + 0 + 0 + 1) / 4,
        "boxed_in_thinking": 0.0,
        "grade/correct": 0.5,
        "grade/wrong": 0.25,
        "grade/truncated": 0.25,
        "grade/no_box": 0.0,
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, abs=1e-12), name
    assert sum(value for name, value in metrics.items() if name.startswith("grade/")) == pytest.approx(1)
    assert "entropy_exact" not in metrics


def test_means_over_nothing_are_not_numbers():
    cut = [rollout(0, 64, cut=True, correct=False, form=False, reason="truncated")] * 2
    metrics = rollout_metrics(cut)
    assert math.isnan(metrics["tokens_per_correct"]) and math.isnan(metrics["correct_given_finished"])
    assert metrics["by_group/frac_all_bad"] == 1.0


def test_boxes_in_the_reasoning_are_counted_finished_or_not():
    batch = [
        rollout(0, 9, False, False, False, "no_box", thinking="so \\boxed{\\frac{1}{2}}, wait", text="1/2"),
        rollout(0, 9, True, False, False, "truncated", thinking="so \\boxed{2}. But"),
        rollout(0, 9, True, False, False, "truncated", thinking="so \\boxed{2"),  # never closed
        rollout(0, 9, False, True, True, "correct", thinking="so 2", text="\\boxed{2}"),
    ]
    assert rollout_metrics(batch)["boxed_in_thinking"] == 0.5


def test_exact_entropy_where_the_sampler_kept_it():
    batch = [
        rollout(0, 2, False, True, True, "correct", entropies=[1.0, 2.0]),
        rollout(1, 1, False, True, True, "correct", entropies=[0.0]),
    ]
    assert rollout_metrics(batch)["entropy_exact"] == pytest.approx(1.0)


def test_groups_of_unequal_size():
    shares = group_metrics([0, 0, 0, 1, 2, 2], [True, True, True, False, True, False])
    assert shares == pytest.approx(
        {"by_group/frac_all_good": 1 / 3, "by_group/frac_mixed": 1 / 3, "by_group/frac_all_bad": 1 / 3}
    )


def test_percentile_is_the_nearest_rank():
    assert [percentile(range(1, 11), share) for share in (0.0, 0.1, 0.5, 0.9, 0.91, 1.0)] == [
        1,
        1,
        5,
        9,
        10,
        10,
    ]


def test_update_metrics_by_hand():
    stats = UpdateStats(
        loss=-0.25, grad_norm=2.0, stepped=False, sequence_kl=[0.001, 0.003], admitted=[True, False],
        ratio_mean=1.01, ratio_max=1.5, ratio_min=0.5,
    )  # fmt: skip
    metrics = update_metrics(stats, learning_rate=1e-4)
    assert metrics == pytest.approx(
        {
            "learning_rate": 1e-4, "loss": -0.25, "grad_norm": 2.0, "skipped": 1.0, "trust/admitted": 0.5,
            "trust/kl_mean": 0.002, "trust/kl_max": 0.003, "ratio/mean": 1.01, "ratio/max": 1.5, "ratio/min": 0.5,
        }
    )  # fmt: skip


def batch_of(languages: list[str], members: int) -> list[Rollout]:
    """Groups of `members` rollouts, one problem each, in the languages given."""
    return [
        one_turn(
            Problem(f"p{group}", "q", "1", language, "test"), group, [1], Completion([1], [-1.0], "stop"), Parsed("", "", "", "stop")
        )
        for group, language in enumerate(languages)
        for _ in range(members)
    ]  # fmt: skip


def test_samples_are_of_every_language_and_of_many_problems():
    """As in the demo: 16 problems in turns of English and Japanese x 8, four samples a step."""
    batch = batch_of(["en", "ja"] * 8, members=8)
    chosen = spread(batch, 4)
    assert [r.problem.language for r in chosen] == ["en", "ja", "en", "ja"]
    assert len({r.group for r in chosen}) == 4 and chosen == spread(batch, 4)
    assert [r.group for r in spread(batch_of(["en"] * 8, 2), 4)] == [
        0,
        2,
        4,
        6,
    ]  # one language: evenly spaced


def test_a_language_with_few_rollouts_gives_all_of_them():
    batch = batch_of(["en", "en", "en", "ja", "en"], members=1)
    assert [r.group for r in spread(batch, 4)] == [0, 1, 2, 3]
    assert sorted(r.group for r in spread(batch, 9)) == [0, 1, 2, 3, 4]
    assert [r.problem.language for r in spread(batch, 1)] == ["en"] and spread(batch, 0) == []
