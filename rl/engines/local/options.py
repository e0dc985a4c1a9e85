"""The options of `engine=local`, and those of them that every learner in this process has."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Literal

from rl.errors import UserError
from rl.models.compatibility import require_attention


@dataclass(frozen=True, kw_only=True)
class LearnerOptions:
    """microbatch_tokens: tokens in one forward and backward pass of the learner; null: 16384 on a GPU, 1536 elsewhere.

    gradient_checkpointing: saves memory, costs time; `auto`: on for a GPU.
    compute: precision of matrix products. `auto`: bfloat16 on a GPU; on a CPU a short trial decides
    (rl/engines/local/precision.py), and the run keeps what it chose.
    """

    microbatch_tokens: int | None = None
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    compute: Literal["auto", "float32", "bfloat16"] = "auto"

    def __post_init__(self) -> None:
        if self.microbatch_tokens is not None and self.microbatch_tokens < 1:
            raise UserError(
                f"engine.microbatch_tokens={self.microbatch_tokens}: expected a positive integer, or null;"
                " e.g. engine.microbatch_tokens=4096"
            )
        require_attention(self.attn_implementation)

    def microbatch(self, on_gpu: bool) -> int:
        """`microbatch_tokens`, or the device's default: small batches fit CPU caches, large ones keep a GPU busy."""
        return self.microbatch_tokens or (16384 if on_gpu else 1536)

    def checkpoints(self, on_gpu: bool) -> bool:
        """Whether the learner recomputes activations in the backward pass."""
        return on_gpu if self.gradient_checkpointing == "auto" else self.gradient_checkpointing


@dataclass(frozen=True, kw_only=True)
class LocalOptions(LearnerOptions):
    """Those of LearnerOptions, whose `compute` is the sampler's too, and more.

    max_kv_gb: GiB for the sampler's key-value cache; prompts that do not fit wait their turn. null: half of a GPU's free
    memory, 4 GiB elsewhere. compile: torch.compile the sampler's step, which takes minutes once; for long runs on a GPU.
    """

    max_kv_gb: float | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_kv_gb is not None and not self.max_kv_gb > 0:
            raise UserError(
                f"engine.max_kv_gb={self.max_kv_gb}: expected a positive number of GiB, or null; e.g. 4"
            )
        if self.compile and not (shutil.which("g++") or shutil.which("clang++")):
            raise UserError(
                "engine.compile=true: needs a C++ compiler; install g++ or clang++, or type engine.compile=false"
            )
