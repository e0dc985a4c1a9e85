"""Seeds as functions of (seed, purpose, step): nothing random needs to be stored to resume."""

from __future__ import annotations

import random


def derived_seed(seed: int, purpose: str, step: int) -> int:
    """A seed for one purpose at one step: nothing random needs to be stored to resume."""
    return random.Random(f"{seed}/{purpose}/{step}").getrandbits(63)


def seed_everything(seed: int) -> None:
    """Python's, numpy's and torch's global generators: what rewards, data code and LoRA dropout may draw from."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
