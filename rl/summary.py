"""Reading a run back: its main metrics, their course, and the line from its first to its last steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]  # the objects of metrics.jsonl

# In the order in which a run is judged: metric name -> its short name on a plain line.
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
LAST_STEPS = 5  # steps averaged into a run's last value


def series(rows: Rows, name: str) -> tuple[list[int], list[float]]:
    """A metric's steps and values; steps where it is missing or was not finite are left out."""
    points = [
        (row["step"], row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])
    ]
    return [step for step, _ in points], [value for _, value in points]


def summarize(rows: Rows) -> list[tuple[str, str, str]]:
    """(name, first value, mean of the last five), as text, of each main metric that the run logged."""
    lines = []
    for name in MAIN_METRICS:
        _, values = series(rows, name)
        if values:
            last = values[-LAST_STEPS:]
            lines.append((name, format_value(name, values[0]), format_value(name, sum(last) / len(last))))
    return lines


def format_value(name: str, value: float) -> str:
    if name == "learning_rate":
        return f"{value:.2e}"
    return f"{value:.1f}" if name.startswith("tokens/") else f"{value:.3f}"
