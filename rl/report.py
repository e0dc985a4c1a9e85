"""A run directory as one self-contained HTML page, with its pictures (PNG) and numbers (CSV) beside it."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rl.boxes import split_boxes
from rl.errors import UserError
from rl.jsonl import read_jsonl
from rl.labels import LABELS
from rl.plots import save_plots
from rl.summary import LAST_STEPS, Rows, summarize

PAIRS = 4  # problems shown before and after


def write_report(run_dir: Path, language: Literal["en", "ja"] = "en") -> Path:
    """Writes report.html, metrics.csv and report/*.png into the run directory; returns the page's path.

    The page needs no network and no other file. A run that is still going is reported as far as it is.

    Raises UserError when the directory is no run directory, no step has been logged yet, or one of its files is not
    what a run writes.
    """
    import jinja2

    metrics_path = run_dir / "metrics.jsonl"
    if not metrics_path.is_file():
        raise UserError(
            f"run={run_dir} has no metrics.jsonl: give a run directory, such as runs/rl_basic/..."
        )
    rows = read_jsonl(metrics_path)
    if not rows:
        raise UserError(f"run={run_dir} has no finished step yet: wait for the first line of metrics.jsonl")
    for name, blocks in {
        "report": Path.is_file,
        "report.html": Path.is_dir,
        "metrics.csv": Path.is_dir,
    }.items():
        if blocks(run_dir / name):
            raise UserError(f"run={run_dir}: {name} stands where the report goes; move it away and try again")
    samples = _read_samples(run_dir / "samples.jsonl")
    status = _read_status(run_dir / "status.json")
    overrides, config = (_read_text(run_dir / name) for name in ("overrides.yaml", "config.yaml"))
    labels = LABELS[language]
    write_csv(rows, run_dir / "metrics.csv")
    plots = save_plots(rows, run_dir / "report", labels)
    pairs, same_problem = before_and_after(samples)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rl"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["boxes"] = split_boxes
    page = environment.get_template("report.html.j2").render(
        labels=labels,
        language=language,
        name=run_dir.resolve().name,
        status=status,
        steps=rows[-1]["step"],
        summary=summarize(rows),
        last_count=min(LAST_STEPS, len(rows)),
        plots={
            name: {theme: _data_url(path) for theme, path in files.items()} for name, files in plots.items()
        },
        pairs=pairs,
        same_problem=same_problem,
        overrides=overrides,
        config=config,
    )
    path = run_dir / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def before_and_after(samples: Rows) -> tuple[list[tuple[Mapping[str, Any], Mapping[str, Any]]], bool]:
    """Up to four (early, late) pairs of samples, and whether both are answers to one problem.

    Problems seen at more than one step, those farthest apart first (the test problems of `eval_every` are the
    same each time). A run that never met a problem twice is shown by its first and its last step's samples.
    """
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for row in samples:
        seen.setdefault(row["id"], []).append(row)
    pairs = [(rows[0], rows[-1]) for rows in seen.values() if rows[0]["step"] < rows[-1]["step"]]
    if pairs:
        pairs.sort(key=lambda pair: pair[0]["step"] - pair[1]["step"])
        return pairs[:PAIRS], True
    first = [row for row in samples if row["step"] == samples[0]["step"]]
    last = [row for row in samples if row["step"] == samples[-1]["step"]]
    return list(zip(first, last, strict=False))[:PAIRS] if first != last else [], False


def write_csv(rows: Rows, path: Path) -> None:
    """A line a step, a column a metric in the order in which they first appear; a missing value is empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _read_samples(path: Path) -> Rows:
    rows = read_jsonl(path)
    if not all(isinstance(row.get(name), str) for row in rows for name in ("id", "question")):
        raise UserError(
            f"{path}: a line is no sample; expected objects with step, id and question; remove the file and try again"
        )
    return rows


def _read_status(path: Path) -> str:
    """The run's state; "" when it has none yet. Raises UserError for what is no status."""
    text = _read_text(path)
    try:
        status = json.loads(text) if text else {"state": ""}
    except ValueError:
        status = None
    if not isinstance(status, dict) or not isinstance(status.get("state"), str):
        raise UserError(f'{path}: is no status; expected {{"state": ...}}; remove the file and try again')
    return status["state"]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8; save it as UTF-8 and try again") from None


def _data_url(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
