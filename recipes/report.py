"""Writes the report of a run or a sweep as one HTML page: `python -m recipes.report run=PATH language=ja`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from rl.schema import build


@dataclass(frozen=True)
class ReportConfig:
    """run: the directory of a run or a sweep, finished or not. language: of the page; None: the run's own."""

    run: str
    language: Literal["en", "ja"] | None


@recipe("report", ReportConfig)
def main(composed: Composed) -> None:
    """Writes report.html, a CSV and report/*.png into the directory."""
    from rl.report.run_page import write_report
    from rl.report.sweep import is_sweep
    from rl.report.sweep_page import write_sweep_report

    config: ReportConfig = build(ReportConfig, composed.tree)
    folder = Path(config.run).expanduser().absolute()
    write = write_sweep_report if is_sweep(folder) else write_report
    print(f"report: {write(folder, config.language)}")


if __name__ == "__main__":
    main()
