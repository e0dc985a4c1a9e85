"""The generated word problems: right, different, and never shared between the splits."""

from __future__ import annotations

import re
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.grading.extract import boxed_answer
from rewards.thinking_language import script_share
from rl.errors import UserError
from rl.tiny.word_kinds import KINDS
from rl.tiny.word_problems import LANGUAGES, LARGEST, WordProblem, draw, generate, solution

BY_NAME = {kind.name: kind for kind in KINDS}
EQUATION = re.compile(r"(\d+)([-+×÷])(\d+)=(\d+)")
SAMPLE = 400  # problems: enough for every kind

any_problem = st.builds(
    lambda split, language, seed: draw(split, language, Random(seed)),
    st.sampled_from(["train", "test"]),
    st.sampled_from(LANGUAGES),
    st.integers(0, 10**9),
)


def test_one_problem_of_each_language_by_hand():
    en = WordProblem(BY_NAME["bags"], (3, 4, 5), "en", name=0, item=0)
    assert en.question == (
        "Tom has 3 bags with 4 apples in each, and 5 more apples on the table. How many apples does Tom have in all?"
    )
    assert en.steps("en") == [("in bags", "3×4=12"), ("in all", "12+5=17")]
    problem = en.problem()
    assert (problem.answer, problem.language, problem.source, problem.steps) == (
        "17",
        "en",
        "word_problems",
        2,
    )

    ja = WordProblem(BY_NAME["eggs"], (26, 5, 7), "ja", name=2, item=0)
    assert ja.question == (
        "翔は卵を26個集めましたが、5個われました。残りを7個ずつ箱に入れます。箱はいくつできますか？"
    )
    assert ja.steps("ja") == [("残りは", "26-5=21"), ("箱は", "21÷7=3")]
    assert ja.problem().answer == "3"


def test_solutions_by_hand():
    one = WordProblem(BY_NAME["shopping"], (2, 3, 4, 5), "ja", name=0, item=0)
    assert solution(one, "short_ja", Random(0)) == (
        "<think>\nえんぴつは2×3=6、色紙は4×5=20、全部で6+20=26。\n</think>\n\n答えは\\boxed{26}です。"
    )
    assert solution(one, "short_en", Random(0)) == (
        "<think>\nPens 2×3=6, books 4×5=20, in all 6+20=26.\n</think>\n\n答えは\\boxed{26}です。"
    )


def test_kinds_and_steps():
    assert len(KINDS) >= 10
    assert {len(kind.steps) for kind in KINDS} == {2, 3, 4}
    drawn = {problem.id.split("-")[0] for problem in generate("train", SAMPLE, 0, "both")}
    assert drawn == set(BY_NAME)


@given(any_problem, st.sampled_from(["long", "short_en", "short_ja"]), st.integers(0, 99))
def test_every_solution_is_right(one, style, seed):
    text = solution(one, style, Random(seed))
    thinking, _, said = text.partition("</think>")
    equations = EQUATION.findall(thinking)
    assert len(equations) >= len(one.kind.steps)
    for left, sign, right, result in equations:
        a, b = Fraction(left), Fraction(right)
        assert {"+": a + b, "-": a - b, "×": a * b, "÷": a / b}[sign] == int(result)
        assert 1 <= int(result) <= LARGEST
    assert boxed_answer(said).answer == one.problem().answer == equations[-1][-1]
    assert script_share(thinking.removeprefix("<think>"), "ja") == (1.0 if style == "short_ja" else 0.0)
    assert ("答え" in said) == (one.language == "ja")


@given(any_problem)
def test_a_question_tells_all_its_numbers_and_nothing_unfilled(one):
    assert set(map(str, one.numbers)) <= set(re.findall(r"\d+", one.question))
    assert "{" not in one.question
    share = script_share(one.question, "ja")
    assert share == 0 if one.language == "en" else share > 0.8


@pytest.mark.parametrize("language", ["en", "ja", "both"])
def test_generate_is_a_pure_function_and_larger_counts_extend_smaller_ones(language):
    many = generate("train", 300, 7, language)
    assert many == generate("train", 300, 7, language)
    assert many[:100] == generate("train", 100, 7, language)
    assert many != generate("train", 300, 8, language)
    assert len({p.id for p in many}) == len({p.question for p in many}) == 300
    expected = {"both": ["en", "ja"] * 3}.get(language, [language] * 6)
    assert [p.language for p in many[:6]] == expected


def test_no_sum_is_in_both_splits_whatever_the_seed_and_language():
    def sums(split):
        ids = [p.id for seed in range(3) for lang in LANGUAGES for p in generate(split, SAMPLE, seed, lang)]
        return {
            (kind, numbers)
            for kind, numbers in (re.fullmatch(r"(\w+)-\w\w-(.*)-\d+-\d+", i).groups() for i in ids)
        }

    train, test = sums("train"), sums("test")
    assert len(train) > 500 and len(test) > 200
    assert not train & test


def test_more_problems_than_there_are_is_one_clear_line():
    with pytest.raises(
        UserError, match=r"^data\.test_size=99999: .*type data\.test_size=\d+ or less$"
    ) as caught:
        generate("test", 99_999, 0, "en")
    assert "\n" not in str(caught.value)
