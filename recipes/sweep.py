"""What a multirun leaves: one status for each job, one table, and the number of jobs that failed."""

from __future__ import annotations

import traceback
from pathlib import Path

from rl.errors import UserError, reason_of
from rl.run_directory import RunDirectory


def record_failure(folder: Path, error: Exception) -> None:
    """Writes a failed job's status and its traceback into the job's own folder, where the run has not done so."""
    folder.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(folder)
    directory.write_status("failed", directory.read_status().get("step", 0), reason_of(error))
    with (folder / "train.log").open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error)))
        file.write("\n")


def print_sweep(folder: Path) -> int:
    """Prints one line a job; returns how many failed."""
    import rich
    from rich.table import Table

    from rl.jsonl import read_jsonl
    from rl.summary import LAST_STEPS

    table = Table(title=f"sweep {folder}", title_justify="left")
    for column, side in (("job", "left"), ("state", "left"), ("steps", "right"), ("reward_total", "right"), ("frac_truncated", "right")):  # fmt: skip
        table.add_column(column, justify=side, overflow="fold")  # type: ignore[arg-type]
    files = sorted(folder.glob("*/status.json"), key=lambda file: file.stat().st_ctime)
    failed = 0
    for file in files:
        status = {"state": "unreadable", "step": 0, "reason": "", **RunDirectory(file.parent).read_status()}
        rows = read_jsonl(file.parent / "metrics.jsonl")[-LAST_STEPS:]
        means = [
            f"{sum(r[n] for r in rows) / len(rows):.3f}" if rows else ""
            for n in ("reward_total", "frac_truncated")
        ]
        failed += status["state"] != "finished"
        state = status["state"] if status["state"] == "finished" else f"{status['state']}: {status['reason']}"
        table.add_row(file.parent.name, state, str(status["step"]), *means)
    if files:  # none after plan=true
        rich.print(table)
    return failed
