"""Every measure on hand-made rollouts, and a budget read off longer completions against sampling at that budget."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from environments.single_turn import SingleTurnConfig
from renderers.base import RendererConfig
from rewards.correct import Correct
from rewards.grading import Grader, Verdict
from rewards.grading.votes import RIGHT, votes_of
from rewards.reward_set import RewardSet
from rl.collecting import roll_out
from rl.engines.base import SamplingParams
from rl.evaluation.base_and_trained import load_base_and_trained
from rl.evaluation.files import cell, markdown, write_files
from rl.evaluation.measures import (
    ALL,
    CHANGE,
    Result,
    differences,
    measure,
    parts,
    problem_values,
    within,
)
from rl.evaluation.statistics import Estimate, estimate, wilson
from rl.models.config import ModelConfig
from rl.models.loading import context_of, open_renderer
from rl.report.words import WORDS
from rl.rollouts import Completion, Parsed, Problem, Rollout, cut_at
from rl.task import Task
from rl.tiny.word_problems import generate
from tests.helpers.rollouts import one_turn


def rollout(
    group: int, answer: str | None, tokens: int = 10, gold: str = "20", language: str = "en", steps: int = 2, thinking: str = ""
) -> Rollout:  # fmt: skip
    """One graded completion; without an answer it was cut."""
    correct = answer == gold
    reason = "truncated" if answer is None else "correct" if correct else "wrong"
    return one_turn(
        problem=Problem(f"p{group}", "q", gold, language, "test", steps),
        group=group,
        prompt_tokens=[1],
        completion=Completion([7] * tokens, [-1.0] * tokens, "length" if answer is None else "stop"),
        parsed=Parsed(thinking, "", thinking, "length" if answer is None else "stop"),
        verdict=Verdict(correct, answer is not None, answer, gold, reason, 0.0),
        reward=float(correct),
    )


def voted(rollouts: list[Rollout]) -> list[Rollout]:
    rewards = RewardSet(name="correct", terms={"correct": Correct()})
    rewards.vote(rollouts)
    rewards.close()
    return rollouts


# Problem 0: two of four right, one wrong, one cut. Problem 1: none right, three say 18 in three ways, one is cut.
BATCH = [
    rollout(0, "20", tokens=10),
    rollout(0, "20", tokens=20, thinking="りんごab"),  # 3 of 5 letters
    rollout(0, "7", tokens=30),
    rollout(0, None, tokens=40),
    rollout(1, "18", tokens=10, language="ja", steps=3),
    rollout(1, "18.0", tokens=10, language="ja", steps=3),
    rollout(1, "\\$18", tokens=10, language="ja", steps=3),
    rollout(1, None, tokens=40, language="ja", steps=3),
]


def test_every_measure_by_hand() -> None:
    values = {name: each.value for name, each in measure(voted(BATCH), ks=(1, 2, 4)).items()}
    assert values == pytest.approx(
        {
            "accuracy": (2 / 4 + 0) / 2,
            "reward": 0.25,
            "format": (3 / 4 + 3 / 4) / 2,
            "truncated": (1 / 4 + 1 / 4) / 2,
            "tokens": (25 + 17.5) / 2,
            "thinking_ja_share": (3 / 5 / 4 + 0) / 2,
            "pass@1": 0.25,
            "pass@2": (1 - 1 / 6) / 2,  # one pair of six holds neither right answer
            "pass@4": 0.5,
            "maj@1": 0.25,
            # Of the pairs of {20, 20, 7, -}: 20-20 and both 20-silence twice win, 20-7 twice ties, 7-silence loses.
            "maj@2": ((1 + 2 + 2 / 2) / 6) / 2,
            "maj@4": 0.5,
            "signal": 0.5,
            "tokens_per_correct": (25 + 17.5) / (1 / 2),
        }
    )


def test_one_wrong_answer_spelled_in_three_ways_outvotes_a_right_one() -> None:
    spelled = [rollout(0, "20"), rollout(0, "18"), rollout(0, "18.0"), rollout(0, "\\text{18 dollars}")]
    different = [rollout(0, "20"), rollout(0, "18"), rollout(0, "19"), rollout(0, "x+1")]
    assert problem_values(voted(spelled), ks=[4])["maj@4"] == [0.0]
    assert problem_values(voted(different), ks=[4])["maj@4"] == [1 / 4]


@pytest.mark.parametrize(
    "wrong",
    [
        ("x=5", "5", "5.0"),
        ("1,2", "2,1", "\\{1, 2\\}"),
        ("2\\sqrt{3}", "\\sqrt{12}", "\\frac{6}{\\sqrt{3}}"),
        ("(x+1)^2", "x^2+2x+1", "(1+x)(x+1)"),
        ("50\\%", "0.5", "\\frac{1}{2}"),
        ("Monday", "monday", "\\text{MONDAY}"),
        ("5 million", "5,000,000", "500万"),
        ("\\sin 30^\\circ", "0.5", "1/2"),
        ("9^{9^{9^9}}", "9^{9^{9^9}}", "9^{9^{9^9}}"),
    ],
)
def test_wrong_answers_of_one_value_are_one_vote(wrong: tuple[str, ...]) -> None:
    """Two of five right: three draws of 10 hold both, and all five give the wrong one the majority."""
    rollouts = [
        rollout(0, "20"),
        rollout(0, "\\$20", gold="\\$20"),
        *(rollout(0, answer) for answer in wrong),
    ]
    values = problem_values(voted(rollouts), ks=[3, 5])
    assert values["maj@3"] == [pytest.approx(3 / 10)]
    assert values["maj@5"] == [0.0]


def test_different_wrong_answers_are_different_votes() -> None:
    wrong = ["2\\sqrt{3}", "2\\sqrt{2}", "x+1", "x+2", "(1,2)", "(2,1)", "Monday", "18", "50"]
    rollouts = voted([rollout(0, "20"), *(rollout(0, answer) for answer in wrong), rollout(0, None)])
    assert [r.vote for r in rollouts] == [RIGHT, *range(1, 10), None]


def test_votes_are_compared_within_a_problem_and_only_where_they_matter() -> None:
    class NoWorker(Grader):
        def compare(self, pairs):
            assert not pairs, "nobody is right, so that no majority can be"
            return []

    verdicts = [rollout(0, answer).verdict for answer in ("2\\sqrt{3}", "\\sqrt{12}", None)]
    assert votes_of(NoWorker(), [verdicts, []]) == [[1, 2, None], []]
    two = voted([rollout(0, "18"), rollout(0, "20"), rollout(1, "20"), rollout(1, "7"), rollout(1, "18")])
    assert [r.vote for r in two] == [1, RIGHT, RIGHT, 1, 2]


def test_a_majority_needs_votes() -> None:
    with pytest.raises(ValueError, match="no votes yet"):
        measure([rollout(0, "20"), rollout(0, "18")], ks=[2])


def test_nothing_correct_costs_no_number_of_tokens() -> None:
    assert math.isnan(measure([rollout(0, None)])["tokens_per_correct"].value)


def test_intervals_are_over_problems_not_completions() -> None:
    """Copies of the same completions do not narrow the interval."""
    once = [rollout(group, "20" if group % 2 else None) for group in range(20)]
    often = [each for each in once for _ in range(8)]
    for name, each in measure(often).items():
        assert each == pytest.approx(measure(once)[name]), name


def test_a_policy_differs_from_itself_by_nothing() -> None:
    changes = differences(voted(BATCH), BATCH, ks=(2,))
    assert {name: each.value for name, each in changes.items()} == dict.fromkeys(changes, 0.0)
    assert "tokens_per_correct" not in changes
    assert changes["tokens"] == (0, 0, 0)
    # Two problems in which nothing changed say little about the others.
    assert changes["truncated"] == pytest.approx((0, -wilson(0, 2).high, wilson(0, 2).high))


def test_a_difference_is_paired_by_problem() -> None:
    """Ten problems, every second one solved before and one more after: differences vary less than either side."""
    before = [rollout(group, "20" if group % 2 else "7") for group in range(10)]
    after = [rollout(group, "20" if group % 2 or group == 0 else "7") for group in range(10)]
    change = differences(before, after)["accuracy"]
    assert change == estimate([1.0] + [0.0] * 9)
    assert change.value == pytest.approx(0.1) and change.low == 0.0
    separate = measure(after)["accuracy"].high - measure(before)["accuracy"].low
    assert change.high < separate


def test_parts_are_by_language_and_by_known_steps() -> None:
    rollouts = [
        rollout(0, "20", steps=10),
        rollout(1, "20", steps=9, language="ja"),
        rollout(2, "20", steps=0),
    ]
    found = parts(rollouts)
    assert list(found) == [ALL, "language=en", "language=ja", "steps=9", "steps=10"]
    assert [len(each) for each in found.values()] == [3, 2, 1, 1, 1]


def test_a_cut_keeps_the_first_tokens_and_says_length() -> None:
    whole = Completion([5, 6, 7], [-0.1, -0.2, -0.3], "stop", [1.0, 2.0, 3.0])
    assert cut_at(whole, 3) is whole
    assert cut_at(whole, 2) == Completion([5, 6], [-0.1, -0.2], "length", [1.0, 2.0])


# -- on the embedded model ---------------------------------------------------------------------------------------------

TINY = ModelConfig(
    name="tiny", path="assets/tiny", renderer="qwen3", stop_tokens=["<|im_end|>", "<|endoftext|>"], dtype="float32"
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny():
    """A function (n, max_tokens, temperature, seed) -> what the embedded model samples for 24 test problems."""
    _, renderer = open_renderer(TINY, RendererConfig())
    policies = load_base_and_trained(TINY, renderer, None, "cpu")
    problems = generate("test", 24, 0, "both")
    task = Task(lambda p: [{"role": "user", "content": p.question}], renderer, SingleTurnConfig())

    def sample(n: int, max_tokens: int, temperature: float, seed: int = 0) -> list[Rollout]:
        params = SamplingParams(max_tokens, temperature, renderer.stop_ids, seed)
        return roll_out(policies.sampler("base"), task, problems, n, params)

    return sample, renderer


def completions(rollouts: list[Rollout]) -> list[tuple]:
    return [(r.problem.id, r.completion.tokens, r.completion.stop_reason, r.parsed) for r in rollouts]


def test_a_budget_read_off_is_that_budget_sampled_greedily(tiny) -> None:
    sample, renderer = tiny
    wide = sample(1, 120, 0.0)
    lengths = sorted(rollout.length for rollout in wide)
    assert (
        lengths[0] < lengths[12] < 120
    )  # the budget in the middle cuts some and lets some end, one of them just so
    for budget in (1, 32, lengths[12], 120):
        assert completions(within(wide, budget, renderer)) == completions(sample(1, budget, 0.0))


def test_a_budget_read_off_is_that_budget_sampled(tiny) -> None:
    """Token for token: a token's random number depends on its prompt and place, not on the budget."""
    sample, renderer = tiny
    wide = sample(3, 100, 1.0)
    for budget in (30, 64, 100):
        assert completions(within(wide, budget, renderer)) == completions(sample(3, budget, 1.0))


def test_the_context_is_read_without_the_weights() -> None:
    assert context_of(TINY) == 1024


# -- files -------------------------------------------------------------------------------------------------------------


def result(policy: str, value: float, low: float, high: float, part: str = ALL, budget: int = 64) -> Result:
    names = ("accuracy", "format", "truncated", "tokens", "tokens_per_correct", "thinking_ja_share")
    return Result(policy, budget, part, 7, dict.fromkeys(names, Estimate(value, low, high)))


def test_cells() -> None:
    both = "{} ({})"
    assert cell(result("base", 0.1234, 0.05, 0.3), "accuracy", both) == "0.123 (0.05…0.30)"
    assert cell(result(CHANGE, 0.1, -0.05, 0.3), "accuracy", both) == "+0.100 (-0.05…+0.30)"
    assert cell(result("base", 80, 20, math.inf), "tokens_per_correct", both) == "80.0 (20…∞)"
    assert cell(result("base", math.nan, math.nan, math.nan), "tokens_per_correct", both) == "–"
    assert cell(result("base", 1, 1, 1), "pass@4", both) == "–"


def test_files_are_strict_and_the_same_again(tmp_path: Path) -> None:
    setting = {"base": "tiny", "trained": None, "data": "d", "split": "test", "problems": 7, "completions": 1, "temperature": 0.0, "seed": 0}  # fmt: skip
    results = [
        result("base", 0.5, 0.25, 0.75),
        result("base", 0.5, 0.25, 0.75, part="language=ja"),
        result("base", math.nan, math.nan, math.nan, budget=16),
        result("base", 80, 20, math.inf, budget=128),
    ]
    files = write_files(tmp_path / "a", setting, results, WORDS["en"])
    rows = json.loads(files["numbers"].read_text(), parse_constant=pytest.fail)["results"]
    assert [(row["budget"], row["part"], row["accuracy"]) for row in rows] == [
        (64, "all", [0.5, 0.25, 0.75]),
        (64, "language=ja", [0.5, 0.25, 0.75]),
        (16, "all", [None, None, None]),
        (128, "all", [80, 20, None]),
    ]
    write_files(tmp_path / "b", setting, results, WORDS["en"])
    names = ["budgets-dark.png", "budgets-light.png", "evaluation.json", "evaluation.md"]
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    write_files(tmp_path / "c", setting, results[1:3], WORDS["en"])  # nothing to draw but empty axes
    page = markdown(setting, results)
    assert "| language=ja | 7 | 64 | base | 0.500 (0.25…0.75) |" in page and page.startswith("# tiny\n")
