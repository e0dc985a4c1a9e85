"""Molt's printed lines as the run's record: metrics, evaluations, samples, warnings."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections import deque
from pathlib import Path
from typing import Any

from rl.blueprint import Blueprint
from rl.engines.base import Record
from rl.engines.molt.flags import JobFiles
from rl.engines.molt.logs import evaluation_metrics, plain, step_metrics
from rl.errors import UserError

log = logging.getLogger("tanka")

TAIL = 200  # last lines in which an error is looked for
WATCHED = ("reward_total", "molt/policy_loss", "grad_norm")


class Reader:
    """Turns Molt's lines into the run's record. tail: its last lines. step: the last finished one."""

    def __init__(self, record: Record, blueprint: Blueprint, files: JobFiles) -> None:
        self.record, self.blueprint = record, blueprint
        self.step = record.done
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.evaluation: dict[str, float] = {}
        self.samples = SampleFiles(files.samples)
        self.not_finite = 0  # steps in a row

    def line(self, printed: str) -> None:
        """Records a step or an evaluation; shows warnings and errors."""
        text = plain(printed)
        self.tail.append(text)
        if found := step_metrics(text):
            step, metrics = found
            if (
                self.step < step <= self.record.total
            ):  # a line may be printed twice; a package may print one like it
                self.step = step
                metrics["budget"] = self.blueprint.max_tokens
                self.record.log(step, metrics | self.evaluation)
                self.evaluation = {}
                self.record.samples(step, self.some_samples())
                self.require_finite(step, metrics)
        elif evaluated := evaluation_metrics(text):
            self.evaluation = evaluated[1]
        elif any(word in text for word in ("WARNING", "[Warning]", "ERROR")) or "Error:" in text:
            log.warning("Molt: %s", text)

    def require_finite(self, step: int, metrics: dict[str, float]) -> None:
        """Warns of a step with NaN or infinity. Raises UserError after `max_nonfinite_steps` of them in a row."""
        values = {name: metrics[name] for name in WATCHED if name in metrics}
        if all(map(math.isfinite, values.values())):
            self.not_finite = 0
            return
        self.not_finite += 1
        shown = ", ".join(f"{name} {value:g}" for name, value in values.items())
        log.warning("step %d is not finite (%s)", step, shown)
        if self.not_finite >= self.blueprint.max_nonfinite_steps:
            raise UserError(
                f"max_nonfinite_steps={self.blueprint.max_nonfinite_steps}: {self.not_finite} steps in a row were not finite"
                f" ({shown}), so Molt was ended; type a smaller learning_rate and another run_dir, or remove the newest"
                " checkpoint in molt/state/_actor to continue from the one before it"
            )

    def some_samples(self) -> list[dict[str, Any]]:
        """`samples_per_step` new samples of each split."""
        new, most = self.samples.new(), self.blueprint.samples_per_step
        return [row for split in ("train", "test") for row in [r for r in new if r["split"] == split][:most]]


class SampleFiles:
    """The scored completions that Molt's runner processes append to their files. An earlier start's are skipped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read = {file: file.stat().st_size for file in folder.glob("*.jsonl")}

    def new(self) -> list[dict[str, Any]]:
        """The rows that were written since the last call."""
        rows = []
        for file in sorted(self.folder.glob("*.jsonl")):
            with file.open("rb") as data:
                data.seek(self.read.get(file, 0))
                whole = data.read().rpartition(b"\n")[0]
            if whole:
                self.read[file] = self.read.get(file, 0) + len(whole) + 1
                for line in whole.splitlines():
                    with contextlib.suppress(ValueError):  # a process that was killed leaves half a line
                        rows.append(json.loads(line))
        return rows
