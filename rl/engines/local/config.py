"""The config of `engine=local`, and its checks of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from renderers.base import Renderer
from rl.blueprint import Blueprint, EngineConfig
from rl.engines.base import Engine
from rl.engines.launch import require_one_process
from rl.engines.local.memory import default_kv_gb, shape_of, step_memory
from rl.engines.local.options import LocalOptions
from rl.engines.policies import Policies
from rl.losses.kl import require_reference
from rl.models.config import ModelConfig
from rl.models.device import resolve_device


@dataclass(frozen=True, kw_only=True)
class LocalEngineConfig(LocalOptions, EngineConfig):
    """See LocalOptions for the options."""

    resumable: ClassVar[frozenset[str]] = frozenset(
        ("microbatch_tokens", "max_kv_gb", "gradient_checkpointing", "compile")
    )

    @property
    def has_entropies(self) -> bool:
        return True

    def check(self, blueprint: Blueprint) -> None:
        require_one_process(
            "engine=local", "type engine=trl for one run on all of them, or start it with python -m"
        )
        require_reference(blueprint.loss, has_adapter=blueprint.model.lora is not None)
        if blueprint.device not in ("auto", "cpu"):
            resolve_device(blueprint.device)

    def open(self, blueprint: Blueprint, tokenizer: Any) -> Engine:
        from rl.engines.local.engine import open_engine

        return open_engine(self, blueprint, tokenizer)

    def policies(self, model: ModelConfig, renderer: Renderer, weights: Path | None, device: str) -> Policies:
        from rl.evaluation.base_and_trained import load_base_and_trained

        return load_base_and_trained(model, renderer, weights, device)

    def forward_passes(self, blueprint: Blueprint) -> int:
        return super().forward_passes(blueprint) + self.checkpoints(
            resolve_device(blueprint.device) == "cuda"
        )

    def step_memory(self, blueprint: Blueprint, prompt_tokens: int) -> dict[str, float]:
        import torch

        device = torch.device(resolve_device(blueprint.device))
        max_kv_bytes = (self.max_kv_gb or default_kv_gb(device)) * 2**30
        shape = shape_of(blueprint.model)
        return step_memory(blueprint, self, shape, prompt_tokens, device.type == "cuda", max_kv_bytes)
