"""Jobs that differ only in their seed are one setting: intervals by hand, the ranking, the page and its picture."""

from __future__ import annotations

import csv
import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.evaluation.statistics import T95, Estimate, _t95, estimate_over_seeds
from rl.report.style import style
from rl.report.sweep import data_sets, lines, ranked, read_sweep, settings
from rl.report.sweep_page import write_sweep_report
from rl.report.sweep_plots import draw_sweep
from rl.report.words import WORDS
from rl.storage.jsonl import write_row
from tests.helpers.pages import Page

NAN = math.nan


def job(folder: Path, name: str, after: dict[str, float], tokens: int = 900) -> None:
    """A finished job of six steps; `after`: its accuracy on each data set, 0.1 around it."""
    path = folder / name
    path.mkdir(parents=True)
    (path / "status.json").write_text(json.dumps({"state": "finished", "step": 6, "reason": ""}))
    (path / "overrides.yaml").write_text(json.dumps(["sweep=length_methods", *name.split(",")]))
    (path / "config.yaml").write_text("max_tokens: 64\n")
    with (path / "metrics.jsonl").open("w") as file:
        write_row(file, {"step": 6, "sampled_tokens": tokens})
    with (path / "evaluations.jsonl").open("w") as file:
        for data, accuracy in after.items():
            for step, value in ((1, 0.2), (7, accuracy)):
                write_row(file, {"step": step, "data": data, **row(value)})


def row(value: float) -> dict[str, Any]:
    around = [value, value - 0.1, min(1.0, value + 0.1)]
    return {
        "problems": 32, "completions": 1, "temperature": 0.0, "accuracy": around, "truncated": [0.0, 0.0, 0.1],
        "tokens": [30.0, 28.0, 32.0], "tokens_per_correct": [30 / value, 28 / value, 32 / value],
        "thinking_ja_share": [0.5, 0.4, 0.6],
    }  # fmt: skip


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for method, accuracies in {
        "none": (0.7, 0.8, 0.9),
        "kimi": (0.5, 0.5, 0.5),
        "laser": (0.9, 0.9, 0.9),
    }.items():
        for seed, accuracy in enumerate(accuracies):
            job(tmp_path, f"method={method},seed={seed}", {"word_problems": accuracy}, tokens=900 + seed)
    return tmp_path


def test_an_interval_over_seeds_by_hand() -> None:
    found = estimate_over_seeds([Estimate(v, v - 0.1, v + 0.2) for v in (0.4, 0.5, 0.6)])
    seeds = 4.303 * 0.1 / math.sqrt(3)  # the standard deviation of the three is 0.1
    assert found.value == pytest.approx(0.5)
    assert found.low == pytest.approx(0.5 - math.hypot(seeds, 0.1))
    assert found.high == pytest.approx(0.5 + math.hypot(seeds, 0.2))


def test_seeds_that_agree_keep_the_interval_over_problems() -> None:
    same = Estimate(0.5, 0.4, 0.7)
    assert estimate_over_seeds([same] * 3) == pytest.approx(same)
    assert estimate_over_seeds([same]) is same


def test_without_intervals_over_problems_the_seeds_are_left() -> None:
    found = estimate_over_seeds([Estimate(v, NAN, NAN) for v in (1.0, 3.0)])
    assert found == pytest.approx((2, 2 - 12.706, 2 + 12.706))  # sd sqrt(2), over sqrt(2)
    assert estimate_over_seeds([Estimate(1.0, 0.5, math.inf)] * 2).high == math.inf


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_more_variation_over_problems_never_narrows_the_interval(values: list[float]) -> None:
    narrow = estimate_over_seeds([Estimate(v, v, v) for v in values])
    wide = estimate_over_seeds([Estimate(v, v - 0.1, v + 0.1) for v in values])
    assert wide.low <= narrow.low <= narrow.value <= narrow.high <= wide.high


def test_students_t_beyond_the_table_joins_it() -> None:
    assert T95[-1] > _t95(11) > _t95(12) > _t95(10**6) >= 1.9599
    assert _t95(11) == pytest.approx(2.201, abs=3e-3) and _t95(30) == pytest.approx(2.042, abs=1e-3)


def test_jobs_that_differ_only_in_the_seed_are_one_setting(sweep: Path) -> None:
    found = {each.label: each for each in settings(read_sweep(sweep))}
    assert {label: len(each.jobs) for label, each in found.items()} == {"kimi": 3, "laser": 3, "none": 3}
    none = found["none"].after()["accuracy"]
    assert none.value == pytest.approx(0.8)
    assert none.low == pytest.approx(0.8 - math.hypot(4.303 * 0.1 / math.sqrt(3), 0.1))
    assert none.high == 1  # a share
    assert found["none"].sampled_tokens == 901
    assert [each.label for each in ranked(list(found.values()))] == ["laser", "none", "kimi"]


def test_equal_accuracy_is_ranked_by_the_cost_of_a_right_answer(tmp_path: Path) -> None:
    for method, cost in (("a", 50.0), ("b", 40.0)):
        job(tmp_path, f"method={method}", {"x": 0.5})
        with (tmp_path / f"method={method}" / "evaluations.jsonl").open("a") as file:
            write_row(file, {"step": 7, "data": "x", **row(0.5), "tokens_per_correct": [cost, cost, cost]})
    assert [each.label for each in ranked(settings(read_sweep(tmp_path)))] == ["b", "a"]


def test_the_seed_is_no_axis(tmp_path: Path) -> None:
    for seed in range(3):
        for budget in (32, 64):
            job(tmp_path, f"max_tokens={budget},seed={seed}", {"x": 0.5})
            (tmp_path / f"max_tokens={budget},seed={seed}" / "config.yaml").write_text(
                f"max_tokens: {budget}\n"
            )
    axis, found = lines(read_sweep(tmp_path))
    assert axis == "max_tokens" and list(found) == [""]
    assert [(x, len(setting.jobs)) for x, setting in found[""]] == [(32, 3), (64, 3)]


def test_the_picture_has_a_row_for_each_setting_best_first(sweep: Path) -> None:
    with style("light") as colors:
        figure = draw_sweep(read_sweep(sweep), colors, WORDS["en"])
    assert figure is not None and len(figure.axes) == 5
    accuracy = figure.axes[0]
    assert [tick.get_text() for tick in accuracy.get_yticklabels()] == ["laser", "none", "kimi"]
    assert accuracy.get_ylim()[0] > accuracy.get_ylim()[1]  # the first row is on top
    assert [line.get_ydata()[0] for line in accuracy.lines] == [0, 0, 1, 1, 2, 2]
    assert [line.get_xdata()[0] for line in accuracy.lines] == pytest.approx([0.2, 0.9, 0.2, 0.8, 0.2, 0.5])


def test_the_page_lists_the_settings_best_first(sweep: Path) -> None:
    text = " ".join(Page(write_sweep_report(sweep).read_text(encoding="utf-8")).text.split())
    assert text.index("laser39010.900") < text.index("none39010.800") < text.index("kimi39010.500")
    assert "over the seeds and the problems" in text
    with (sweep / "settings.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["setting"], r["seeds"]) for r in rows] == [("laser", "3"), ("none", "3"), ("kimi", "3")]
    assert float(rows[1]["accuracy_before"]) == pytest.approx(0.2)
    assert float(rows[1]["accuracy_after"]) == pytest.approx(0.8)


def test_each_data_set_has_its_own_picture_and_ranking(tmp_path: Path) -> None:
    for method, accuracies in {"none": (0.5, 0.9), "kimi": (0.8, 0.3)}.items():
        job(tmp_path, f"method={method}", dict(zip(("math_500", "mgsm_ja"), accuracies, strict=True)))
    assert data_sets(read_sweep(tmp_path)) == ["math_500", "mgsm_ja"]
    page = Page(write_sweep_report(tmp_path).read_text(encoding="utf-8"))
    assert page.tags["img"] == 2 and "Measured on math_500" in page.text
    with (tmp_path / "settings.csv").open(encoding="utf-8", newline="") as file:
        assert [(r["data"], r["setting"]) for r in csv.DictReader(file)] == [
            ("math_500", "kimi"), ("math_500", "none"), ("mgsm_ja", "none"), ("mgsm_ja", "kimi"),
        ]  # fmt: skip


def test_japanese_has_a_glyph_for_every_word(sweep: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        html = write_sweep_report(sweep, "ja").read_text(encoding="utf-8")
    assert "シードの平均" in html and "シードと問題についての95 %信頼区間" in html
