"""Length rules: numbers by hand, a longer right answer never earns more, and what a reward set makes of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.correct import Correct
from rewards.format_boxed import FormatBoxed
from rewards.grading import Verdict, parse_text
from rewards.length.cosine import Cosine
from rewards.length.efficient import Efficient
from rewards.length.kimi import Kimi
from rewards.length.l1 import L1Exact, L1Max
from rewards.length.laser import Laser
from rewards.length.linear import Linear
from rewards.length.overlong import OverlongPenalty
from rewards.overlong import Overlong
from rewards.reward_set import RewardSet
from rl.errors import UserError
from rl.rollouts import Completion, Problem, Rollout
from tests.helpers.rollouts import one_turn

L1 = L1Max(max_tokens=40, seed=0, target=(20, 20), alpha=0.02)
# Rules under which a longer right answer never earns more; l1_exact wants a length, not a short one.
RULES = [
    Kimi(), Efficient(alpha=0.5), Linear(), Laser(max_tokens=40), Cosine(max_tokens=40), OverlongPenalty(max_tokens=40), L1,
]  # fmt: skip


def member(
    length: int, correct: bool = True, cut: bool = False, group: int = 0, box: int | None = None
) -> Rollout:
    """A graded rollout of `length` tokens; with `box` an ungraded one that answers it, where 1 is right."""
    rollout = one_turn(
        problem=Problem(f"p{group}", "?", "1", "en", "test"),
        group=group,
        prompt_tokens=[0],
        completion=Completion([7] * length, [0.0] * length, "length" if cut else "stop"),
        parsed=parse_text("" if box is None else f"\\boxed{{{box}}}"),
    )
    rollout.verdict = Verdict(correct, True, None, "1", "correct" if correct else "wrong", 0.0)
    return rollout


R, W = True, False


@pytest.mark.parametrize(
    ("rule", "members", "changes"),
    [
        # lambda = 0.5, 0, -0.5 for 10, 20, 30 tokens; a wrong answer keeps its negative part.
        (Kimi(), [(10, R), (20, R), (30, R)], [0.5, 0, -0.5]),
        (Kimi(), [(10, W), (20, W), (30, W)], [0, 0, -0.5]),
        (Kimi(), [(10, W), (15, R), (30, R, "cut")], [0, 0.25, -0.5]),
        (Kimi(weight=0.2), [(10, R), (30, W)], [0.1, -0.1]),
        (Kimi(), [(10, R), (10, W)], [0, 0]),
        # Right answers of 10 and 30 tokens: mean 20, standard deviation 10, so z = -1 and 1.
        (Efficient(alpha=0.5), [(10, R), (30, R), (99, W)], [-0.5 / (1 + math.e), -0.5 / (1 + 1 / math.e), 0]),
        (Efficient(alpha=0.5), [(10, R), (20, W)], [-0.25, 0]),
        (Efficient(alpha=0.5), [(10, R), (10, R)], [-0.25, -0.25]),
        (Efficient(alpha=0.5), [(10, W), (20, W)], [0, 0]),
        (Efficient(alpha=0.5), [(10, R), (40, R, "cut")], [-0.25, -1]),
        # 0.25 x share of right answers x tokens / 40
        (Linear(), [(10, R), (20, R), (40, R, "cut"), (40, R)], [-0.0625, -0.125, -0.25, -0.25]),
        (Linear(), [(10, R), (40, W)], [-0.03125, -0.125]),
        (Linear(), [(10, W), (40, W)], [0, 0]),
        (Linear(weight=1.0), [(5, R), (5, R)], [-1, -1]),
        (Laser(max_tokens=40), [(20, R), (21, R), (20, W), (40, R, "cut")], [0.5, 0, 0, 0]),
        (Laser(max_tokens=40, target=30, bonus=0.1), [(30, R), (31, R)], [0.1, 0]),
        (Laser(max_tokens=1), [(1, R)], [0.5]),
        # cos(pi n / 40) at 0, 20, 40 tokens: the start, the middle and the end of each pair; right answers minus c = 1.
        (Cosine(max_tokens=40), [(0, R), (20, R), (40, R), (80, R)], [0, -0.25, -0.5, -0.5]),
        (Cosine(max_tokens=40), [(0, W), (20, W), (40, W), (80, W)], [-1, -0.75, -0.5, -0.5]),
        (Cosine(max_tokens=40), [(10, R)], [0.5 + 0.25 * (1 + math.sqrt(0.5)) - 1]),
        (Cosine(max_tokens=40), [(40, R, "cut"), (40, W, "cut")], [-2, -1]),
        # max_tokens 40, the last 8 cost
        (OverlongPenalty(max_tokens=40), [(32, R), (34, W), (40, R, "cut"), (50, R)], [0, -0.25, -1, -1]),
        (OverlongPenalty(max_tokens=40, cache_tokens=40), [(10, R)], [-0.25]),
        # target 20, 0.02 a token
        (L1, [(20, R), (10, R), (45, R), (95, R), (20, W), (40, R, "cut")], [-0.5, -0.3, -1, -1, 0, -0.9]),
        (L1Max(max_tokens=40, seed=0, target=(20, 20), alpha=1.0), [(1, R)], [0]),
        (L1Exact(max_tokens=40, seed=0, target=(20, 20), alpha=0.01), [(20, R), (10, R), (25, W), (40, W, "cut")],
         [0, -0.1, -0.05, -0.2]),
    ],
)  # fmt: skip
def test_by_hand(rule, members, changes):
    assert rule([member(*m) for m in members]) == pytest.approx(changes, abs=1e-12)


MEMBERS = st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=8)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(members=MEMBERS)
def test_of_two_right_answers_the_longer_never_earns_more(rule, members):
    group = [member(n, correct) for n, correct in members]
    right = sorted((n, change) for (n, correct), change in zip(members, rule(group), strict=True) if correct)
    for (n, change), (longer, later) in itertools.pairwise(right):
        assert later <= change + 1e-9, (n, longer)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(members=MEMBERS, more=st.integers(1, 50), cut=st.booleans())
def test_a_right_answer_that_gets_longer_never_earns_more(rule, members, more, cut):
    """The others stay as they are; a group's shortest, longest and moments move with it."""
    others = [member(n, correct) for n, correct in members[1:]]
    n = members[0][0]
    assert rule([member(n + more, cut=cut), *others])[0] <= rule([member(n), *others])[0] + 1e-9


@given(members=MEMBERS)
def test_wrong_answers_keep_the_published_sign(members):
    """kimi punishes long wrong answers, cosine short ones; the other rules see no length in a wrong answer, or a cost."""
    lengths = sorted(n for n, _ in members)
    wrong = [member(n, False) for n in lengths]
    falls, rises = Kimi()(wrong), Cosine(max_tokens=40)(wrong)
    assert falls == sorted(falls, reverse=True) and max(falls) <= 0
    assert rises == sorted(rises) and max(rises) <= -0.5
    for rule in (Efficient(), Laser(max_tokens=40), Linear(), L1):
        assert rule(wrong) == [0] * len(wrong)


def test_l1_draws_one_target_a_problem_by_the_seed():
    rule = L1Max(max_tokens=40, seed=3)
    problems = [Problem(f"p{i}", "?", "1", "en" if i % 2 else "ja", "test") for i in range(400)]
    targets = [rule.target_of(problem) for problem in problems]
    assert {min(targets), max(targets)} == {10, 40} and len(set(targets)) == 31
    assert targets == [L1Exact(max_tokens=40, seed=3).target_of(problem) for problem in problems]
    assert targets != [replace(rule, seed=4).target_of(problem) for problem in problems]
    for problem, target in zip(problems, targets, strict=True):
        words = "at most" if problem.language == "en" else "トークン以内"
        assert str(target) in rule.instruction(problem) and words in rule.instruction(problem)


def test_a_set_adds_the_rule_to_the_sum_group_by_group():
    rollouts = [
        member(10, box=1), member(30, box=1, group=1), member(20, box=1), member(40, box=2), member(90, box=2, group=1)
    ]  # fmt: skip
    terms = {"correct": Correct(weight=0.9), "format": FormatBoxed(weight=0.1)}
    RewardSet(name="boxed", terms=terms, length=Kimi()).score(rollouts)
    changes = [0.5, 0.5, 0.5 - 10 / 30, -0.5, -0.5]
    assert [r.rewards["length"] for r in rollouts] == pytest.approx(changes)
    before = [1.0, 1.0, 1.0, 0.1, 0.1]
    assert [r.reward for r in rollouts] == pytest.approx(
        [a + b for a, b in zip(before, changes, strict=True)]
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_alone_is_compared_with_nothing(rule):
    """A greedy evaluation has one completion of each problem: rules of a group leave its reward as it is."""
    (alone,) = rollouts = [member(30, box=1)]
    RewardSet(name="c", terms={"correct": Correct()}, length=rule).score(rollouts)
    expected = 0.0 if rule.needs_groups else rule(rollouts)[0]
    assert alone.rewards == {"correct": 1.0, "length": expected} and alone.reward == 1 + expected


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_that_reads_correctness_has_answers_graded(rule):
    rewards = RewardSet(name="f", terms={"format": FormatBoxed()}, length=rule)
    rollouts = [member(30, box=1), member(30, box=2)]
    rewards.score(rollouts)
    assert rewards.needs_grading == rule.needs_grading == (rule.name != "overlong")
    assert [r.verdict.correct for r in rollouts] == ([True, False] if rule.needs_grading else [None, None])


def test_the_reward_overlong_is_the_same_rule():
    group = [member(n) for n in range(1, 60)]
    reward = Overlong(max_tokens=40, cache_tokens=8)
    assert OverlongPenalty(max_tokens=40)(group) == [value - 1 for value in reward(group)]


class Broken:
    """Somebody's own rule: `returns` it for any group, or raises it."""

    name, needs_groups, needs_grading = "own", False, False

    def __init__(self, returns):
        self.returns = returns

    def __call__(self, group):
        if isinstance(self.returns, Exception):
            raise self.returns
        return self.returns


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (KeyError("gone"), r"length: raised KeyError on problem p0: 'gone'"),
        ([0.0], r"length: returned 1 values for 2 rollouts"),
        (["a", 0.0], r"length: returned 'a' on problem p0; expected a number"),
        ([0.0, math.nan], r"length: returned nan on problem p0; expected a finite number"),
        ([0.0, 3.4e38], None),
        ([3.5e38, 0.0], r"length: returned 3.5e\+38"),
    ],
)
def test_a_broken_rule_of_ones_own_is_one_line(returns, message):
    rewards = RewardSet(name="f", terms={"format": FormatBoxed()}, length=Broken(returns))
    group = [member(3, box=1), member(4, box=1)]
    if message is None:
        rewards.score(group)
        assert group[1].reward == 3.4e38
        return
    with pytest.raises(UserError, match=message):
        rewards.score(group)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Kimi(weight=-1), "length.weight=-1"),
        (lambda: Linear(weight=math.nan), "length.weight=nan"),
        (lambda: Efficient(alpha=1.1), "length.alpha=1.1"),
        (lambda: Laser(max_tokens=40, target=0), r"length.target=0.*e.g. length.target=20"),
        (lambda: Laser(max_tokens=40, bonus=math.inf), "length.bonus=inf"),
        (lambda: Cosine(max_tokens=40, right=(0.5, 1.0)), r"length.right=\[0.5, 1.0\]"),
        (lambda: Cosine(max_tokens=40, cut=0.8), "length.cut=0.8"),
        (lambda: OverlongPenalty(max_tokens=40, cache_tokens=41), "length.cache_tokens=41"),
        (lambda: L1Max(max_tokens=40, seed=0, target=(9, 8)), r"length.target=\[9,8\]"),
        (lambda: L1Exact(max_tokens=40, seed=0, alpha=-1), "length.alpha=-1"),
        (lambda: RewardSet(name="x", terms={"length": Correct()}, length=Kimi()), "rewards.length: length=kimi"),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_one_line(make, message):
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
