"""The record in the run directory: metrics.jsonl, samples.jsonl, evaluations.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl.loggers.base import Logger, Metrics, RunInfo, SampleRow
from rl.storage.jsonl import continue_jsonl, write_row


class JSONL(Logger):
    """Strict JSON: `metrics.jsonl` (one object per step), `samples.jsonl`, `evaluations.jsonl` (one object per evaluation)."""

    def open(self, run: RunInfo) -> None:
        self.metrics_file, self.samples_file, self.evaluations_file = (
            continue_jsonl(run.run_dir / name, run.resumed_from)
            for name in ("metrics.jsonl", "samples.jsonl", "evaluations.jsonl")
        )

    def log(self, step: int, metrics: Metrics) -> None:
        write_row(self.metrics_file, {"step": step, **metrics})
        self.metrics_file.flush()

    def samples(self, step: int, rows: Sequence[SampleRow]) -> None:
        for row in rows:
            write_row(self.samples_file, {"step": step, **row})
        self.samples_file.flush()

    def evaluation(self, step: int, row: Mapping[str, Any]) -> None:
        write_row(self.evaluations_file, {"step": step, **row})
        self.evaluations_file.flush()

    def close(self, exit_code: int) -> None:
        for file in (self.metrics_file, self.samples_file, self.evaluations_file):
            file.close()
