"""The report of a run, read as a reader's browser would: one page, nothing fetched, everything escaped."""

from __future__ import annotations

import csv
import json
import math
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.collections import LineCollection
from matplotlib.image import imread

from rl.errors import UserError
from rl.loggers.background import Loggers
from rl.loggers.base import RunInfo
from rl.report.plots import draw_curves, save_plots
from rl.report.run_page import before_and_after, write_report
from rl.report.style import style
from rl.report.summary import MAIN_METRICS
from rl.report.words import WORDS
from rl.storage.jsonl import read_jsonl
from tests.helpers.pages import Page, evaluation
from tests.helpers.recipes import ROOT, run_afresh, run_recipe

STEPS = 12


def metrics(step: int) -> dict[str, float]:
    good = step / STEPS
    return {
        "reward_total": good,
        "reward_correct": good,
        "reward_format": good,
        "frac_all_good": good,
        "by_group/frac_all_good": good / 2,
        "by_group/frac_mixed": 0.25,
        "by_group/frac_all_bad": 0.75 - good / 2,
        "entropy": 1 - good if step != 3 else float("nan"),
        "learning_rate": 1e-4,
        "frac_truncated": 1 - good,
        "tokens/mean": 60 - step,
        "tokens/p50": 58 - step,
        "tokens/p90": 64 - step,
        "grade/correct": good,
        "grade/truncated": 1 - good,
        "grade/wrong": 0.0,
        "budget": 128 - 4 * step,
        **({"eval/reward_correct": good} if step % 4 == 1 else {}),
    }


def sample(step: int, problem: str, **changed: Any) -> dict[str, Any]:
    return {
        "step": step, "split": "test", "id": problem, "language": "en", "question": f"Question {problem}?",
        "thinking": "Some thinking.", "text": r"It is \boxed{\frac{1}{2}}.", "raw": "",
        "tokens": 29, "ended": "stop",
        "gold": "1/2", "extracted": "1/2", "correct": True, "format": True, "reason": "correct",
        "rewards": {"correct": 1.0}, "reward": 1.0,
    } | changed  # fmt: skip


CUT = {
    "thinking": "<script>alert('思考')</script>", "text": "", "tokens": 64, "ended": "length", "correct": False,
    "reason": "truncated", "reward": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    loggers = Loggers({})
    loggers.open(RunInfo(folder, "tiny", {}, STEPS, 0, "id"))
    for step in range(1, STEPS + 1):
        loggers.log(step, metrics(step))
        early = CUT if step == 1 else {}
        loggers.samples(step, [sample(step, "fixed", **early), sample(step, f"only-{step}")])
    loggers.evaluation(1, evaluation(0.0, 0.0, 0.107, [math.nan] * 3))
    loggers.evaluation(5, evaluation(0.5, 0.375, 0.625, [90.0, 70.0, math.inf]))
    loggers.evaluation(STEPS + 1, evaluation(0.75, 0.625, 0.875, [40.0, 35.5, math.inf]))
    loggers.close(0)
    (folder / "status.json").write_text(json.dumps({"state": "finished", "step": STEPS}))
    (folder / "overrides.yaml").write_text("- loss=grpo\n")
    (folder / "config.yaml").write_text("data:\n  suffix: '回答は\\boxed{answer} & <b>'\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def html(run_dir: Path) -> str:
    return write_report(run_dir).read_text(encoding="utf-8")


def test_the_page_stands_alone(html: str) -> None:
    page = Page(html)
    assert page.tags["img"] == page.tags["source"] == 3  # curves, groups, reasons: light and dark
    assert page.tags["script"] == page.tags["link"] - 1 == 0
    assert all(address.startswith("data:") for address in page.addresses)
    assert "url(" not in html and "@import" not in html


def test_samples_are_escaped_folded_and_marked(html: str) -> None:
    page = Page(html)
    assert page.folded_text.count("<script>alert('思考')</script>") == 2  # the fold's title and its content
    assert page.text.count("<script>") == 2
    assert page.marks == [
        ("cut", "✂ cut after 64 tokens"),  # where the thinking breaks off
        ("cut", "✂ cut after 64 tokens"),  # in place of the answer
        ("box", r"\boxed{\frac{1}{2}}"),
    ]
    assert "Question fixed?" in page.text and "Question only" not in page.text
    assert r"回答は\boxed{answer} & <b>" in page.folded_text and "- loss=grpo" in page.text


def test_the_numbers_are_those_of_the_record(run_dir: Path, html: str) -> None:
    # reward_total: 1/12 at the first step; steps 8..12 average 10/12.
    assert "reward_totalmean weighted reward0.0830.833\n" in Page(html).text
    assert "accuracyshare of correct answers0.000 [0.000, 0.107]0.750 [0.625, 0.875]\n" in Page(html).text
    assert "tokens_per_correcttokens per correct answer–40.0 [35.5, ∞]\n" in Page(html).text
    assert "pass@4any of the answers is correct0.000 [0.000, 0.107]0.750 [0.625, 0.875]\n" in Page(html).text
    assert "before trainingafter 12 steps" in Page(html).text
    with (run_dir / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
    assert [float(row["reward_total"]) for row in rows] == [
        metrics(s)["reward_total"] for s in range(1, STEPS + 1)
    ]
    assert rows[2]["entropy"] == "" and rows[1]["eval/reward_correct"] == ""


def test_japanese_has_a_word_for_everything_and_a_glyph_for_every_word(run_dir: Path) -> None:
    missing = set(WORDS["en"]) - set(WORDS["ja"])
    assert not missing
    assert set(MAIN_METRICS) <= set(WORDS["en"])
    before = {key: value for key, value in matplotlib.rcParams.items() if key != "backend"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of a glyph that its fonts lack
        page = write_report(run_dir, "ja").read_text(encoding="utf-8")
    assert '<html lang="ja">' in page and "学習曲線" in page and "打ち切り" in page
    assert {key: matplotlib.rcParams[key] for key in before} == before


def test_pictures_are_dark_on_dark_and_light_on_light(run_dir: Path, html: str) -> None:
    assert sorted(path.name for path in (run_dir / "report").iterdir()) == sorted(
        f"{name}-{theme}.png" for name in ("curves", "groups", "reasons") for theme in ("light", "dark")
    )
    for path in (run_dir / "report").iterdir():
        corner = imread(path)[0, 0, :3].mean()
        assert corner > 0.9 if path.stem.endswith("light") else corner < 0.1
        assert path.stat().st_size < 100_000


def test_a_sample_without_a_reward_does_not_spoil_the_page(tmp_path: Path) -> None:
    """What a reward of NaN leaves in samples.jsonl: null."""
    loggers = Loggers({})
    loggers.open(RunInfo(tmp_path, "tiny", {}, 1, 0, "id"))
    for step in (1, 2):
        loggers.log(step, metrics(step) | {"reward_total": math.nan})
        loggers.samples(step, [sample(step, "fixed", reward=math.nan)])
    loggers.close(0)
    assert "reward –" in write_report(tmp_path).read_text(encoding="utf-8")


def test_a_run_of_one_step_without_groups_still_has_curves(tmp_path: Path) -> None:
    rows = [{"step": 1, "reward_total": 0.5, "reward_correct": None}]
    assert list(save_plots(rows, [], tmp_path, WORDS["en"])) == ["curves"]


def test_the_curves_show_each_evaluation_with_its_interval_and_the_budget_in_force(run_dir: Path) -> None:
    rows, evaluations = (read_jsonl(run_dir / f"{name}.jsonl") for name in ("metrics", "evaluations"))
    with style("light") as colors:
        figure = draw_curves(rows, evaluations, colors, WORDS["en"])
    axes = {each.get_title(loc="left").strip(): each for each in figure.axes}
    (bars,) = [c for c in axes["reward_correct"].collections if isinstance(c, LineCollection)]
    assert [segment.tolist() for segment in bars.get_segments()] == [
        [[1, 0], [1, 0.107]], [[5, 0.375], [5, 0.625]], [[13, 0.625], [13, 0.875]],
    ]  # fmt: skip
    budget = next(line for line in axes["tokens/mean"].lines if line.get_label() == "token budget")
    assert list(budget.get_ydata()) == [128 - 4 * step for step in range(1, STEPS + 1)]
    # Without an interval in evaluations.jsonl the logged values are shown.
    assert not [c for c in axes["frac_all_good"].collections if isinstance(c, LineCollection)]


PREFLIGHT = {
    "budget": 64, "problems": 16, "completions": 8, "warning": "a budget of 64 tokens: 83 % cut",
    "budgets": [
        {"budget": budget, **{name: [value, 0.0, 1.0] for name in ("truncated", "format", "accuracy", "reward", "signal")}, "tokens": [60, 50, 64]}
        for budget, value in ((32, 0.875), (64, 0.25))
    ],
}  # fmt: skip


def test_a_preflight_is_shown_with_its_warning(run_dir: Path) -> None:
    (run_dir / "preflight.json").write_text(json.dumps(PREFLIGHT))
    html = write_report(run_dir).read_text(encoding="utf-8")
    (run_dir / "preflight.json").unlink()
    text = Page(html).text
    assert "32" + "0.875[0.000, 1.000]" * 5 + "60.0[50.0, 64.0]\n" in text
    assert "⚠ a budget of 64 tokens: 83 % cut" in text
    assert html.count('<tr class="own">') == 1


def test_before_and_after_prefers_one_problem_far_apart() -> None:
    near, far = [sample(2, "near"), sample(5, "near")], [sample(1, "far"), sample(4, "far"), sample(9, "far")]
    pairs, same_problem = before_and_after([far[0], near[0], far[1], near[1], far[2]])
    assert same_problem
    assert pairs == [(far[0], far[2]), (near[0], near[1])]


def test_before_and_after_without_a_common_problem_takes_the_ends() -> None:
    rows = [sample(1, "a"), sample(1, "b"), sample(2, "c"), sample(3, "d")]
    assert before_and_after(rows) == ([(rows[0], rows[3])], False)
    assert before_and_after(rows[:2]) == ([], False)
    assert before_and_after([]) == ([], False)


def test_what_is_no_run_is_answered_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no metrics\.jsonl: give a run directory"):
        write_report(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has no finished step yet"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("status.json", b"garbage", "not a valid status.json"),
        ("status.json", b'["state"]', "not a valid status.json"),
        ("status.json", b"{}", "not a valid status.json"),
        ("preflight.json", b'{"budgets": 3}', "not a valid preflight.json"),
        ("samples.jsonl", b'{"step": 1, "question": "q"}\n', "is not a sample"),
        ("config.yaml", "名前".encode("utf-16"), "is not UTF-8"),
        ("report", b"", "is in the way of the report"),
    ],
)
def test_a_broken_file_of_the_run_is_one_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward_total": 0.5}\n')
    (tmp_path / name).write_bytes(content)
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=rf"^[^\n]*{name}[^\n]* {said}[^\n]*$"):
        write_report(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_the_recipe_says_where_the_page_is(run_dir: Path) -> None:
    done = run_afresh("report", f"run={run_dir}", "language=ja", cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, f"report: {run_dir / 'report.html'}\n")
    assert 'lang="ja"' in (run_dir / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run=no/such/run"], f"error: run={ROOT / 'no/such/run'} has no metrics.jsonl"),
        (["run=.", "language=jp"], "error: language=jp: expected one of en, ja; did you mean language=ja?"),
        ([], "error: run: "),
    ],
)
def test_the_recipe_answers_bad_input_in_one_line(arguments: list[str], said: str) -> None:
    done = run_recipe("report", *arguments, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
