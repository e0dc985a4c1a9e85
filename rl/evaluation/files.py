"""The output of an evaluation: tables on the terminal, evaluation.json, evaluation.md, a picture in two themes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from rl.evaluation.measures import ALL, CHANGE, AtTarget, Estimates, Result
from rl.report.style import MARKERS, Colors, Words, save_themed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Setting = Mapping[str, Any]
Results = Sequence[Result]

SHOWN = {
    "format": "format",
    "truncated": "truncated",
    "tokens": "tokens",
    "tokens_per_correct": "tokens per correct",
    "thinking_ja_share": "thinking ja",
}
AT_TARGET = {"accuracy": "accuracy", "tokens": "tokens", "deviation": "off by"}
PLOTTED = ("accuracy", "truncated", "tokens_per_correct")


def tables(results: Results, targets: Sequence[AtTarget] = ()) -> list[Table]:
    """All measures over all problems (pass@k and maj@k only at the largest k), the accuracy on each part, the targets."""
    every = [each for each in results if each.part == ALL]
    largest = {name.partition("@")[0]: name for name in columns(every)}
    names = {name: heading for name, heading in columns(every).items() if name in largest.values()}
    overall = _table("all problems", list(names.values()))
    for each in every:
        overall.add_row(*_ends(each), *(cell(each, name, "{}\n{}") for name in names))
    by_part = {each.part: each for each in results if each.part != ALL}
    accuracy = _table("accuracy", [f"{part} ({each.problems})" for part, each in by_part.items()])
    cells = {(each.budget, each.policy, each.part): cell(each, "accuracy", "{}\n{}") for each in results}
    for each in every:
        accuracy.add_row(*_ends(each), *(cells[each.budget, each.policy, part] for part in by_part))
    if not targets:
        return [overall, accuracy]
    stated = _table("stated targets", list(AT_TARGET.values()), first="target")
    for at in targets:
        stated.add_row(
            str(at.target), at.policy, *(_number(at.estimates, name, "{}\n{}") for name in AT_TARGET)
        )
    return [overall, accuracy, stated]


def _table(title: str, columns: Sequence[str], first: str = "budget") -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False
    )
    table.add_column(first, justify="right")
    table.add_column("policy")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


def _ends(result: Result) -> tuple[str, str]:
    return str(result.budget), result.policy


def columns(results: Results) -> dict[str, str]:
    """The measures to show, with their headings; without pass@1 and maj@1, which equal the accuracy."""
    draws = [name for name in results[0].estimates if "@" in name and not name.endswith("@1")]
    return {"accuracy": "accuracy", **{name: name for name in draws}, **SHOWN}


def cell(result: Result, name: str, layout: str) -> str:
    """A value and its interval, signed if it is a change; – if there is no value."""
    return _number(result.estimates, name, layout, sign="+" if result.policy == CHANGE else "")


def _number(estimates: Estimates, name: str, layout: str, sign: str = "") -> str:
    if name not in estimates or math.isnan(estimates[name].value):
        return "–"
    digits = 0 if name.startswith("tokens") or name == "deviation" else 2
    value, low, high = estimates[name]
    interval = f"{low:{sign}.{digits}f}…{high:{sign}.{digits}f}".replace("inf", "∞")
    return layout.format(f"{value:{sign}.{digits + 1}f}", interval)


def write_files(
    folder: Path, setting: Setting, results: Results, words: Words, targets: Sequence[AtTarget] = ()
) -> dict[str, Path]:
    """Writes the files into `folder`, replacing an earlier evaluation's; returns their paths by kind.

    The same setting and results give the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    numbers, text = folder / "evaluation.json", folder / "evaluation.md"
    document = {**setting, "results": [_plain(each) for each in results]}
    if targets:
        document["targets"] = [
            {"policy": at.policy, "target": at.target, **_plain_numbers(at.estimates)} for at in targets
        ]
    numbers.write_text(
        json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n", encoding="utf-8"
    )
    text.write_text(markdown(setting, results, targets), encoding="utf-8")
    pictures = save_themed(folder, "budgets", lambda colors: draw_budgets(results, colors, words))
    return {"numbers": numbers, "tables": text, "picture": pictures["light"]}


def _plain(result: Result) -> dict[str, Any]:
    return {
        "policy": result.policy,
        "budget": result.budget,
        "part": result.part,
        "problems": result.problems,
        **_plain_numbers(result.estimates),
    }


def _plain_numbers(estimates: Estimates) -> dict[str, list[float | None]]:
    """Every estimate as [value, low, high], with null for unknown or infinite numbers."""
    return {
        name: [number if math.isfinite(number) else None for number in each]
        for name, each in estimates.items()
    }


def markdown(setting: Setting, results: Results, targets: Sequence[AtTarget] = ()) -> str:
    """The evaluation as Markdown: setting, picture, all problems, each part, each stated target."""
    subject = (
        f"{setting['base']}, and trained: {setting['trained']}" if setting["trained"] else setting["base"]
    )
    every = [each for each in results if each.part == ALL]
    rest = sorted((each for each in results if each.part != ALL), key=lambda each: each.part)
    return "\n".join(
        [
            f"# {subject}",
            "",
            f"{setting['data']}, {setting['split']} split: {setting['problems']} problems, {setting['completions']}"
            f" completions of each, temperature {setting['temperature']}, seed {setting['seed']}.",
            "",
            "A value is followed by its 95 % interval over the problems. All budgets are measured on the same completions.",
            "",
            '<picture><source media="(prefers-color-scheme: dark)" srcset="budgets-dark.png">'
            '<img alt="accuracy, truncation and tokens per correct answer against the budget" src="budgets-light.png">'
            "</picture>",
            "",
            *_lines(every),
            "",
            *_lines(rest),
            "",
            *_target_lines(targets),
        ]
    )


def _target_lines(targets: Sequence[AtTarget]) -> list[str]:
    if not targets:
        return []
    rows = [
        [str(at.target), at.policy, *(_number(at.estimates, name, "{} ({})") for name in AT_TARGET)]
        for at in targets
    ]
    return [*_markdown_table(["target", "policy", *AT_TARGET.values()], rows), ""]


def _lines(results: Results) -> list[str]:
    names = columns(results)
    heading = ["part", "problems", "budget", "policy", *names.values()]
    rows = [
        [each.part, str(each.problems), *_ends(each), *(cell(each, name, "{} ({})") for name in names)]
        for each in results
    ]
    return _markdown_table(heading, rows)


def _markdown_table(heading: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows)]


def draw_budgets(results: Results, colors: Colors, words: Words) -> Figure:
    """Accuracy, truncation and tokens per correct answer against the budget, one line per policy, over all problems."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    shown = [each for each in results if each.part == ALL and each.policy != CHANGE]
    names = [name for name in PLOTTED if name in shown[0].estimates]
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _panel(axes, shown, name, colors, words)
    return figure


def _panel(axes: Axes, results: Results, name: str, colors: Colors, words: Words) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    for policy, color, marker in zip(dict.fromkeys(r.policy for r in results), colors, MARKERS, strict=False):
        points = {r.budget: r.estimates[name] for r in results if r.policy == policy}
        points = {budget: each for budget, each in points.items() if math.isfinite(each.value)}
        below = [each.value - each.low for each in points.values()]
        # An interval without an upper end is drawn without its upper half.
        above = [each.high - each.value if math.isfinite(each.high) else 0.0 for each in points.values()]
        axes.errorbar(
            list(points),
            [each.value for each in points.values()],
            yerr=[below, above],
            color=color,
            marker=marker,
            markersize=5,
            capsize=3,
            label=words[policy],
        )
    budgets = sorted({r.budget for r in results})
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, map(str, budgets))
    axes.set_xlim(budgets[0] / 1.2, budgets[-1] * 1.2)
    axes.minorticks_off()
    if name != "tokens_per_correct":
        axes.set_ylim(-0.03, 1.03)
    elif any(math.isfinite(r.estimates[name].value) for r in results):  # no log scale without a value
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(f"{name}\n", loc="left", fontsize=11, fontfamily="DejaVu Sans", fontweight="bold")
    axes.text(0, 1.03, words[name], transform=axes.transAxes, fontsize=8.5, alpha=0.75)
    axes.set_xlabel(words["budget"], fontsize=8.5)
    axes.legend(loc="best", frameon=False, fontsize=8)
