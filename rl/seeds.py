"""Seeds as functions of (seed, purpose, step): nothing random needs to be stored to resume."""

from __future__ import annotations

import random


def derived_seed(seed: int, purpose: str, step: int) -> int:
    """A 63-bit seed for one purpose at one step."""
    return random.Random(f"{seed}/{purpose}/{step}").getrandbits(63)


def seed_everything(seed: int) -> None:
    """Seeds the global generators of Python, numpy and torch, which rewards, data code and LoRA dropout may use."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
