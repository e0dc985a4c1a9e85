"""Summarising a run: its main metrics, their series, first against last steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rl.evaluation.statistics import Estimate

Rows = Sequence[Mapping[str, Any]]  # the objects of metrics.jsonl

# Most important first: metric name -> its short name on a plain line.
MAIN_METRICS = {
    "reward_total": "reward",
    "reward_correct": "correct",
    "reward_format": "format",
    "frac_all_good": "all_good",
    "frac_truncated": "truncated",
    "tokens/mean": "tokens",
    "entropy": "entropy",
    "learning_rate": "lr",
}
LAST_STEPS = 5  # steps in the mean that is shown as a run's last value


def series(rows: Rows, name: str) -> tuple[list[int], list[float]]:
    """A metric's steps and values, without steps where it is missing or not finite."""
    points = [
        (row["step"], row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])
    ]
    return [step for step, _ in points], [value for _, value in points]


def last_mean(rows: Rows, name: str) -> float | None:
    """A metric's mean over the last five steps that have it; None if no step has it."""
    last = series(rows, name)[1][-LAST_STEPS:]
    return fmean(last) if last else None


def measured(row: Mapping[str, Any], name: str) -> Estimate | None:
    """An estimate in a line of evaluations.jsonl; None if it has no value.

    JSON cannot express infinity, so a null upper end means infinity.
    """
    value, low, high = row.get(name) or (None, None, None)
    if value is None:
        return None
    return Estimate(value, value if low is None else low, math.inf if high is None else high)


def by_set(evaluations: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """The lines of evaluations.jsonl by data set; "" for runs of older versions, which do not name it."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in evaluations:
        found.setdefault(str(row.get("data", "")), []).append(row)
    return found


def summarize(rows: Rows) -> list[tuple[str, str, str]]:
    """(name, first value, mean of the last five), as text, of each main metric that the run logged."""
    lines = []
    for name in MAIN_METRICS:
        _, values = series(rows, name)
        if values:
            last = values[-LAST_STEPS:]
            lines.append((name, format_value(name, values[0]), format_value(name, fmean(last))))
    return lines


def format_value(name: str, value: float) -> str:
    if name == "learning_rate":
        return f"{value:.2e}"
    return f"{value:.1f}" if name.startswith(("tokens", "deviation")) else f"{value:.3f}"


def format_estimate(name: str, estimate: Estimate | None) -> str:
    """The value, with its interval if it has one; "–" for None."""
    if estimate is None:
        return "–"
    value, low, high = (format_value(name, number).replace("inf", "∞") for number in estimate)
    return value if math.isnan(estimate.low) else f"{value} [{low}, {high}]"
