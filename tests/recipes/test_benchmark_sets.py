"""The shipped data sets for evaluation: small files with the published columns, each answer graded as its set asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from recipes.cli.compose import CONF, resolved
from rewards.grading import Grader
from rl.data.config import DataConfig
from rl.data.problems import load, load_test, peek
from rl.schema import build
from tests.helpers.blueprints import composed
from tests.helpers.recipes import ROOT, rl_basic, run_recipe

SETS = ROOT / "tests/data/sets"
EVALUATED = ("math_500", "aime", "amc", "minerva_math", "olympiad_bench", "mgsm_ja")


def config(name: str, **changes: Any) -> DataConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        tree = resolved(compose("render", [f"data={name}"]))["data"]
    return build(DataConfig, {**tree, "path": str(SETS / f"{name}.jsonl"), **changes})


# Hand-written: (set, question number, answer, whether it is right).
GRADED = [
    ("math_500", 0, "(3, \\pi/2)", True),
    ("math_500", 0, "(\\pi/2, 3)", False),
    ("math_500", 1, "C", True),  # a multiple-choice gold: the letter, with or without parentheses
    ("math_500", 1, "(C)", True),
    ("math_500", 1, "B", False),
    ("math_500", 1, "8", False),
    ("math_500", 2, "(x+1)^2", True),
    ("math_500", 2, "x^2+1", False),
    ("aime", 0, "343", True),
    ("aime", 1, "25", True),  # the gold 025 is an integer
    ("aime", 1, "025", True),
    ("aime", 1, "25.5", False),
    ("amc", 0, "27", True),  # the column holds 27.0
    ("amc", 0, "B", False),  # the copy has no choices
    ("minerva_math", 0, "4.5 \\times 10^{33}", True),
    ("minerva_math", 0, "4.6 \\times 10^{33}", False),
    ("minerva_math", 2, "1.43751", True),  # 0.7e-5 of the gold away
    ("minerva_math", 2, "1.4376", False),  # 7e-5 away
    ("olympiad_bench", 0, "2", True),
    ("olympiad_bench", 0, "2.0000001", False),
    ("olympiad_bench", 1, "19, 1, 8", True),  # several answers, in any order
    ("olympiad_bench", 1, "1, 8", False),
    ("olympiad_bench", 2, "2 \\cdot 2^{1008}", True),
    ("mgsm_ja", 0, "18ドル", True),
    ("mgsm_ja", 0, "２０", False),
]


def test_each_answer_is_graded_as_its_set_asks() -> None:
    tests = {name: load_test(config(name), 0) for name in EVALUATED}
    with Grader(workers=1) as grader:
        for name, number, answer, right in GRADED:
            own = grader.reading("after_thinking", tests[name].config.tolerance)
            ((reason, _),) = own.compare([(tests[name].test[number].answer, answer)])
            assert (reason == "correct") is right, (name, number, answer, reason)


@pytest.mark.parametrize("name", EVALUATED)
def test_a_set_for_evaluation_has_only_test_problems(name: str) -> None:
    read = load(config(name), 0)
    assert not read.train and len(read.test) == read.report.splits["test"].read
    problem = read.test[0]
    assert problem.language == ("ja" if name == "mgsm_ja" else "en") and problem.source == name
    (message,) = read.config.messages(problem)
    assert message["content"].startswith(problem.question) and "\\boxed{answer}" in message["content"]
    assert peek(config(name)).problem is not None


def test_rows_of_a_training_set_without_an_answer_are_rejected() -> None:
    read = load(config("deepscaler"), 0)
    assert [problem.answer for problem in read.train] == ["\\frac{5}{6}", "9"]
    assert read.report.splits["train"].rejected == {"unreadable_gold": 1}


@pytest.mark.parametrize("arguments", [(), ("plan=true",)])
def test_training_on_a_set_for_evaluation_is_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = rl_basic("data=math_500", *arguments, cwd=tmp_path)
    assert result.returncode == 2 and len(result.stderr.strip().splitlines()) == 1
    assert "data=math_500: has no train rows" in result.stderr and "eval_data=[math_500]" in result.stderr


def test_a_prompt_of_a_set_for_evaluation_is_shown(tmp_path: Path) -> None:
    result = run_recipe("render", "data=mgsm_ja", f"data.path={SETS}/mgsm_ja.jsonl", cwd=tmp_path)
    assert result.returncode == 0 and "鶏" in result.stdout


def test_the_run_grades_with_the_tolerance_of_its_data() -> None:
    assert composed("data.tolerance=0.01").rewards.tolerance == 0.01
    assert composed("rewards=think_answer", "data.tolerance=0.01").rewards.tolerance == 0.01
    assert composed("data.tolerance=0.01", "rewards.tolerance=0").rewards.tolerance == 0


@pytest.mark.parametrize("key", ["data.tolerance", "rewards.tolerance"])
@pytest.mark.parametrize("value", ["-1", "1", ".nan"])
def test_a_tolerance_that_cannot_be(key: str, value: str, tmp_path: Path) -> None:
    result = rl_basic(f"{key}={value}", "plan=true", cwd=tmp_path)
    assert result.returncode == 2 and "tolerance=" in result.stderr and len(result.stderr.splitlines()) == 1
