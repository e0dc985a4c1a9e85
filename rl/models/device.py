"""The device to compute on, its memory, and the error when memory runs out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rl.errors import UserError, first_line

if TYPE_CHECKING:
    pass


@contextmanager
def memory_errors(remedy: str) -> Iterator[None]:
    """Turns a GPU out-of-memory error into one line with an override that needs less."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"out of memory ({first_line(error)}); type {remedy}, or use a smaller model"
        ) from error


def resolve_device(wanted: str) -> str:
    """`auto`: a GPU if there is one, else the CPU. Raises UserError for a device that this machine lacks."""
    import torch

    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if present[name])
    if not present[wanted]:
        raise UserError(f"device={wanted}: this machine has none; use device=auto or device=cpu")
    return wanted
