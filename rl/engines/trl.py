"""`engine=trl`: the same blueprint on TRL, over accelerate (DDP, DeepSpeed ZeRO, FSDP2), with vLLM where asked for.

This module is the light half: the choices, and the checks of a launch. rl/engines/trl_engine.py holds the weights.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rl.blueprint import PROJECT
from rl.engines.base import Driver
from rl.engines.fit import require_attention
from rl.engines.launch import gpus, world_size
from rl.engines.local import resolve_device
from rl.engines.trl_vllm import server_command
from rl.errors import UserError
from rl.hub import is_address

if TYPE_CHECKING:
    from rl.blueprint import Blueprint


@dataclass(frozen=True, kw_only=True)
class TrlEngineConfig:
    """microbatch_rows: rollouts in one forward and backward pass of a device; a share's largest divisor up to it.

    max_kv_gb, gradient_checkpointing, attn_implementation: as in LocalEngineConfig.
    vllm: `off` samples with the trained weights themselves; `colocate` puts vLLM on the training GPUs, `server` asks the
    one at `vllm_url`. vllm_memory: share of a GPU that a colocated vLLM takes; vllm_tensor_parallel: GPUs for one copy.
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

    def check(self, blueprint: Blueprint) -> None:
        if self.vllm != "off" and blueprint.model.context is not None:
            raise UserError(
                f"model.context={blueprint.model.context}: vLLM reads the checkpoint's own limit; type engine.vllm=off, or"
                " change max_position_embeddings in a copy's config.json and type model.path=COPY model.context=null"
            )
        if self.vllm != "off" and not importlib.util.find_spec("vllm"):
            raise UserError(
                f"engine.vllm={self.vllm}: the package vllm is not installed; type pip install 'trl[vllm]', or"
                " engine.vllm=off"
            )
        require_attention(self.attn_implementation)
        count = world_size()
        if blueprint.batch_size % count:
            fitting = max(blueprint.batch_size // count, 1) * count
            raise UserError(
                f"batch_size={blueprint.batch_size}: {count} processes cannot share it equally; type batch_size={fitting}"
            )
        if blueprint.batch_size * blueprint.group_size < 2:
            raise UserError("batch_size=1: one rollout a step has no baseline; type batch_size=16")
        if blueprint.sampling.truncated:
            raise UserError(
                f"sampling.{blueprint.sampling.truncated}: engine=trl trains on the whole distribution only; leave it off,"
                " or type engine=local"
            )
        if self.vllm != "off" and blueprint.loss.needs_entropies:
            raise UserError(
                f"engine.vllm={self.vllm}: vLLM gives no entropies; type loss.negative_token_fraction=1, or engine.vllm=off"
            )
        if self.vllm == "colocate" and count % self.vllm_tensor_parallel:
            raise UserError(
                f"engine.vllm_tensor_parallel={self.vllm_tensor_parallel}: does not divide the {count} processes; e.g. 1"
            )
        if (device := resolve_device(blueprint.device)) == "mps":
            raise UserError(
                f"device={blueprint.device}: engine=trl does not train on {device}; type device=cpu"
            )
        if device == "cuda" and count == 1 and gpus() > 1:
            raise UserError(
                f"{gpus()} GPUs are visible to one process; type {launch_command('engine=trl ...', gpus())}, or"
                " CUDA_VISIBLE_DEVICES=0 before the command"
            )

    def open(self, blueprint: Blueprint, tokenizer: Any) -> Driver:
        from rl.engines.trl_engine import TrlEngine

        return TrlEngine(self, blueprint, tokenizer)

    def commands(self, blueprint: Blueprint, overrides: str) -> dict[str, str]:
        """What starts the run on several GPUs, and the vLLM server that `vllm=server` needs before it."""
        processes = max(n for n in range(1, (gpus() or 2) + 1) if blueprint.batch_size % n == 0)
        start = launch_command(overrides, processes)
        if self.vllm != "server":
            return {"start": start}
        return {
            "first, on GPUs of its own": server_command(blueprint.model.source, self.vllm_url),
            "then": start,
        }


def launch_command(overrides: str, processes: int) -> str:
    """Starts the run on that many GPUs of this machine, or as that many processes where there is none."""
    config = PROJECT / "conf" / "accelerate" / "ddp.yaml"
    if Path.cwd() == PROJECT:
        config = config.relative_to(PROJECT)
    return f"accelerate launch --config_file {config} --num_processes {processes} -m recipes.rl_basic {overrides}"
