"""Writes the tables of docs/performance.md from benchmarks/results/: `python -m benchmarks.table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- tables: python -m benchmarks.table -->", "<!-- end of tables -->"
HEADER = "| benchmark | figure | ours | other | ratio | promised |\n|---|---|---|---|---|---|"


def main() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{after}", encoding="utf-8")


def tables() -> str:
    """One section for each kind of machine (CPU, GPU) that has results."""
    sections = []
    for folder in sorted(RESULTS.glob("*/")):
        results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
        results = [result for result in results if "ratios" in result]  # translate has no peer
        lines = [line for result in results for line in rows(result)]
        sections.append("\n".join([f"### {folder.name.upper()}\n", HEADER, *lines, "", *notes(results)]))
    return "\n\n".join(sections)


def rows(result: dict[str, Any]) -> list[str]:
    """One line for each ratio: medians with quartiles of both sides, and of the ratio within each round."""
    lines = []
    for ratio in result["ratios"]:
        figure = ratio["figure"]
        mine, other = (result["contenders"][ratio[side]]["figures"][figure] for side in ("of", "to"))
        cells = [
            result["benchmark"],
            figure.replace("_", " "),
            f"{ratio['of']} {quartiles(mine)}",
            f"{ratio['to']} {quartiles(other)}",
            quartiles(ratio),
            promise(ratio),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def promise(ratio: dict[str, Any]) -> str:
    """The promised ratio, and whether the median keeps it: at least for rates, at most for everything else."""
    target = ratio["target"]
    if target is None:
        return ""
    high = ratio["figure"].endswith("per_second")
    kept = ratio["median"] >= target if high else ratio["median"] <= target
    return f"{'≥' if high else '≤'} {target:g}, {'kept' if kept else 'not kept'}"


def quartiles(figure: dict[str, Any]) -> str:
    return f"{short(figure['median'])} ({short(figure['q1'])}-{short(figure['q3'])})"


def short(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def notes(results: list[dict[str, Any]]) -> list[str]:
    """The notes under a table: the machine, and each contender's settings."""
    lines = []
    for result in results:
        machine = result["machine"]
        place = ", ".join(f"{k} {v}" for k, v in machine.items() if k != "packages" and v is not None)
        packages = ", ".join(f"{k} {v}" for k, v in machine["packages"].items())
        lines.append(f"* **{result['benchmark']}**: {result['rounds']} rounds; {place}; {packages}.")
        for name, contender in result["contenders"].items():
            settings = ", ".join(f"{k}={v}" for k, v in contender["settings"].items())
            lines.append(f"    * {name}: {settings or 'no settings'}")
    return lines


if __name__ == "__main__":
    main()
