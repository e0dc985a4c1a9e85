"""`eval_data=[...]`: several evaluation sets in training, in `recipes.evaluate`, in the plan and in the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from recipes.cli.eval_data import as_typed
from rl.loggers.console import metrics_table, plain_lines
from rl.metrics import evaluated_sets
from rl.report.run_page import before_and_after
from rl.storage.jsonl import read_jsonl
from tests.helpers.blueprints import composed
from tests.helpers.pages import Page
from tests.helpers.recipes import ROOT, rl_basic, run_recipe

SETS = ROOT / "tests/data/sets"
TWO = ("eval_data=[word_problems,mgsm_ja]", f"eval_data.mgsm_ja.path={SETS}/mgsm_ja.jsonl")
SMALL = ("batch_size=2", "group_size=2", "eval_problems=4", "preflight=off", "logger=none")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    best = "keep_best=eval/word_problems/reward_correct"
    result = rl_basic(*TWO, *SMALL, best, "max_steps=1", "run_dir=r", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "word_problems: reward_total" in result.stdout and "mgsm_ja: reward_total" in result.stdout
    return folder


def test_each_set_has_its_own_metrics(trained: Path) -> None:
    (row,) = read_jsonl(trained / "r/metrics.jsonl")
    assert "eval/word_problems/reward_correct" in row and "eval/mgsm_ja/tokens/mean" in row
    assert not {"eval/reward_total", "eval/reward_correct"} & set(row)
    lines = read_jsonl(trained / "r/evaluations.jsonl")
    found = [(line["step"], line["data"], line["problems"]) for line in lines]
    assert found == [
        (step, *each) for step in (1, 2) for each in (("word_problems", 4), ("mgsm_ja", 2))
    ]  # mgsm_ja's file has two problems
    assert {r["data"] for r in read_jsonl(trained / "r/samples.jsonl") if r["split"] == "test"} == {"word_problems", "mgsm_ja"}  # fmt: skip


def test_the_run_keeps_what_was_typed_and_what_it_was_measured_on(trained: Path) -> None:
    assert "eval_data=[word_problems,mgsm_ja]" in yaml.safe_load((trained / "r/overrides.yaml").read_text())
    config = yaml.safe_load((trained / "r/config.yaml").read_text())["eval_data"]
    assert config["mgsm_ja"]["path"] == f"{SETS}/mgsm_ja.jsonl" and config["mgsm_ja"]["language"] == "ja"
    assert {"eval_data.word_problems", "eval_data.mgsm_ja"} <= set(json.loads((trained / "r/data.json").read_text()))  # fmt: skip


def test_the_report_has_a_table_for_each_set(trained: Path) -> None:
    page = Page((trained / "r/report.html").read_text(encoding="utf-8"))
    assert page.tags["h3"] == 2
    assert "4 test problems" in page.text and "2 test problems" in page.text


def test_evaluate_measures_the_sets_of_the_run(trained: Path) -> None:
    result = run_recipe(
        "evaluate", "run=r", "problems=2", "temperature=0", "budgets=[8]", "out=e", cwd=trained
    )
    assert result.returncode == 0, result.stderr
    for name, problems in {"word_problems": 2, "mgsm_ja": 2}.items():
        document = json.loads((trained / "e" / name / "evaluation.json").read_text())
        assert (document["data"], document["problems"]) == (name, problems)
    assert not (trained / "e/evaluation.json").exists()


def test_a_set_that_changed_is_refused_on_resume(trained: Path) -> None:
    other = trained / "other.jsonl"
    other.write_text((SETS / "mgsm_ja.jsonl").read_text(encoding="utf-8").replace("16個", "17個"), encoding="utf-8")  # fmt: skip
    result = rl_basic(
        TWO[0], f"eval_data.mgsm_ja.path={other}", *SMALL, "max_steps=2", "run_dir=r",
        "keep_best=eval/word_problems/reward_correct", cwd=trained,
    )  # fmt: skip
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "eval_data.mgsm_ja is not what this run was started with" in result.stderr


def test_the_plan_counts_every_set(tmp_path: Path) -> None:
    result = rl_basic("eval_data=[math_500,aime]", "plan=true", "max_steps=20", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "math_500 (500 problems), aime (30 problems)" in result.stdout
    # Before steps 1 and 11, and after the last: 64 of 500 and all 30 problems, 64 tokens each.
    assert "3 x 94 rollouts x 64 tokens = 18,048" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eval_data=[math_50]"], "no such data set: math_50; did you mean math_500?"),
        (["eval_data=mgsm-ja"], "did you mean mgsm_ja?"),
        (["eval_data=[xyzzy]"], "math_500, math_sanity, mgsm_ja,"),
        (["eval_data=[[math_500]]"], "no such data set"),
        (["-m", "eval_data=[aime],[amc]"], "all jobs of a sweep evaluate on the same sets"),
        (["eval_data=[aime]", "eval_data.aime.pth=x"], "did you mean eval_data.aime.path?"),
        (["eval_data=[aime]", "eval_data.aime.path=no.jsonl"], "no such file or folder"),
        (["eval_data=[jsonl]"], "names no data to read"),
    ],
)
def test_a_wrong_set_is_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = rl_basic(*arguments, "preflight=off", cwd=tmp_path)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1, result.stderr
    assert words in result.stderr


def test_a_train_row_that_is_in_an_evaluation_set_is_a_leak(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (SETS / "aime.jsonl").read_text().splitlines()]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"question": r["problem"].upper(), "answer": "#### 1"}) + "\n" for r in rows[:1]))  # fmt: skip
    result = rl_basic(
        "data=jsonl", "data.path=train.jsonl", "eval_data=[aime]", f"eval_data.aime.path={SETS}/aime.jsonl",
        cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "1 of 1 train rows are in a test split too (first: train-0 equals aime test-0)" in result.stderr


def on(data: str, *overrides: str) -> tuple[str, float]:
    """How a run reads the answers to a set's questions."""
    blueprint = composed(f"+data@eval_data.{data}={data}", *overrides)
    rewards = blueprint.on(blueprint.eval_data[data]).rewards
    return rewards.answer_region, rewards.tolerance


def test_each_set_reads_answers_in_its_own_way_unless_typed() -> None:
    assert on("gsm8k") == ("anywhere", 0)
    assert on("math_500", "data=gsm8k") == ("after_thinking", 0)
    assert on("minerva_math", "data=gsm8k") == ("after_thinking", 1e-5)
    assert on("math_500", "rewards.answer_region=anywhere") == ("anywhere", 0)
    assert on("minerva_math", "rewards.tolerance=0.01") == ("after_thinking", 0.01)


def test_a_length_target_is_stated_in_every_sets_prompts() -> None:
    blueprint = composed("+data@eval_data.mgsm_ja=mgsm_ja", "length=l1_exact")
    assert blueprint.eval_data["mgsm_ja"].instruction is not None


def test_overrides_read_as_typed() -> None:
    assert as_typed(["a=1", "+data@eval_data.x=x", "b=2", "+data@eval_data.y=y"]) == ["a=1", "b=2", "eval_data=[x,y]"]  # fmt: skip
    assert as_typed(["+data@eval_data.x=y"]) == ["+data@eval_data.x=y"]


def test_the_terminal_has_a_line_and_a_column_for_each_set() -> None:
    metrics = {"eval/aime/reward_total": 0.25, "eval/amc/reward_total": 0.5, "reward_total": 1.0}
    assert evaluated_sets(metrics) == {"aime": "eval/aime/", "amc": "eval/amc/"}
    assert [line.split()[:3] for line in plain_lines(1, 9, metrics)] == [
        ["aime", "reward", "0.250"], ["amc", "reward", "0.500"], ["step", "1/9", "reward"],
    ]  # fmt: skip
    table = metrics_table([{"step": 1, **metrics}])
    assert [column.header for column in table.columns] == ["", "last", "aime", "amc", "first → last"]
    assert evaluated_sets({"eval/reward_total": 0.0}) == {"": "eval/"}


def test_samples_of_two_sets_are_not_paired() -> None:
    rows = [
        {"step": step, "id": "test-0", "data": data, "question": data} for step in (1, 2) for data in "ab"
    ]
    pairs, same = before_and_after(rows)
    assert same and [(early["data"], late["data"]) for early, late in pairs] == [("a", "a"), ("b", "b")]
