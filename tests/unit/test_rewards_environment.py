"""The environment's own reward, and what counts as correct with it."""

from __future__ import annotations

import pytest

from environments.tool_class import ToolClassConfig
from renderers.tool_calls import hermes_calls
from rewards.correct import Correct
from rewards.environment import EnvironmentReward
from rewards.format_boxed import FormatBoxed
from rewards.length.kimi import Kimi
from rewards.reward_set import RewardSet
from rl.errors import UserError
from rl.rollouts import Completion, Parsed, Problem, Rollout, Turn


def rollout(earned: float | None, ended: str = "answered", text: str = "Done.", tokens: int = 3) -> Rollout:
    turn = Turn([0], Completion([1] * tokens, [0.0] * tokens, "stop"), Parsed("", text, text, "stop"))
    return Rollout(Problem("p", "?", "18", "en", "test"), 0, [turn], ended, earned=earned)  # type: ignore[arg-type]


def test_the_reward_is_what_was_earned_and_full_reward_is_correct():
    rewards = RewardSet(name="environment", terms={"earned": EnvironmentReward(weight=2.0)})
    rollouts = [rollout(1.0), rollout(0.4), rollout(0.0), rollout(None, "error"), rollout(3.0)]
    rewards.score(rollouts)
    assert [r.reward for r in rollouts] == [2.0, 0.8, 0.0, 0.0, 6.0]
    assert [r.verdict.correct for r in rollouts] == [True, False, False, False, True]
    assert [r.verdict.reason for r in rollouts] == ["correct", "wrong", "wrong", "wrong", "correct"]
    assert not rewards.needs_grading and rewards.judged_by_environment


def test_answers_are_graded_where_another_reward_needs_it():
    rewards = RewardSet(name="both", terms={"earned": EnvironmentReward(), "correct": Correct()})
    rollouts = [rollout(0.0, text="\\boxed{18}"), rollout(1.0, text="\\boxed{19}")]
    rewards.score(rollouts)
    assert [r.reward for r in rollouts] == [1.0, 1.0] and not rewards.judged_by_environment
    assert [r.verdict.correct for r in rollouts] == [True, False]


def test_a_length_rule_reads_what_the_environment_judged():
    rewards = RewardSet(name="environment", terms={"earned": EnvironmentReward()}, length=Kimi(name="kimi"))
    short, long = rollout(1.0, tokens=2), rollout(1.0, tokens=6)
    rewards.score([short, long])
    assert (short.reward, long.reward) == (1.5, 0.5) and not rewards.needs_grading


def test_an_environment_without_a_reward_is_one_line():
    rewards = RewardSet(name="environment", terms={"earned": EnvironmentReward(), "format": FormatBoxed()})
    with pytest.raises(UserError, match="type rewards=boxed to grade the last answer"):
        rewards.score([rollout(None)])


def test_a_box_in_a_tool_result_is_never_the_answer():
    """The tool says `\\boxed{18}`; the model's last turn has no box."""
    config = ToolClassConfig(name="class", path="tests.helpers.tool_classes.Echo")
    environment = config.make(lambda parsed: hermes_calls(parsed.text))
    problem = Problem("p", "?", "18", "en", "test")
    environment.start(problem)
    call = '<tool_call>{"name": "echo", "arguments": {"text": "\\\\boxed{18}"}}</tool_call>'
    turns = []
    for text, shown in ((call, []), ("As the tool says.", None)):
        messages = environment.step(Parsed("", text, text, "stop"))
        assert shown is not None or messages is None
        turns.append(
            Turn([0], Completion([1], [0.0], "stop"), Parsed("", text, text, "stop"), messages or [])
        )
    assert turns[0].messages[0]["content"] == "\\boxed{18}"
    rewards = RewardSet(name="boxed", terms={"correct": Correct()})
    graded = Rollout(problem, 0, turns, "answered")
    rewards.score([graded])
    assert graded.reward == 0.0 and graded.verdict.reason == "no_box"
