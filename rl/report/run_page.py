"""A run directory as one self-contained HTML page, with its pictures (PNG) and numbers (CSV) beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl.errors import UserError
from rl.report.page_files import Language, language_of, require_room, write_csv, write_page
from rl.report.plots import save_plots
from rl.report.summary import LAST_STEPS, Rows, by_set, format_estimate, measured, summarize
from rl.report.words import WORDS
from rl.storage.jsonl import read_jsonl

PAIRS = 4  # problems shown before and after

# The columns of the tables below, as evaluations.jsonl and preflight.json name them.
EVALUATED = ("accuracy", "format", "truncated", "tokens", "tokens_per_correct", "thinking_ja_share")
PREFLIGHT = ("truncated", "format", "accuracy", "reward", "signal", "tokens")

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]  # two samples, early and late


def write_report(run_dir: Path, language: Language | None = None) -> Path:
    """Writes report.html, metrics.csv and report/*.png into the run directory; returns the page's path.

    The page needs no network and no other file. language: None: the run's own `report.language`. An unfinished run is
    reported up to its last step.

    Raises UserError if it is not a run directory, no step has been logged yet, or one of its files is broken.
    """
    metrics_path = run_dir / "metrics.jsonl"
    if run_dir.is_file():
        raise UserError(f"run={run_dir}: is a file; give its run directory")
    if not metrics_path.is_file():
        raise UserError(
            f"run={run_dir} has no metrics.jsonl: give a run directory, such as runs/rl_basic/..."
        )
    rows = read_jsonl(metrics_path)
    if not rows:
        raise UserError(f"run={run_dir} has no finished step yet: wait for the first line of metrics.jsonl")
    require_room(run_dir, "metrics.csv")
    language = language or language_of(run_dir)
    evaluations = read_jsonl(run_dir / "evaluations.jsonl")
    samples = read_samples(run_dir)
    status = _read_object(run_dir / "status.json", "state", str)
    preflight = _read_object(run_dir / "preflight.json", "budgets", list)
    overrides, config = (_read_text(run_dir / name) for name in ("overrides.yaml", "config.yaml"))
    write_csv(rows, run_dir / "metrics.csv")
    pairs, same_problem = before_and_after(samples)
    return write_page(
        run_dir / "report.html",
        "report.html.j2",
        language,
        save_plots(rows, evaluations, run_dir / "report", WORDS[language]),
        name=run_dir.resolve().name,
        status=status.get("state", ""),
        steps=rows[-1]["step"],
        summary=summarize(rows),
        last_count=min(LAST_STEPS, len(rows)),
        evaluations=[evaluated(data, first_and_last(found)) for data, found in by_set(evaluations).items()],
        preflight=preflight,
        preflight_columns=PREFLIGHT,
        preflight_table=preflight_table(preflight.get("budgets", [])),
        pairs=pairs,
        same_problem=same_problem,
        overrides=overrides,
        config=config,
    )


def before_and_after(samples: Rows) -> tuple[list[Pair], bool]:
    """Up to four (early, late) pairs of samples, and whether each pair answers the same problem.

    Prefers problems sampled at several steps, those farthest apart first (evaluations repeat the same test problems).
    Without such problems, pairs the samples of the first step with those of the last.
    """
    seen: dict[tuple[str | None, str], list[Mapping[str, Any]]] = {}
    for row in samples:
        seen.setdefault((row.get("data"), row["id"]), []).append(row)
    pairs = [(rows[0], rows[-1]) for rows in seen.values() if rows[0]["step"] < rows[-1]["step"]]
    if pairs:
        pairs.sort(key=lambda pair: pair[0]["step"] - pair[1]["step"])
        return pairs[:PAIRS], True
    first = [row for row in samples if row["step"] == samples[0]["step"]]
    last = [row for row in samples if row["step"] == samples[-1]["step"]]
    return list(zip(first, last, strict=False))[:PAIRS] if first != last else [], False


def first_and_last(rows: Rows) -> Rows:
    return [rows[0], rows[-1]] if len(rows) > 1 else rows


def evaluated(data: str, rows: Rows) -> dict[str, Any]:
    """A section of the page: a data set, its first and last evaluation, and their measures."""
    return {"data": data, "rows": rows, "table": evaluation_table(rows), "targets": target_table(rows)}


def evaluation_table(evaluations: Rows) -> list[tuple[str, list[str]]]:
    """(name, its estimate in each evaluation, as text) for each measure on the test problems."""
    names = [*EVALUATED, *(name for name in (evaluations[-1] if evaluations else ()) if "@" in name)]
    return [(name, [format_estimate(name, measured(row, name)) for row in evaluations]) for name in names]


def target_table(evaluations: Rows) -> list[tuple[int, str, list[str]]]:
    """(target, name, its estimate in each evaluation, as text) for accuracy and deviation at each stated target length."""
    by_target = [{each["target"]: each for each in row.get("targets", [])} for row in evaluations]
    return [
        (target, name, [format_estimate(name, measured(found.get(target, {}), name)) for found in by_target])
        for target in (by_target[-1] if by_target else {})
        for name in ("accuracy", "deviation")
    ]


def preflight_table(budgets: Rows) -> list[tuple[int, list[tuple[str, str, str]]]]:
    """(budget, its estimates in the order of PREFLIGHT, each as value, space and interval)."""
    return [
        (row["budget"], [format_estimate(name, measured(row, name)).partition(" ") for name in PREFLIGHT])
        for row in budgets
    ]


def read_samples(run_dir: Path) -> Rows:
    """The lines of samples.jsonl. Raises UserError for a line that is not a sample."""
    path = run_dir / "samples.jsonl"
    rows = read_jsonl(path)
    if not all(isinstance(row.get(name), str) for row in rows for name in ("id", "question")):
        raise UserError(
            f"{path}: a line is not a sample; expected objects with step, id and question; remove the file and try again"
        )
    return rows


def _read_object(path: Path, key: str, kind: type) -> dict[str, Any]:
    """The JSON object in a file; {} if there is no file. Raises UserError for anything without the key."""
    text = _read_text(path)
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not isinstance(value.get(key), kind):
        raise UserError(
            f'{path}: not a valid {path.name}; expected {{"{key}": ...}}; remove the file and try again'
        )
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8; save it as UTF-8 and try again") from None
