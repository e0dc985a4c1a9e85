"""`engine=trl`: the same blueprint on TRL, over accelerate (DDP, DeepSpeed ZeRO, FSDP2), optionally with vLLM.

This module imports nothing heavy: options and checks of a launch. rl/engines/trl/engine.py holds the weights.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rl import signals
from rl.blueprint import Blueprint, EngineConfig
from rl.engines.base import Engine
from rl.engines.launch import gpus, world_size
from rl.engines.trl.options import TrlOptions
from rl.engines.trl.vllm import server_command
from rl.errors import UserError
from rl.losses.kl import require_reference
from rl.models.compatibility import require_attention
from rl.models.device import resolve_device
from rl.models.loading import load_tokenizer
from rl.models.quantization import require_plain
from rl.places import PROJECT


@dataclass(frozen=True, kw_only=True)
class TrlEngineConfig(TrlOptions, EngineConfig):
    """See TrlOptions for the options."""

    resumable: ClassVar[frozenset[str]] = frozenset(
        (
            "microbatch_rows",
            "max_kv_gb",
            "gradient_checkpointing",
            "vllm_url",
            "vllm_memory",
            "vllm_tensor_parallel",
        )
    )
    samples_alone: ClassVar[bool] = False
    needs_full_support: ClassVar[str] = "engine=trl trains on the whole distribution only"

    @property
    def has_entropies(self) -> bool:
        return self.vllm == "off"

    def check(self, blueprint: Blueprint) -> None:
        require_plain(blueprint.model.quantization, blueprint.optimizer.name, "trl")
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
        if blueprint.max_sampled_tokens is not None:
            raise UserError(
                f"max_sampled_tokens={blueprint.max_sampled_tokens}: TRL's trainer needs the number of steps; type max_steps"
                " instead, or engine=local"
            )
        require_reference(blueprint.loss, has_adapter=blueprint.model.lora is not None)
        require_attention(self.attn_implementation)
        count = world_size()
        if blueprint.batch_size % count:
            fitting = max(blueprint.batch_size // count, 1) * count
            raise UserError(
                f"batch_size={blueprint.batch_size}: {count} processes cannot share it equally; type batch_size={fitting}"
            )
        if blueprint.batch_size * blueprint.group_size < 2:
            raise UserError("batch_size=1: one rollout a step has no baseline; type batch_size=16")
        if blueprint.loss.needs_entropies and not self.has_entropies:
            raise UserError(
                f"engine.vllm={self.vllm}: vLLM returns no entropies; type loss.negative_token_fraction=1, or engine.vllm=off"
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

    def open(self, blueprint: Blueprint, tokenizer: Any) -> Engine:
        from rl.engines.trl.engine import TrlPolicy

        policy = TrlPolicy(self, blueprint, tokenizer)
        return Engine(policy, policy)

    def follow(self, blueprint: Blueprint) -> None:
        from rl.engines.trl.engine import TrlPolicy

        policy = TrlPolicy(self, blueprint, load_tokenizer(blueprint.model))
        with signals.safe_points():  # rank 0 handles a signal that reaches all processes
            policy.follow()
        policy.close()

    def commands(self, blueprint: Blueprint, overrides: str) -> dict[str, str]:
        """Commands that start the run on several GPUs and, for `vllm=server`, the vLLM server before it."""
        processes = max(n for n in range(1, (gpus() or 2) + 1) if blueprint.batch_size % n == 0)
        start = launch_command(overrides, processes)
        if self.vllm != "server":
            return {"start": start}
        return {
            "first, on GPUs of its own": server_command(blueprint.model.source, self.vllm_url),
            "then": start,
        }


def launch_command(overrides: str, processes: int) -> str:
    """The command that starts the run on that many GPUs of this machine, or as that many processes without GPUs."""
    config = PROJECT / "conf" / "accelerate" / "ddp.yaml"
    if Path.cwd() == PROJECT:
        config = config.relative_to(PROJECT)
    return f"accelerate launch --config_file {config} --num_processes {processes} -m recipes.rl_basic {overrides}"
