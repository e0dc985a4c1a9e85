"""The pictures of a run: curves, group outcomes, reasons for a zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.evaluation.statistics import Estimate
from rl.report.style import MARKERS, Colors, Themed, Words, save_themed
from rl.report.summary import MAIN_METRICS, Rows, by_set, measured, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = {"reward_total", "reward_correct", "reward_format", "frac_all_good", "frac_truncated"}
# Metric -> its name in evaluations.jsonl, if it has an interval there.
EVALUATED = {
    "reward_total": "reward",
    "reward_correct": "accuracy",
    "reward_format": "format",
    "frac_truncated": "truncated",
    "tokens/mean": "tokens",
}
OUTCOMES = ("by_group/frac_all_good", "by_group/frac_mixed", "by_group/frac_all_bad")


def save_plots(rows: Rows, evaluations: Rows, folder: Path, words: Words) -> dict[str, Themed]:
    """Draws every picture the rows of metrics.jsonl and evaluations.jsonl have numbers for.

    Returns {"curves" | "groups" | "reasons" | "budgets": {"light" | "dark": PNG}}.
    """
    draws = pictures(rows, evaluations, words)
    saved = {name: save_themed(folder, name, draw) for name, draw in draws.items()}
    return {name: files for name, files in saved.items() if files}


def pictures(rows: Rows, evaluations: Rows, words: Words) -> dict[str, Callable[[Colors], Figure | None]]:
    """A drawing function for each picture of a run; call them inside `style` of rl/report/style.py."""
    return {
        "curves": partial(draw_curves, rows, evaluations, words=words),
        "groups": partial(draw_groups, rows, words=words),
        "reasons": partial(draw_reasons, rows, words=words),
        "budgets": partial(draw_budgets, evaluations, words=words),
    }


def draw_curves(rows: Rows, evaluations: Rows, colors: Colors, words: Words) -> Figure:
    """Eight small curves of the main metrics, most important first, with the evaluations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.6), layout="constrained")
    for axes, name in zip(figure.subplots(2, 4).flat, MAIN_METRICS, strict=True):
        _curve(axes, rows, name, colors, words)
        _evaluations(axes, rows, evaluations, name, colors, words)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", frameon=False, fontsize=8)
    return figure


def draw_groups(rows: Rows, colors: Colors, words: Words) -> Figure | None:
    """Shares of groups all good, mixed, all bad: group-relative losses learn only from mixed ones."""
    return _stack(rows, OUTCOMES, colors, words)


def draw_reasons(rows: Rows, colors: Colors, words: Words) -> Figure | None:
    """Shares of rollouts that scored 0 by reason; reasons that never occur are left out."""
    reasons = [name for name in rows[0] if name.startswith("grade/") and name != "grade/correct"]
    names = [name for name in reasons if any(series(rows, name)[1])]
    return _stack(rows, names, colors, words)


def draw_budgets(evaluations: Rows, colors: Colors, words: Words) -> Figure | None:
    """Accuracy on the first evaluation set against the budget, one line for each of a few evaluations over the run."""
    from matplotlib.figure import Figure

    first = next(iter(by_set(evaluations).values()), [])
    shown = _spread([row for row in first if row.get("budgets")], len(MARKERS) - 2)
    lines = {row["step"]: budget_line(row) for row in shown}
    if not any(lines.values()):
        return None
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for (step, points), color, marker in zip(lines.items(), colors, MARKERS, strict=False):
        label = words["before_training"] if step == 1 else words["after_steps"].format(count=step - 1)
        budgets, estimates = list(points), list(points.values())
        below = [each.value - each.low for each in estimates]
        above = [each.high - each.value for each in estimates]
        values = [each.value for each in estimates]
        axes.errorbar(
            budgets, values, yerr=[below, above], color=color, marker=marker, markersize=5, capsize=3, label=label
        )  # fmt: skip
    ticks = sorted({budget for points in lines.values() for budget in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel(words["budget"])
    axes.set_ylabel(words["accuracy"])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    return figure


def budget_line(row: Mapping[str, Any]) -> dict[int, Estimate]:
    """The accuracy at each budget of a line of evaluations.jsonl; without budgets that have none."""
    points = {each["budget"]: measured(each, "accuracy") for each in row["budgets"]}
    return {budget: estimate for budget, estimate in points.items() if estimate is not None}


def _spread(rows: Rows, count: int) -> Rows:
    """At most `count` of the rows, evenly spaced, the first and the last among them."""
    if len(rows) <= count:
        return rows
    return [rows[round(i * (len(rows) - 1) / (count - 1))] for i in range(count)]


def _curve(axes: Axes, rows: Rows, name: str, colors: Colors, words: Words) -> None:
    """One metric over the steps; lengths also with a band from the median to the 90 % quantile, and the budget."""
    steps, values = series(rows, name)
    axes.plot(steps, values, color=colors[0], linewidth=1.8, marker="o" if len(steps) == 1 else "")
    if name == "tokens/mean":
        steps, p50 = series(rows, "tokens/p50")
        _, p90 = series(rows, "tokens/p90")
        axes.fill_between(steps, p50, p90, color=colors[1], alpha=0.3, linewidth=0, label=words["band"])
        steps, budget = series(rows, "budget")
        if budget:
            axes.plot(steps, budget, ":", color=colors[5], drawstyle="steps-mid", label=words["budget"])
    if name in SHARES:
        axes.set_ylim(min([0, *values]) - 0.02, max([1, *values]) + 0.02)
    if name == "learning_rate":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:.1e}")
    axes.set_title(f"{name}\n", loc="left", fontsize=11, fontfamily="DejaVu Sans", fontweight="bold")
    axes.text(0, 1.03, words[name], transform=axes.transAxes, fontsize=8.5, alpha=0.75)
    axes.set_xlabel(words["step"], fontsize=8.5)
    axes.locator_params(axis="x", integer=True)


def _evaluations(axes: Axes, rows: Rows, evaluations: Rows, name: str, colors: Colors, words: Words) -> None:
    """One metric on each evaluation set; the label of a run's only set is the word for test problems."""
    sets = by_set(evaluations) or {"": []}
    looks = zip(colors[2:], "s^vPXD", strict=False)  # the first two colors are those of training
    for (data, found), (color, marker) in zip(sets.items(), looks, strict=False):
        label, prefix = (data, f"eval/{data}/") if len(sets) > 1 else (words["eval"], "eval/")
        _evaluated(axes, rows, found, name, (color, marker, label, prefix))


def _evaluated(axes: Axes, rows: Rows, evaluations: Rows, name: str, look: tuple[str, str, str, str]) -> None:
    """One metric on one set, with 95 % intervals where available. look: color, marker, label, prefix of its metrics."""
    color, marker, label, prefix = look
    points = [(row["step"], measured(row, EVALUATED.get(name, ""))) for row in evaluations]
    known = [(step, estimate) for step, estimate in points if estimate is not None]
    if known:
        steps, values = [step for step, _ in known], [estimate.value for _, estimate in known]
        axes.vlines(steps, [e.low for _, e in known], [e.high for _, e in known], color=color, linewidth=1.2)
    else:
        steps, values = series(rows, f"{prefix}{name}")
    if values:
        axes.plot(steps, values, f"{marker}--", color=color, markersize=4, linewidth=1.2, label=label)


def _stack(rows: Rows, names: Sequence[str], colors: Colors, words: Words) -> Figure | None:
    from matplotlib.figure import Figure

    complete = [row for row in rows if all(row.get(name) is not None for name in names)]
    if not names or not complete:
        return None
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    steps = [row["step"] for row in complete]
    heights = [[row[name] for row in complete] for name in names]
    shown = [words.get(name, name.removeprefix("grade/")) for name in names]
    areas = axes.stackplot(steps, heights, labels=shown, colors=colors[: len(names)], step="mid")
    for area in areas:
        area.set_edgecolor(axes.get_facecolor())  # a line between neighbours, for color-blind readers
        area.set_linewidth(1)
    axes.set_ylim(0, 1)
    axes.margins(x=0)
    axes.set_xlabel(words["step"])
    axes.locator_params(axis="x", integer=True)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, reverse=True)
    return figure
