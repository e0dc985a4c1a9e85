"""The picture of a sweep: what a budget costs and earns, before and after training, one line for whatever else varies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rl.evaluation.statistics import Estimate
from rl.report.comparison_plot import draw_comparison
from rl.report.style import MARKERS, Colors, Words
from rl.report.sweep import BUDGET, Job, Setting, lines, ranked, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASES = {  # each readable without color
    "before_training": {"linestyle": "--", "markerfacecolor": "none"},
    "after_training": {"linestyle": "-"},
}
ALONG = ("accuracy", "truncated", "tokens_per_correct")  # the measures drawn along the budget
APART = 0.05  # of two lines' markers at one budget, in doublings of it
FEW = 10  # values of the horizontal axis that are all written at it

Point = tuple[float, Estimate]


def draw_sweep(jobs: Sequence[Job], colors: Colors, words: Words) -> Figure | None:
    """Accuracy, truncation and tokens per correct answer of the finished jobs; None when none has finished.

    Settings without a number to draw them along are compared in rows (rl/report/comparison_plot.py).
    """
    from matplotlib.figure import Figure

    axis, found = lines([job for job in jobs if job.finished])
    if not found:
        return None
    if axis == BUDGET and len(found) > 1 and len({x for line in found.values() for x, _ in line}) == 1:
        return draw_comparison(ranked(settings(jobs)), colors, words)
    if cloud := len(found) > len(MARKERS):  # too many to tell apart, as of a search over two numbers
        found = {"": [point for line in found.values() for point in line]}
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    looks = [{"color": color, "marker": marker} for color, marker in zip(colors, MARKERS, strict=True)]
    for axes, name in zip(figure.subplots(1, len(ALONG)), ALONG, strict=True):
        shown: list[Point] = []
        for i, (line, look) in enumerate(zip(found.values(), looks, strict=False)):
            shift = 2 ** (APART * (i - (len(found) - 1) / 2))
            for phase, values in (("before_training", Setting.before), ("after_training", Setting.after)):
                measured = [(x * shift, values(setting)) for x, setting in line]
                points = [(x, estimates[name]) for x, estimates in measured if name in estimates]
                style = {**PHASES[phase], **look} | ({"linestyle": "none"} if cloud else {})
                _line(axes, points, style)
                shown += points
        _scale(axes, name, shown, words)
        _ticks(axes, axis, sorted({x for line in found.values() for x, _ in line}))
        axes.set_xlabel(words["budget"] if axis == BUDGET else axis, fontsize=8.5)
        axes.set_title(f"{name}\n", loc="left", fontsize=11, fontfamily="DejaVu Sans", fontweight="bold")
        axes.text(0, 1.02, words[name], transform=axes.transAxes, fontsize=8.5, alpha=0.75)
    _legend(figure, dict(zip(found, looks, strict=False)), words)
    return figure


def _line(axes: Axes, points: Sequence[Point], style: dict[str, Any]) -> None:
    """The values and, where they are known, their intervals; one without an end leaves the picture."""
    axes.plot([x for x, _ in points], [e.value for _, e in points], linewidth=1.8, markersize=6.5, **style)
    known = [(x, e) for x, e in points if not math.isnan(e.low)]
    axes.vlines(
        [x for x, _ in known],
        [e.low for _, e in known],
        [min(e.high, 1e12) for _, e in known],
        color=style["color"],
        linewidth=1.2,
        alpha=0.8,
    )


def _scale(axes: Axes, name: str, points: Sequence[Point], words: Words) -> None:
    """Shares from 0 to 1; tokens on a logarithmic scale, since training changes them many times over."""
    from matplotlib.ticker import LogLocator, NullLocator

    if name != "tokens_per_correct":
        axes.set_ylim(-0.03, 1.03)
    elif points:
        ends = [end for _, e in points for end in e if math.isfinite(end) and end > 0]
        axes.set_yscale("log")
        axes.set_ylim(min(ends) / 1.3, max(ends) * 1.3)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_yticks([])
        axes.text(0.5, 0.5, words["none_correct"], transform=axes.transAxes, ha="center", alpha=0.75)


def _ticks(axes: Axes, axis: str, values: Sequence[float]) -> None:
    if values[0] > 0 and (axis == BUDGET or values[-1] / values[0] > 4):
        axes.set_xscale("log", base=2 if axis == BUDGET else 10)
        axes.set_xlim(values[0] / 1.25, values[-1] * 1.25)
    if len(values) <= FEW:
        axes.set_xticks(values, [f"{value:g}" if axis == BUDGET else f"{value:.2g}" for value in values])
        axes.minorticks_off()


def _legend(figure: Figure, looks: dict[str, dict[str, str]], words: Words) -> None:
    """One entry for each line, where there are several, and one for each phase."""
    from matplotlib import rcParams
    from matplotlib.lines import Line2D

    each: dict[str, dict[str, Any]] = dict(looks) if len(looks) > 1 else {}
    phase_look = {"color": rcParams["text.color"], "marker": "o"} if each else next(iter(looks.values()))
    each |= {words[phase]: {**style, **phase_look} for phase, style in PHASES.items()}
    entries = [Line2D([], [], label=label, **look) for label, look in each.items()]
    figure.legend(handles=entries, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
