"""How this process was started: alone, or by accelerate or torchrun as one of several. Imports nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path

from rl.errors import UserError


def rank() -> int:
    """This process's number in its launch; 0 without a launcher."""
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """The number of processes in the launch; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", 1))


def gpus() -> int:
    """How many NVIDIA GPUs a process started here may use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (
        len(list(Path("/dev").glob("nvidia[0-9]*")))
        if chosen is None
        else len(chosen.split(","))
        if chosen
        else 0
    )


def is_launched() -> bool:
    """Whether torchrun (also used by accelerate) started this process and controls its lifetime."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def require_one_process(what: str, instead: str) -> None:
    """Raises UserError when `what`, which runs in one process, was started in several. instead: what to type."""
    if world_size() > 1:
        raise UserError(
            f"{what}: runs in one process, and {world_size()} were started (WORLD_SIZE); {instead}"
        )
