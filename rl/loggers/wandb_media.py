"""A finished run's pictures and samples as Weights & Biases shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl.report.page_files import language_of
from rl.report.plots import pictures
from rl.report.run_page import before_and_after, read_samples
from rl.report.style import render, style
from rl.report.words import WORDS
from rl.storage.jsonl import read_jsonl

# Column of the table -> key in samples.jsonl.
COLUMNS = {
    "question": "question", "gold": "gold", "step": "step", "answer": "raw", "reason": "reason", "tokens": "tokens",
    "reward": "reward",
}  # fmt: skip


def run_media(run_dir: Path) -> dict[str, Any]:
    """`report/curves`, `groups` and `reasons` as images, `report/samples` as a table of early and late answers.

    `step` is the last step; {} for a run without steps.
    """
    import wandb

    rows, evaluations = (read_jsonl(run_dir / name) for name in ("metrics.jsonl", "evaluations.jsonl"))
    if not rows:
        return {}
    with style("light") as colors:
        figures = {
            name: draw(colors)
            for name, draw in pictures(rows, evaluations, WORDS[language_of(run_dir)]).items()
        }
        images = {name: wandb.Image(render(figure)) for name, figure in figures.items() if figure is not None}
    pairs, _ = before_and_after(read_samples(run_dir))
    answers = [[sample.get(column) for column in COLUMNS.values()] for pair in pairs for sample in pair]
    table = wandb.Table(columns=list(COLUMNS), data=answers)
    media = {f"report/{name}": value for name, value in {**images, "samples": table}.items()}
    return {"step": rows[-1]["step"], **media}
