"""The options of `engine=trl`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rl.errors import UserError
from rl.models.hub import is_address


@dataclass(frozen=True, kw_only=True)
class TrlOptions:
    """microbatch_rows: rollouts per forward and backward pass of a device; rounded down to a divisor of its share.

    max_kv_gb, gradient_checkpointing, attn_implementation: as in LocalOptions.
    vllm: `off` samples with the trained weights themselves; `colocate` runs vLLM on the training GPUs; `server` uses
    the server at `vllm_url`. vllm_memory: share of a GPU for a colocated vLLM; vllm_tensor_parallel: GPUs per copy.
    """

    microbatch_rows: int = 8
    max_kv_gb: float | None = None
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    vllm: Literal["off", "colocate", "server"] = "off"
    vllm_url: str = "http://localhost:8000"
    vllm_memory: float = 0.3
    vllm_tensor_parallel: int = 1

    def __post_init__(self) -> None:
        for name in ("microbatch_rows", "vllm_tensor_parallel"):
            if (value := getattr(self, name)) < 1:
                raise UserError(f"engine.{name}={value}: expected a positive integer; e.g. engine.{name}=1")
        if self.max_kv_gb is not None and not self.max_kv_gb > 0:
            raise UserError(
                f"engine.max_kv_gb={self.max_kv_gb}: expected a positive number of GiB, or null; e.g. 4"
            )
        if not is_address(self.vllm_url):
            raise UserError(
                f"engine.vllm_url={self.vllm_url}: expected http://HOST:PORT, e.g. http://localhost:8000"
            )
        if not 0 < self.vllm_memory < 1:
            raise UserError(f"engine.vllm_memory={self.vllm_memory}: expected a share in (0, 1); e.g. 0.3")
