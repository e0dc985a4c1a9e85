"""What a run writes to disk, and when: checkpoints to resume from, the best one so far, the trained weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rl import progress
from rl.errors import UserError, nearest
from rl.models.card import write_card
from rl.step import Run
from rl.storage import checkpoint
from rl.storage.jsonl import read_jsonl

RENDERER = "renderer.txt"  # fingerprint of the chat format the weights were trained with


def save_at(run: Run, step: int) -> None:
    """Updates status.json; saves a checkpoint every `save_every` steps and after the last."""
    every = run.blueprint.save_every
    if run.ends_with(step) or (every and step % every == 0):
        save(run, step)
    run.directory.write_status("running", step)


def save(run: Run, step: int) -> None:
    """Saves a checkpoint of `step`, the last finished one; keeps the newest `keep_last` and the best."""
    folder = run.directory.checkpoints
    with progress.task("saving"):
        newest = checkpoint.save(folder, step, lambda path: write(run, path))
    best = best_checkpoint(run, folder)
    checkpoint.prune(folder, newest, run.blueprint.keep_last, keep=[best] if best else [])


def write(run: Run, folder: Path) -> None:
    """Writes a checkpoint's contents: everything the next step needs besides the blueprint."""
    run.engine.learner.save(folder)
    (folder / RENDERER).write_text(run.renderer.fingerprint(), encoding="utf-8")


def best_checkpoint(run: Run, folder: Path) -> Path | None:
    """The checkpoint with the highest `keep_best`, also named in best.json; None when none has been measured.

    A step's metrics, including `eval/*`, describe the policy before its update: the previous step's checkpoint.
    """
    metric = run.blueprint.keep_best
    if metric is None:
        return None
    rows = {row["step"]: row for row in read_jsonl(run.directory.path / "metrics.jsonl")}
    values = {
        path: rows.get(checkpoint.step_of(path) + 1, {}).get(metric) for path in checkpoint.steps(folder)
    }
    measured = {path: value for path, value in values.items() if value is not None}
    if not measured:
        return None
    best = max(measured, key=measured.__getitem__)
    run.directory.write_json(
        "best.json", {"checkpoint": best.name, "metric": metric, "value": measured[best]}
    )
    return best


def require_metric(name: str | None, metrics: Mapping[str, float]) -> None:
    """Raises UserError unless the first step logged the metric that `keep_best` names."""
    if name is not None and name not in metrics:
        close = nearest(name, metrics, count=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "expected e.g. keep_best=reward_total"
        why = " (eval/* needs eval_every)" if name.startswith("eval/") else ""
        raise UserError(f"keep_best={name}: this run logs no such metric{why}; {hint}")


def export_final(run: Run) -> None:
    """Writes the trained weights to `final/` for transformers and peft, with a model card."""

    def write_final(folder: Path) -> None:
        run.engine.learner.export(folder)
        (folder / RENDERER).write_text(run.renderer.fingerprint(), encoding="utf-8")
        write_card(folder, run.directory.path)

    with progress.task("saving final/"):
        checkpoint.write_folder(run.directory.final, write_final)
