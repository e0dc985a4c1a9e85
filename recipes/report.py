"""A run as one HTML page, with its pictures and numbers: `python -m recipes.report run=PATH language=ja`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recipes.cli import Composed, recipe
from rl.schema import build


@dataclass(frozen=True)
class ReportConfig:
    """run: the directory of a finished or a running run; language: of the page's words."""

    run: str
    language: Literal["en", "ja"]


@recipe("report", ReportConfig)
def main(composed: Composed) -> None:
    """Writes report.html, metrics.csv and report/*.png into the run directory."""
    from rl.report import write_report

    config: ReportConfig = build(ReportConfig, composed.tree)
    page = write_report(Path(config.run).expanduser().absolute(), config.language)
    print(f"report: {page}")


if __name__ == "__main__":
    main()
