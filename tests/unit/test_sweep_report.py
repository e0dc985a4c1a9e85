"""The report of a sweep, from folders as a multirun leaves them: numbers by hand, the page as a browser reads it."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from rl.errors import UserError
from rl.report.style import style
from rl.report.sweep import Job, is_sweep, lines, natural, read_job, read_sweep, varied
from rl.report.sweep_page import write_sweep_report
from rl.report.sweep_plots import draw_sweep
from rl.report.words import WORDS
from rl.storage.jsonl import write_row
from tests.helpers.pages import Page, evaluation

NAN = math.nan


def job(
    folder: Path, name: str, state: str = "finished", evaluations: dict[int, Any] | None = None, steps: int = 6, reason: str = ""
) -> Path:  # fmt: skip
    """A job's folder; its name is its overrides. Step s: reward_correct s/10, frac_truncated 1 - s/10."""
    path = folder / name
    path.mkdir(parents=True)
    overrides = name.split(",")
    settings = dict(override.split("=") for override in overrides)
    (path / "status.json").write_text(json.dumps({"state": state, "step": steps, "reason": reason}))
    if steps:
        (path / "overrides.yaml").write_text(json.dumps([*overrides, "max_steps=6"]))
        (path / "config.yaml").write_text(f"max_tokens: {settings.get('max_tokens', 64)}\n")
        (path / "report.html").write_text("")
    with (path / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            cost = None if step == 1 else 600.0 / step
            write_row(file, {"step": step, "reward_correct": step / 10, "frac_truncated": 1 - step / 10, "tokens_per_correct": cost})  # fmt: skip
    with (path / "evaluations.jsonl").open("w") as file:
        for step, row in (evaluations or {}).items():
            write_row(file, {"step": step, **row})
    return path


BEFORE = evaluation(0.125, 0.0, 0.25, [500.0, 250.0, math.inf])
AFTER = evaluation(0.75, 0.5, 0.875, [40.0, 36.0, 60.0])


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    for loss in ("grpo", "dr_grpo"):
        for budget in (32, 64, 128):
            job(folder, f"loss={loss},max_tokens={budget}", evaluations={1: BEFORE, 4: BEFORE, 7: AFTER})
    job(
        folder,
        "loss=grpo,max_tokens=0",
        "failed",
        steps=0,
        reason="max_tokens=0: expected <a positive integer>",
    )
    job(folder, "loss=grpo,max_tokens=256", "interrupted", evaluations={1: BEFORE})
    return folder


@pytest.fixture(scope="module")
def html(sweep: Path) -> str:
    return write_sweep_report(sweep).read_text(encoding="utf-8")


def test_before_and_after_are_the_first_and_the_last_evaluation(tmp_path: Path) -> None:
    tested = read_job(job(tmp_path, "max_tokens=64", evaluations={1: BEFORE, 7: AFTER}))
    assert tested.before() == {"accuracy": (0.125, 0, 0.25), "truncated": (0.875, 0.75, 1), "tokens_per_correct": (500, 250, math.inf)}  # fmt: skip
    assert tested.after()["accuracy"] == (0.75, 0.5, 0.875)
    assert tested.budget == 64 and tested.settings == {"max_tokens": "64", "max_steps": "6"}


@pytest.mark.parametrize("evaluations", [{}, {1: BEFORE}, {4: BEFORE, 7: AFTER}])
def test_without_both_evaluations_the_training_steps_stand_in_without_intervals(
    tmp_path: Path, evaluations: dict[int, Any]
) -> None:
    untested = read_job(job(tmp_path, "max_tokens=64", evaluations=evaluations))
    before, after = untested.before(), untested.after()
    assert {name: e.value for name, e in before.items()} == {
        "accuracy": 0.1,
        "truncated": 0.9,
    }  # none correct: no cost
    # Steps 2..6: 0.2..0.6 average 0.4; 600 * (1/2 + 1/3 + 1/4 + 1/5 + 1/6) / 5 = 174.
    assert {name: pytest.approx(e.value) for name, e in after.items()} == {"accuracy": 0.4, "truncated": 0.6, "tokens_per_correct": 174}  # fmt: skip
    assert all(math.isnan(e.low) and math.isnan(e.high) for e in (*before.values(), *after.values()))


def jobs_named(folder: Path, *names: str) -> list[Job]:
    return [read_job(job(folder, name)) for name in names]


def test_one_line_for_each_combination_of_what_varies_beside_the_budget(tmp_path: Path) -> None:
    names = [f"loss={loss},max_tokens={n}" for n in (128, 32) for loss in ("grpo", "dr_grpo")]
    axis, found = lines(jobs_named(tmp_path, *names))
    assert axis == "max_tokens"
    assert {label: [x for x, _ in line] for label, line in found.items()} == {
        "loss=grpo": [32, 128], "loss=dr_grpo": [32, 128],
    }  # fmt: skip


def test_with_one_budget_the_first_swept_number_is_the_axis(tmp_path: Path) -> None:
    axis, found = lines(
        jobs_named(tmp_path, "learning_rate=0.001,w=0.25", "learning_rate=0.0001,w=0.123456789")
    )
    assert axis == "learning_rate"
    assert {label: [x for x, _ in line] for label, line in found.items()} == {
        "w=0.25": [1e-3],
        "w=0.123": [1e-4],
    }


def test_losses_alone_stand_side_by_side_at_their_budget(tmp_path: Path) -> None:
    jobs = jobs_named(tmp_path, "loss=grpo", "loss=dr_grpo")
    assert varied(jobs) == ["loss"]
    axis, found = lines(jobs)
    assert (axis, list(found)) == ("max_tokens", ["loss=grpo", "loss=dr_grpo"])


@given(st.lists(st.integers(0, 10**6), min_size=2))
def test_names_are_ordered_by_the_size_of_their_numbers(numbers: list[int]) -> None:
    names = [f"loss=grpo,max_tokens={n}" for n in numbers]
    assert sorted(names, key=natural) == [f"loss=grpo,max_tokens={n}" for n in sorted(numbers)]


def test_the_picture_shows_the_finished_jobs_before_and_after(sweep: Path) -> None:
    with style("light") as colors:
        figure = draw_sweep(read_sweep(sweep), colors, WORDS["en"])
    assert figure is not None
    accuracy = figure.axes[0]
    assert accuracy.get_title(loc="left").strip() == "accuracy"
    assert [tick.get_text() for tick in accuracy.get_xticklabels()] == [
        "32",
        "64",
        "128",
    ]  # not the interrupted 256
    assert [list(line.get_ydata()) for line in accuracy.lines] == [[0.125] * 3, [0.75] * 3] * 2
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in accuracy.lines}
    assert len(looks) == 4 and len({look[1:] for look in looks}) == 4  # told apart without color too
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "loss=dr_grpo", "loss=grpo", "before training", "after training",
    ]  # fmt: skip


def test_a_search_over_two_numbers_is_a_cloud(tmp_path: Path) -> None:
    jobs = jobs_named(tmp_path, *(f"learning_rate={n / 1e5},w={n / 7:.3f}" for n in range(1, 13)))
    with style("dark") as colors:
        figure = draw_sweep(jobs, colors, WORDS["en"])
    assert figure is not None and len(figure.axes[0].lines) == 2
    assert all(line.get_linestyle() == "None" for line in figure.axes[0].lines)


def test_a_sweep_without_a_finished_job_has_a_table_only(tmp_path: Path) -> None:
    job(tmp_path, "max_tokens=64", "failed", steps=2, reason="ValueError: boom")
    page = Page(write_sweep_report(tmp_path).read_text(encoding="utf-8"))
    assert page.tags["img"] == 0 and "failed: ValueError: boom" in page.text


def test_a_sweep_in_which_nothing_was_correct_says_so(tmp_path: Path) -> None:
    nothing = evaluation(0.0, 0.0, 0.1, [NAN, NAN, NAN])
    job(tmp_path, "max_tokens=16", evaluations={1: nothing, 7: nothing})
    with style("light") as colors:
        figure = draw_sweep(read_sweep(tmp_path), colors, WORDS["en"])
    assert figure is not None
    assert "nothing was correct" in [text.get_text() for text in figure.axes[2].texts]


def test_the_page_stands_alone_and_links_to_the_jobs(sweep: Path, html: str) -> None:
    page = Page(html)
    links = [address for address in page.addresses if not address.startswith("data:")]
    # Sorted by name, numbers by size; the failed job has no page.
    assert links == [
        f"loss%3D{loss}%2Cmax_tokens%3D{budget}/report.html"
        for loss, budgets in (("dr_grpo", (32, 64, 128)), ("grpo", (32, 64, 128, 256)))
        for budget in budgets
    ]
    assert page.tags["script"] == 0 and "url(" not in html and "@import" not in html and "http" not in html
    assert "6 of 8 jobs finished" in page.text


def test_the_table_says_how_each_job_ended(html: str) -> None:
    text = re.sub(r"\s+", " ", Page(html).text)
    assert "loss=grpo,max_tokens=0failed: max_tokens=0: expected <a positive integer>0––" in text
    assert "loss=grpo,max_tokens=64finished60.125[0.000, 0.250]0.750[0.500, 0.875]" in text
    assert "500.0[250.0, ∞]40.0[36.0, 60.0]" in text
    assert "loss=grpo,max_tokens=256interrupted6––––––" in text  # neither before nor after training


def test_the_csv_holds_the_same_numbers(sweep: Path, html: str) -> None:
    with (sweep / "sweep.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["job"]: row for row in csv.DictReader(file)}
    assert len(rows) == 8
    row = rows["loss=dr_grpo,max_tokens=32"]
    assert (row["loss"], row["max_tokens"], row["measured_on"]) == ("dr_grpo", "32", "test")
    assert (row["accuracy_before"], row["accuracy_after_low"], row["tokens_per_correct_before_high"]) == ("0.125", "0.5", "")  # fmt: skip
    assert rows["loss=grpo,max_tokens=0"]["reason"] == "max_tokens=0: expected <a positive integer>"


def test_japanese_has_a_glyph_for_every_word(sweep: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of a glyph that its fonts lack
        html = write_sweep_report(sweep, "ja").read_text(encoding="utf-8")
    assert '<html lang="ja">' in html and "学習前と学習後の比較" in html


def test_pictures_are_dark_on_dark_and_small_enough_for_a_repository(sweep: Path, html: str) -> None:
    assert sorted(path.name for path in (sweep / "report").iterdir()) == ["sweep-dark.png", "sweep-light.png"]
    for path in (sweep / "report").iterdir():
        corner = imread(path)[0, 0, :3].mean()
        assert corner > 0.9 if path.stem.endswith("light") else corner < 0.1
        assert path.stat().st_size < 150_000


def test_what_is_no_sweep(tmp_path: Path) -> None:
    assert not is_sweep(tmp_path)
    with pytest.raises(UserError, match="holds no run"):
        write_sweep_report(tmp_path)
    assert is_sweep(job(tmp_path, "max_tokens=64").parent)


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium on the PATH")
def test_a_browser_reads_it_without_a_complaint(sweep: Path, html: str, tmp_path: Path) -> None:
    command = [
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path}", "--dump-dom", (sweep / "report.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "</html>" in done.stdout
    assert "CONSOLE" not in done.stderr
