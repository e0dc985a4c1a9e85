"""The published settings on engine=molt: each as what a user types."""

from __future__ import annotations

from pathlib import Path

from rl.blueprint import Blueprint
from rl.engines.molt.command import Command

PRESETS = [
    ("experiment=molt_flashreinforce_r1",),
    ("experiment=molt_flashreinforce_r1", "loss.delta=5e-3", "epochs=1000"),
    ("experiment=molt_flashreinforce_r1", "loss.delta=inf"),
    ("experiment=molt_flashreinforce_qwen_math",),
    ("experiment=molt_flashreinforce_qwen_math", "loss.delta=1e-3"),
    ("experiment=molt_flashreinforce_python_7b",),
    ("experiment=molt_flashreinforce_python_7b", "engine.loss_agg_mode=token-mean"),
    ("experiment=molt_grpo_python_7b",),
    ("experiment=molt_flashreinforce_python_moe",),
    ("experiment=molt_flashreinforce_python_moe", "loss.delta=inf"),
    ("experiment=molt_flashreinforce_alfworld",),
    ("experiment=molt_grpo_alfworld",),
]  # fmt: skip


def command_of(blueprint: Blueprint) -> Command:
    """The command that `plan=true` shows for a run in /runs/a."""
    return blueprint.engine.command(blueprint, Path("/runs/a"))  # type: ignore[attr-defined]
