"""The picture of settings side by side, as of `sweep=length_methods`: one row each, best first, one column a measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rl.evaluation.statistics import Estimate
from rl.report.style import Colors, Words
from rl.report.sweep import MEASURES, SHARES, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 0.34  # inches
AROUND = 1.7  # inches above and below the rows: titles, numbers, legend


def draw_comparison(compared: Sequence[Setting], colors: Colors, words: Words) -> Figure:
    """Every measure of every setting, from the first row down: before training hollow, after it filled with intervals."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(13, AROUND + ROW * len(compared)), layout="constrained")
    before, after = [each.before() for each in compared], [each.after() for each in compared]
    for axes, name in zip(figure.subplots(1, len(MEASURES), sharey=True), MEASURES, strict=True):
        early, late = [m.get(name) for m in before], [m.get(name) for m in after]
        _column(axes, early, late, colors)
        _scale(axes, name, [each for each in (*early, *late) if each is not None])
        axes.set_title(f"{name}\n", loc="left", fontsize=10, fontfamily="DejaVu Sans", fontweight="bold")
        axes.text(0, 1.01, words[name], transform=axes.transAxes, fontsize=7.5, alpha=0.75)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    rows = range(len(compared))
    axes.set_yticks(rows, [each.label for each in compared])
    axes.set_ylim(len(compared) - 0.5, -0.5)
    looks: dict[str, dict[str, Any]] = {
        "before_training": {"color": colors[6], "markerfacecolor": "none"},
        "after_training": {"color": colors[0]},
    }
    entries = [
        Line2D([], [], marker="o", linestyle="", label=words[phase], **look) for phase, look in looks.items()
    ]
    figure.legend(handles=entries, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _column(
    axes: Axes, early: Sequence[Estimate | None], late: Sequence[Estimate | None], colors: Colors
) -> None:
    for row, (start, end) in enumerate(zip(early, late, strict=True)):
        if start is not None:
            axes.plot(start.value, row, "o", color=colors[6], markerfacecolor="none", markersize=6)
        if end is not None:
            if not math.isnan(end.low):
                axes.hlines(row, end.low, min(end.high, 1e12), color=colors[0], linewidth=1.6)
            axes.plot(end.value, row, "o", color=colors[0], markersize=6)


def _scale(axes: Axes, name: str, shown: Sequence[Estimate]) -> None:
    """Shares from 0 to 1, tokens from 0, the cost of a correct answer on a logarithmic scale."""
    if name in SHARES:
        axes.set_xlim(-0.03, 1.03)
    elif name == "tokens_per_correct" and shown:
        from matplotlib.ticker import LogLocator, NullLocator

        ends = [end for each in shown for end in each if math.isfinite(end) and end > 0]
        axes.set_xscale("log")
        axes.set_xlim(min(ends) / 1.3, max(ends) * 1.3)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    elif shown:
        axes.set_xlim(0, max(each.value for each in shown) * 1.08)
