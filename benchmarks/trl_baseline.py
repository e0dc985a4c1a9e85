"""Stock TRL as a contender: what its trainers are configured with, and a clock inside its own loop."""

from __future__ import annotations

import tempfile
from typing import Any

from transformers import TrainerCallback
from trl import GRPOConfig

from benchmarks.harness import ON_GPU, Figures, Laps

# Recomputing activations costs a third on any machine. Which number format is faster on a processor depends on whether it
# multiplies bfloat16 itself, and on the model's size. TRL's defaults are bfloat16 and checkpointing.
BEST = {"bf16": ON_GPU, "gradient_checkpointing": False}
BFLOAT16 = {"bf16": True, "gradient_checkpointing": False}
DEFAULTS: dict[str, Any] = {}


class Clock(TrainerCallback):
    """The figures of each of the trainer's steps, from the end of the one before it."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.laps = Laps()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.laps()

    @property
    def steps(self) -> list[Figures]:
        return self.laps.figures


def grpo_config(**settings: Any) -> GRPOConfig:
    """A GRPOConfig without reports, bars and checkpoints, on whatever this machine has; `settings` are the contender's.

    loss_type grpo and scale_rewards group are the published GRPO, which is our loss=grpo.
    """
    return GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        loss_type="grpo",
        scale_rewards="group",
        use_cpu=not ON_GPU,
        **settings,
    )
