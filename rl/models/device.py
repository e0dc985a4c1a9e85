"""Which device computes, how much memory it has, and what happens when that is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rl.errors import UserError, first_line

if TYPE_CHECKING:
    import torch


@contextmanager
def memory_errors(remedy: str) -> Iterator[None]:
    """Turns an exhausted GPU into one line with the override that needs less."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"out of memory ({first_line(error)}); type {remedy}, or use a smaller model"
        ) from error


def resolve_device(wanted: str) -> str:
    """`auto` takes a GPU where there is one; an absent device is a UserError."""
    import torch

    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if present[name])
    if not present[wanted]:
        raise UserError(f"device={wanted}: this machine has none; use device=auto or device=cpu")
    return wanted


def default_kv_gb(device: torch.device) -> float:
    """Half of what a GPU has free once the weights are there; 4 elsewhere."""
    import torch

    return torch.cuda.mem_get_info(device)[0] / 2 / 2**30 if device.type == "cuda" else 4.0
