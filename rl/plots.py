"""The pictures of a run: curves, group outcomes, reasons for a zero.

Readable by a color-blind person, in dark and light, in English and Japanese. matplotlib's global settings are
left alone.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.summary import MAIN_METRICS, Rows, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Labels = Mapping[str, str]  # what to write beside or instead of a name: one language of rl/labels.py

SHARES = {"reward_total", "reward_correct", "reward_format", "frac_all_good", "frac_truncated"}
OUTCOMES = ("by_group/frac_all_good", "by_group/frac_mixed", "by_group/frac_all_bad")

# Okabe and Ito's palette ("Color Universal Design", 2008), for each theme in an order in which the colors
# stand out from the paper and neighbors in a stack differ in lightness too.
THEMES = {
    "light": {
        "ink": "#1f2328",
        "paper": "#ffffff",
        "grid": "#d8dee4",
        "series": "#0072B2 #E69F00 #D55E00 #56B4E9 #CC79A7 #009E73 #8c959f #000000",
    },
    "dark": {
        "ink": "#e6edf3",
        "paper": "#0d1117",
        "grid": "#30363d",
        "series": "#56B4E9 #E69F00 #D55E00 #0072B2 #CC79A7 #009E73 #8c959f #F0E442",
    },
}


def save_plots(rows: Rows, folder: Path, labels: Labels) -> dict[str, dict[str, Path]]:
    """Draws every picture the rows of metrics.jsonl have numbers for.

    Returns {"curves" | "groups" | "reasons": {"light" | "dark": PNG}}.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, dict[str, Path]] = {}
    for name, draw in PICTURES.items():
        for theme in THEMES:
            path = folder / f"{name}-{theme}.png"
            with _style(theme) as colors:
                figure = draw(rows, colors, labels)
                if figure is not None:
                    figure.savefig(path, dpi=144, metadata={"Software": None})
                    pictures.setdefault(name, {})[theme] = path
    return pictures


def draw_curves(rows: Rows, colors: Sequence[str], labels: Labels) -> Figure:
    """Eight small curves, in the order in which a run is judged."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.6), layout="constrained")
    for axes, name in zip(figure.subplots(2, 4).flat, MAIN_METRICS, strict=True):
        _curve(axes, rows, name, colors, labels)
    return figure


def draw_groups(rows: Rows, colors: Sequence[str], labels: Labels) -> Figure | None:
    """Shares of groups all good, mixed, all bad: only the mixed ones teach a group-relative loss anything."""
    return _stack(rows, OUTCOMES, colors, labels)


def draw_reasons(rows: Rows, colors: Sequence[str], labels: Labels) -> Figure | None:
    """Shares of rollouts that scored 0 by reason; reasons that never occur are left out."""
    reasons = [name for name in rows[0] if name.startswith("grade/") and name != "grade/correct"]
    names = [name for name in reasons if any(series(rows, name)[1])]
    return _stack(rows, names, colors, labels)


PICTURES = {"curves": draw_curves, "groups": draw_groups, "reasons": draw_reasons}


def _curve(axes: Axes, rows: Rows, name: str, colors: Sequence[str], labels: Labels) -> None:
    """One metric over the steps, and its evaluation; the lengths also with their median to 90 % band."""
    steps, values = series(rows, name)
    axes.plot(steps, values, color=colors[0], linewidth=1.8, marker="o" if len(steps) == 1 else "")
    if name == "tokens/mean":
        steps, p50 = series(rows, "tokens/p50")
        _, p90 = series(rows, "tokens/p90")
        axes.fill_between(steps, p50, p90, color=colors[1], alpha=0.3, linewidth=0, label=labels["band"])
    steps, evaluated = series(rows, f"eval/{name}")
    if evaluated:
        axes.plot(steps, evaluated, "s--", color=colors[2], markersize=4, label=labels["eval"])
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", frameon=False, fontsize=8)
    if name in SHARES:
        axes.set_ylim(min([0, *values]) - 0.02, max([1, *values]) + 0.02)
    if name == "learning_rate":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:.1e}")
    axes.set_title(f"{name}\n", loc="left", fontsize=11, fontfamily="DejaVu Sans", fontweight="bold")
    axes.text(0, 1.03, labels[name], transform=axes.transAxes, fontsize=8.5, alpha=0.75)
    axes.set_xlabel(labels["step"], fontsize=8.5)
    axes.locator_params(axis="x", integer=True)


def _stack(rows: Rows, names: Sequence[str], colors: Sequence[str], labels: Labels) -> Figure | None:
    from matplotlib.figure import Figure

    complete = [row for row in rows if all(row.get(name) is not None for name in names)]
    if not names or not complete:
        return None
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    steps = [row["step"] for row in complete]
    heights = [[row[name] for row in complete] for name in names]
    shown = [labels.get(name, name.removeprefix("grade/")) for name in names]
    areas = axes.stackplot(steps, heights, labels=shown, colors=colors[: len(names)], step="mid")
    for area in areas:
        area.set_edgecolor(axes.get_facecolor())  # a line between neighbours, for eyes that see no hue
        area.set_linewidth(1)
    axes.set_ylim(0, 1)
    axes.margins(x=0)
    axes.set_xlabel(labels["step"])
    axes.locator_params(axis="x", integer=True)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, reverse=True)
    return figure


@contextmanager
def _style(theme: str) -> Iterator[list[str]]:
    """matplotlib's settings for one theme while a figure is drawn and saved; gives the series' colors."""
    import matplotlib

    _add_japanese_font()
    ink, paper, grid = (THEMES[theme][part] for part in ("ink", "paper", "grid"))
    settings: dict[Any, Any] = {
        "font.family": ["DejaVu Sans", "IPAexGothic"],  # the second where the first lacks a glyph
        "figure.facecolor": paper,
        "savefig.facecolor": paper,
        "axes.facecolor": paper,
        "axes.edgecolor": grid,
        "axes.labelcolor": ink,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": grid,
        "grid.linewidth": 0.6,
        "text.color": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
    }
    with matplotlib.rc_context(settings):
        yield THEMES[theme]["series"].split()


@functools.cache
def _add_japanese_font() -> None:
    """Makes IPAexGothic known; importing its package would set it for every figure in the process."""
    from matplotlib import font_manager

    spec = importlib.util.find_spec("matplotlib_fontja")
    assert spec and spec.origin, "matplotlib-fontja is a dependency of this project"
    font_manager.fontManager.addfont(Path(spec.origin).parent / "fonts" / "ipaexg.ttf")
