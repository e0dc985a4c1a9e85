"""pass@k, maj@k and intervals against hand-derived numbers, brute force and simulated coverage."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.evaluation.statistics import (
    estimate,
    estimate_change,
    estimate_share,
    majority_at_k,
    pass_at_k,
    wilson,
)


def brute_pass(correct: list[bool], k: int) -> Fraction:
    draws = list(itertools.combinations(correct, k))
    return Fraction(sum(any(draw) for draw in draws), len(draws))


def brute_majority(answers: list[str | None], k: int) -> Fraction:
    draws = list(itertools.combinations(answers, k))
    won = Fraction(0)
    for draw in draws:
        votes = Counter(answer for answer in draw if answer is not None)
        leaders = [answer for answer, count in votes.items() if count == max(votes.values())]
        won += Fraction("right" in leaders, len(leaders) or 1)
    return won / len(draws)


@pytest.mark.parametrize(
    ("correct", "n", "k", "expected"),
    [
        (0, 5, 3, 0.0),
        (5, 5, 1, 1.0),
        (1, 4, 1, 1 / 4),
        (1, 4, 2, 1 / 2),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (2, 5, 2, 7 / 10),  # 1 - C(3,2)/C(5,2) = 1 - 3/10
        (3, 5, 3, 1.0),  # two wrong ones cannot fill three places
    ],
)
def test_pass_at_k_by_hand(correct: int, n: int, k: int, expected: float) -> None:
    assert pass_at_k(correct, n, k) == pytest.approx(expected, abs=1e-15)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_share_of_all_draws(correct: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(correct)))
    assert pass_at_k(sum(correct), len(correct), k) == pytest.approx(float(brute_pass(correct, k)), abs=1e-12)


@pytest.mark.parametrize(
    ("answers", "k", "expected"),
    [
        (["right", "7"], 2, 1 / 2),  # a tie
        (["right", "7", None], 3, 1 / 2),  # silence does not vote
        (["right", None, None], 2, 2 / 3),  # drawn in two of three pairs, and then alone
        (["right", "right", "7"], 3, 1.0),
        (["right", "right", "7"], 2, 2 / 3),  # {r,r}: 1, {r,7} twice: 1/2 each
        (["right", "6", "7"], 3, 1 / 3),  # three share the lead
        ([None, None], 1, 0.0),
        (["6", "7"], 2, 0.0),
    ],
)
def test_majority_by_hand(answers: list[str | None], k: int, expected: float) -> None:
    assert majority_at_k(answers, "right", k) == pytest.approx(expected, abs=1e-15)


@given(st.lists(st.sampled_from(["right", "6", "7", "8", None]), min_size=1, max_size=9), st.data())
def test_majority_is_the_share_of_all_draws(answers: list[str | None], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answers)))
    assert majority_at_k(answers, "right", k) == pytest.approx(float(brute_majority(answers, k)), abs=1e-12)


@given(st.lists(st.sampled_from(["right", "6", None]), min_size=1, max_size=9))
def test_one_draw_is_the_accuracy(answers: list[str | None]) -> None:
    share = answers.count("right") / len(answers)
    assert majority_at_k(answers, "right", 1) == pytest.approx(share)
    assert pass_at_k(answers.count("right"), len(answers), 1) == pytest.approx(share)


@pytest.mark.parametrize("k", [0, 3, -1])
def test_more_draws_than_completions_are_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"k={k}: expected 1 to n=2"):
        pass_at_k(1, 2, k)
    with pytest.raises(ValueError, match=f"k={k}: expected 1 to n=2"):
        majority_at_k(["a", "b"], "a", k)


def test_the_bootstrap_of_two_problems_by_hand() -> None:
    """Two problems, 0 and 1: a resample's mean is 0, 1/2 or 1 with chances 1/4, 1/2, 1/4, so 95 % reach both ends."""
    assert estimate([0, 1]) == (0.5, 0.0, 1.0)


def test_the_bootstrap_of_many_trials_is_their_binomial() -> None:
    """100 problems, 50 right: a resample's count is binomial(100, 1/2), whose 2.5 and 97.5 % points are 40 and 60."""
    value, low, high = estimate([0] * 50 + [1] * 50)
    assert value == 0.5
    assert low == pytest.approx(0.40, abs=0.011) and high == pytest.approx(0.60, abs=0.011)


def test_a_ratio_is_of_sums_and_may_end_at_infinity() -> None:
    # 60 + 20 tokens for 1 + 1 right answers.
    assert estimate([60, 20], [1, 1]).value == 40
    # One of two problems is right: a quarter of the resamples hold none, so the interval has no upper end.
    value, low, high = estimate([60, 20], [0, 1])
    assert (value, low, high) == (80.0, 20.0, math.inf)
    assert all(math.isnan(bound) for bound in estimate([60, 20], [0, 0]))


def test_constant_values_have_no_width() -> None:
    assert estimate([7.0] * 5) == (7.0, 7.0, 7.0)


def test_wilson_by_hand() -> None:
    # Without a success: [0, z2 / (n + z2)] with z2 = 3.8415; 10 trials: 3.8415 / 13.8415.
    assert wilson(0, 10) == pytest.approx((0, 0, 0.27753), abs=1e-5)
    assert wilson(1, 10) == pytest.approx((1, 0.72247, 1), abs=1e-5)
    assert wilson(0.5, 4) == pytest.approx((0.5, 0.15004, 0.84996), abs=1e-5)


def test_shares_that_cannot_vary_get_wilsons_interval() -> None:
    assert estimate_share([0.0] * 10) == wilson(0, 10)
    assert estimate_share([1.0] * 10) == wilson(1, 10)
    assert estimate_share([0.5] * 10) == (0.5, 0.5, 0.5)
    assert all(math.isnan(bound) for bound in estimate_share([]))


def test_changes_that_cannot_vary_leave_room_for_other_problems() -> None:
    assert estimate_change([0.0] * 10) == pytest.approx((0, -0.27753, 0.27753), abs=1e-5)
    assert estimate_change([1.0] * 10) == pytest.approx((1, 0.72247, 1), abs=1e-5)
    assert estimate_change([-1.0] * 10) == pytest.approx((-1, -1, -0.72247), abs=1e-5)
    assert estimate_change([0, 1]) == estimate([0, 1])


@pytest.mark.parametrize(("problems", "n"), [(64, 1), (64, 8), (256, 4)])
def test_intervals_hold_the_truth_about_95_times_in_100(problems: int, n: int) -> None:
    """Problems of uniform difficulty, so that completions of one problem are alike; the true accuracy is 1/2.

    An interval over completions, as if all were independent, would be 1.8 times too narrow at n=8 and hold it 72 %.
    """
    rng = numpy.random.default_rng(1)
    trials, held = 400, 0
    for _ in range(trials):
        difficulty = rng.uniform(size=problems)
        shares = rng.binomial(n, difficulty) / n
        _, low, high = estimate_share(shares.tolist())
        held += low <= 0.5 <= high
    # 400 trials at 0.95 stay within 0.925 and 0.975 in 98 of 100 cases; the percentile bootstrap is a little narrow.
    assert 0.92 <= held / trials <= 0.98


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=40))
def test_an_interval_holds_its_value(values: list[float]) -> None:
    """Also where all values are alike, and rounding could put the resamples beside it (a picture's error bars)."""
    for found in (estimate(values), estimate([values[0]] * 37), wilson(1.0, len(values) * 64)):
        assert found.low <= found.value <= found.high
