"""Metrics in TensorBoard's event files."""

from __future__ import annotations

from dataclasses import dataclass

from rl.loggers.base import Logger, Metrics, RunInfo


@dataclass
class TensorBoard(Logger):
    """Scalars under the run directory's `tensorboard/`; view with `tensorboard --logdir RUN_DIR`."""

    def open(self, run: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge_step = run.resumed_from + 1 if run.resumed_from else None
        self.writer = SummaryWriter(str(run.run_dir / "tensorboard"), purge_step=purge_step)

    def log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self, exit_code: int) -> None:
        self.writer.close()
