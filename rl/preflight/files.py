"""The output of `recipes.preflight`: tables on the terminal, preflight.json, a picture in two themes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from rl.data.pass_rates import write_pass_rates
from rl.evaluation.statistics import Estimate
from rl.preflight.check import Preflight
from rl.preflight.cost import RunCost
from rl.preflight.learning_signal import ENOUGH
from rl.report.style import MARKERS, Colors, Words, save_themed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Memory = Mapping[str, float]  # bytes by part, from EngineConfig.step_memory

COLUMNS = {
    "truncated": "cut",
    "format": "format",
    "accuracy": "correct",
    "reward": "reward",
    "signal": "signal",
    "tokens": "tokens",
}
PANELS = {"cuts": ("truncated", "format", "accuracy"), "teaches": ("signal", "reward")}


def tables(found: Preflight, cost: RunCost, memory: Memory | None) -> list[Table | str]:
    """The measurements at each budget, the verdict on the run's own budget, and the run's estimated cost."""
    widest = max(found.readings)
    smallest = (
        f"no budget up to {widest} has enough signal"
        if found.smallest is None
        else f"{found.smallest} is the smallest budget with enough signal"
    )
    lengths = ", ".join(f"{name} {length(found.lengths[name], widest)}" for name in found.lengths)
    verdict = found.warning or f"{found.summary}: a budget to train with"
    return [
        _budgets(found),
        f"{smallest} (rewards that differ in {100 * ENOUGH:.0f} % of the {found.baseline}, by the lower end of the interval)",
        f"completion lengths: {lengths}",
        f"{'warning: ' if found.warning else ''}{verdict}",
        "",
        _estimates(cost, memory),
    ]


def _budgets(found: Preflight) -> Table:
    title = f"{found.problems} problems x {found.completions} completions, temperature {found.temperature:g}"
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    table.add_column("budget", justify="right")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    table.add_column()
    for budget, reading in found.readings.items():
        notes = ((found.budget, "this run"), (found.smallest, "smallest"))
        mark = ", ".join(note for at, note in notes if at == budget)
        table.add_row(
            str(budget), *(cell(name, reading.get(name)) for name in COLUMNS), f"← {mark}" if mark else ""
        )
    return table


def cell(name: str, estimate: Estimate | None) -> str:
    """E.g. "0.89 0.85…0.93": a value and its 95 % interval; – for None."""
    if estimate is None:
        return "–"
    digits = 0 if name == "tokens" else 2
    return "{:.{d}f} {:.{d}f}…{:.{d}f}".format(*estimate, d=digits)


def length(quantile: Estimate, widest: int) -> str:
    """E.g. "83 (81…86)", or ">128" for a completion that the widest budget cut."""
    value, low, high = (f"{tokens:g}" if math.isfinite(tokens) else f">{widest}" for tokens in quantile)
    return f"{value} ({low}…{high})"


def _estimates(cost: RunCost, memory: Memory | None) -> Table:
    table = Table(title="the run, estimated", title_justify="left", show_header=False, box=None)
    lines = {
        "optimiser steps": f"{cost.steps:,} of {cost.rollouts:,} rollouts",
        "tokens a step": f"{cost.completion_tokens:,} sampled, {cost.prompt_tokens:,} of prompts, if answers keep their length",
        **(
            {"thrown away a step": f"{cost.discarded_tokens:,} sampled tokens, at the signal measured"}
            if cost.discarded_tokens
            else {}
        ),
        "token ceiling": f"{cost.ceiling.tokens:,} completion tokens",
        **cost.ceiling.lines(),
        "time a step": f"{duration(cost.sample_seconds)} to sample (measured rate), {duration(cost.update_seconds)} to update (from a forward pass)",
        "time": f"{duration(cost.seconds)}, without loading and checkpoints",
    }
    if memory:
        parts = ", ".join(
            f"{name.replace('_', ' ')} {gib(size)}"
            for name, size in memory.items()
            if name != "peak" and size
        )
        lines["peak memory"] = f"{gib(memory['peak'])} GiB ({parts})"
    if cost.usd is not None:
        lines["price"] = f"{cost.usd:,.2f} USD with engine=tinker ({cost.price_date})"
    for name, value in lines.items():
        table.add_row(name, value)
    return table


def duration(seconds: float) -> str:
    """E.g. 0.42 s, 25 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def gib(size: float) -> str:
    return f"{size / 2**30:.2g}" if size < 10 * 2**30 else f"{size / 2**30:.0f}"


def write_files(
    folder: Path, found: Preflight, cost: RunCost, memory: Memory | None, words: Words
) -> dict[str, Path]:
    """Writes the files into `folder`, replacing an earlier preflight's; returns their paths by kind."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = folder / "preflight.json"
    document = {**found.to_json(), "estimate": cost.to_json(), "memory_bytes": memory}
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)
    numbers.write_text(f"{text}\n", encoding="utf-8")
    rates = folder / "pass_rates.jsonl"
    write_pass_rates(rates, found.pass_rates)
    pictures = save_themed(folder, "preflight", lambda colors: draw(found, colors, words))
    return {"numbers": numbers, "rates": rates, "picture": pictures["light"]}


def draw(found: Preflight, colors: Colors, words: Words) -> Figure:
    """Cut, format and correct shares, and signal and reward, against the budget; dashed: the run's own budget."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    for axes, (panel, names) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        for name in names:
            if name not in found.readings[found.budget]:
                continue
            index = list(COLUMNS).index(name)
            _line(axes, found, name, colors[index], MARKERS[index], words)
        budgets = list(found.readings)
        axes.axvline(found.budget, linestyle="--", linewidth=1, color=colors[6], label=words["own_budget"])
        axes.set_xscale("log", base=2)
        axes.set_xticks(budgets, map(str, budgets))
        axes.minorticks_off()
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -0.03), max(high, 1.03))
        axes.set_title(words[panel], loc="left", fontsize=11)
        axes.set_xlabel(words["budget"], fontsize=8.5)
        axes.legend(loc="best", frameon=False, fontsize=8)
    return figure


def _line(axes: Axes, found: Preflight, name: str, color: str, marker: str, words: Words) -> None:
    budgets = list(found.readings)
    values, lows, highs = zip(*(reading[name] for reading in found.readings.values()), strict=True)
    keys = {"signal": found.baseline.label, "reward": "reward_total"}
    meaning = words[keys.get(name, name)].format(size=found.baseline.size)
    axes.plot(
        budgets, values, color=color, marker=marker, markersize=5, linewidth=1.8, label=f"{name}: {meaning}"
    )
    axes.fill_between(budgets, lows, highs, color=color, alpha=0.18, linewidth=0)
