"""Rewards and reward sets: hand-derived values, and the messages of broken rewards."""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import replace

import pytest

from rewards.correct import Correct
from rewards.format_boxed import FormatBoxed
from rewards.format_think_answer import FormatThinkAnswer
from rewards.grading import parse_text
from rewards.overlong import Overlong
from rewards.repetition import Repetition
from rewards.reward_set import CONSTANT_STEPS, FunctionReward, RewardSet
from rewards.thinking_language import ThinkingLanguage, script_share
from rl.errors import NotFinite, UserError
from rl.rollouts import Completion, Problem, Rollout
from tests.helpers.rollouts import one_turn


def rollout(text: str, gold: str = "18", tokens: list[int] | None = None, problem: str = "p0") -> Rollout:
    tokens = tokens if tokens is not None else [1, 2, 3]
    return one_turn(
        problem=Problem(problem, "?", gold, "en", "test"),
        group=0,
        prompt_tokens=[0],
        completion=Completion(tokens, [0.0] * len(tokens), "stop"),
        parsed=parse_text(text),
    )


RIGHT, WRONG, BARE = "so \\boxed{18}", "so \\boxed{19}", "so 18"


def scored(rewards: RewardSet, *texts: str) -> list[float]:
    rollouts = [rollout(text) for text in texts]
    rewards.score(rollouts)
    return [r.reward for r in rollouts]


def test_published_weights():
    rewards = RewardSet(
        name="boxed", terms={"correct": Correct(weight=0.9), "format": FormatBoxed(weight=0.1)}
    )
    assert scored(rewards, RIGHT, WRONG, BARE) == pytest.approx([1.0, 0.1, 0.0])


def test_a_baseline_makes_a_penalty():
    rewards = RewardSet(
        name="penalty", terms={"correct": Correct(), "format": FormatBoxed(weight=0.1, baseline=1.0)}
    )
    assert scored(rewards, RIGHT, WRONG, BARE) == pytest.approx([1.0, 0.0, -0.1])


def test_values_before_weighting_and_the_verdict_are_kept():
    rewards = RewardSet(
        name="boxed", terms={"correct": Correct(weight=0.9), "format": FormatBoxed(weight=0.1)}
    )
    graded = rollout(WRONG)
    rewards.score([graded])
    assert graded.rewards == {"correct": 0.0, "format": 1.0}
    assert (graded.verdict.extracted, graded.verdict.gold, graded.verdict.reason) == ("19", "18", "wrong")
    rewards.score([graded])
    assert graded.reward == pytest.approx(0.1)  # scoring twice does not add up


def test_think_answer_set():
    terms = {"correct": Correct(), "format": FormatThinkAnswer()}
    rewards = RewardSet(name="think_answer", answer_format="think_answer", terms=terms)
    whole, bare = "<think>a</think><answer>18</answer>", "<answer>18</answer>"
    assert scored(rewards, whole, bare, RIGHT) == [2.0, 1.0, 0.0]


def test_answer_region():
    inside = "<think>it is \\boxed{18}, but"
    terms = {"correct": Correct()}
    assert scored(RewardSet(name="a", terms=terms), inside) == [0.0]
    assert scored(RewardSet(name="b", terms=terms, answer_region="anywhere"), inside) == [1.0]


@pytest.mark.parametrize(
    ("length", "value"), [(0, 1.0), (75, 1.0), (76, 0.96), (90, 0.4), (100, 0.0), (130, 0.0)]
)
def test_overlong_falls_linearly_over_the_cache(length, value):
    # DAPO, equation 13, plus 1: (100 - length) / 25 between 75 and 100 tokens
    reward = Overlong(max_tokens=100, cache_tokens=25)
    assert reward([rollout("x", tokens=[7] * length)]) == pytest.approx([value])


def test_repetition_counts_distinct_ngrams():
    reward = Repetition(ngram=2)
    # 1 2 1 2 1: pairs 12 21 12 21, two of four distinct
    assert reward([rollout("x", tokens=t) for t in ([1, 2, 1, 2, 1], [1, 2, 3], [1], [])]) == [
        0.5,
        1.0,
        1.0,
        1.0,
    ]


@pytest.mark.parametrize(
    ("text", "language", "share"),
    [
        ("", "ja", 0.0),
        ("12 + 3 = 15", "ja", 0.0),
        ("りんご", "ja", 1.0),
        ("リンゴ一個", "ja", 1.0),
        ("apple", "en", 1.0),
        ("apple", "ja", 0.0),
        ("りんごab", "ja", 0.6),
        ("りんごab", "en", 0.4),
        ("\\frac{1}{2} りんご \\boxed{3}", "ja", 1.0),
        ("яблоко", "en", 0.0),
        ("ｱｯﾌﾟﾙ", "ja", 1.0),
        ("ＡＢ", "en", 1.0),
        ("\ud800", "ja", 0.0),
    ],
)
def test_script_share(text, language, share):
    assert script_share(text, language) == pytest.approx(share)
    assert not math.isnan(script_share(text, language))


def test_thinking_language_reads_the_reasoning():
    reward = ThinkingLanguage(language="ja")
    assert reward(
        [rollout("<think>りんご</think>apple"), rollout("りんご"), rollout("<think>apple</think>りんご")]
    ) == [1, 1, 0]


def test_thinking_language_may_be_the_problems_own():
    reward = ThinkingLanguage(language="problem")
    english, japanese = rollout("<think>apple りんご</think>18"), rollout("<think>apple りんご</think>18")
    japanese = replace(japanese, problem=replace(japanese.problem, language="ja"))
    assert reward([english, japanese]) == [5 / 8, 3 / 8]  # of the letters of "apple" and "りんご"


# -- a user's own reward, and broken ones ------------------------------------------------------------------------------


def own(function, **changes) -> RewardSet:
    return RewardSet(name="own", terms={"brevity": FunctionReward(function=function, **changes)})


def test_a_function_is_a_reward():
    def brevity(rollouts):
        return [1 / len(r.completion.tokens) for r in rollouts]

    rewards = own(brevity, weight=0.5)
    graded = rollout(RIGHT, tokens=[1, 2])
    rewards.score([graded])
    assert (graded.rewards, graded.reward) == ({"brevity": 0.5}, 0.25)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda rollouts: [math.nan if r.problem.id == "p1" else 0.0 for r in rollouts],
            "brevity.*nan.*problem p1",
        ),
        (lambda rollouts: [math.inf] * len(rollouts), "brevity.*inf.*problem p0"),
        (lambda rollouts: ["high"] * len(rollouts), "brevity.*'high'.*problem p0"),
        (lambda rollouts: [None] * len(rollouts), "brevity.*None.*problem p0"),
        (lambda rollouts: [1.0], "brevity.*1 values for 2 rollouts.*p0"),
        (
            lambda rollouts: [1 / (r.problem.id != "p1") for r in rollouts],
            "brevity.*ZeroDivisionError.*problem p1",
        ),
    ],
)
def test_a_broken_reward_names_itself_and_the_sample(function, message):
    with pytest.raises(UserError, match=message):
        own(function).score([rollout(RIGHT, problem="p0"), rollout(RIGHT, problem="p1")])


def test_numbers_of_numpy_and_torch_are_numbers():
    import numpy
    import torch

    for one in (numpy.ones(2, dtype="float32"), torch.ones(2), [numpy.float64(1), torch.tensor(1)]):
        rewards = RewardSet(name="test", terms={"m": FunctionReward(function=lambda rollouts, one=one: one)})
        assert scored(rewards, RIGHT, WRONG) == [1.0, 1.0]


def test_text_for_a_number_is_an_error_that_ends_the_run():
    rewards = RewardSet(
        name="test", terms={"m": FunctionReward(function=lambda rollouts: ["1"] * len(rollouts))}
    )
    with pytest.raises(UserError, match="expected a number") as raised:
        scored(rewards, RIGHT)
    assert not isinstance(raised.value, NotFinite)


def test_a_value_outside_the_unit_interval_is_taken_with_one_warning(caplog):
    rewards = RewardSet(
        name="test",
        terms={"big": FunctionReward(function=lambda rollouts: [5.0] * len(rollouts), weight=0.1)},
    )
    with caplog.at_level(logging.WARNING, logger="tanka"):
        assert scored(rewards, RIGHT, WRONG) == scored(rewards, RIGHT, WRONG) == [0.5, 0.5]
    assert len(caplog.records) == 1 and "reward big returned 5" in caplog.text


def test_a_constant_reward_warns_once(caplog):
    rewards = RewardSet(name="boxed", terms={"correct": Correct(), "format": FormatBoxed()})
    with caplog.at_level(logging.WARNING, logger="tanka"):
        for step in range(CONSTANT_STEPS * 3):
            scored(rewards, RIGHT, WRONG)  # correct varies, format is 1 throughout
            assert len(caplog.records) == (step + 1 >= CONSTANT_STEPS)
    assert "format" in caplog.text and "correct" not in caplog.text


def test_a_reward_that_moves_from_step_to_step_does_not_warn(caplog):
    rewards = RewardSet(name="boxed", terms={"correct": Correct()})
    with caplog.at_level(logging.WARNING, logger="tanka"):
        for step in range(CONSTANT_STEPS * 3):
            scored(rewards, *[RIGHT if step % 2 else WRONG] * 2)
    assert not caplog.records


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RewardSet(name="x", terms={}), "the set is empty"),
        (lambda: RewardSet(name="x", terms={"a": Correct(weight=math.nan)}), "rewards.a.weight"),
        (lambda: RewardSet(name="x", terms={"a": object()}), "rewards.a"),  # type: ignore[dict-item]
        (lambda: RewardSet(name="x", terms={"a": FormatThinkAnswer()}), "rewards.a.*answer_format"),
        (lambda: Overlong(max_tokens=10, cache_tokens=11), "cache_tokens"),
        (lambda: Repetition(ngram=0), "ngram"),
    ],
)
def test_bad_choices(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("value", [1e308, -1e308, 10**400, 3.5e38, math.nan, -math.inf])
def test_a_value_that_float32_cannot_hold_is_not_finite(value):
    broken = RewardSet(
        name="x", terms={"huge": FunctionReward(function=lambda rollouts: [value] * len(rollouts))}
    )
    with pytest.raises(
        NotFinite, match=r"rewards\.huge: returned .* on problem p0; expected a finite number"
    ):
        broken.score([rollout(RIGHT), rollout(RIGHT)])


def test_a_sum_that_float32_cannot_hold_is_not_finite():
    ones = FunctionReward(function=lambda rollouts: [1.0] * len(rollouts), weight=2e38)
    rewards = RewardSet(name="x", terms={"a": ones, "b": ones})
    with pytest.raises(NotFinite, match=r"after adding rewards\.b, the weighted sum on problem p0 is 4e\+38"):
        rewards.score([rollout(RIGHT)])
    assert scored(RewardSet(name="x", terms={"a": ones}), RIGHT) == [2e38]


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (lambda rollouts: sys.exit(0), r"rewards\.mine: raised SystemExit on problem p0"),
        (lambda rollouts: None, r"rewards\.mine: returned None; expected a list of 1 numbers"),
    ],
)
def test_a_reward_that_ends_the_process_or_returns_nothing_is_one_line(reward, words):
    rewards = RewardSet(name="mine", terms={"mine": FunctionReward(function=reward)})
    with pytest.raises(UserError, match=words):
        rewards.score([rollout("\\boxed{1}")])
