"""Stock TRL as a contender: the configuration of its trainers, and a clock inside its own loop."""

from __future__ import annotations

import tempfile
from typing import Any

from transformers import TrainerCallback
from trl import GRPOConfig

from benchmarks.harness import ON_GPU, Figures, Laps

# Recomputing activations costs a third on any machine. Whether bfloat16 is faster on a CPU depends on its hardware support
# and on the model's size. TRL's defaults are bfloat16 and checkpointing.
BEST = {"bf16": ON_GPU, "gradient_checkpointing": False}
BFLOAT16 = {"bf16": True, "gradient_checkpointing": False}
DEFAULTS: dict[str, Any] = {}


class Clock(TrainerCallback):
    """The time of each of the trainer's steps, from the end of the previous one."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.laps = Laps()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.laps()

    @property
    def steps(self) -> list[Figures]:
        return self.laps.figures


def grpo_config(**settings: Any) -> GRPOConfig:
    """A GRPOConfig without trackers, progress bars and checkpoints, on this machine's device, with the given `settings`.

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
