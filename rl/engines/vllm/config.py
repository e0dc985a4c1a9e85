"""`engine=vllm`: vLLM servers sample, this process trains. See docs/vllm.md.

This module imports nothing heavy: options, checks and the plan. rl/engines/vllm/engine.py opens the engine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from renderers.base import Renderer
from rl.blueprint import Blueprint, EngineConfig
from rl.engines.base import Engine
from rl.engines.launch import gpus, require_one_process
from rl.engines.policies import Policies
from rl.engines.vllm.command import RANKS, interpreter, lora_rank, own_command, server_command
from rl.engines.vllm.options import VllmOptions
from rl.errors import UserError
from rl.losses.kl import require_reference
from rl.models.config import ModelConfig
from rl.models.device import resolve_device

PORT = 8000  # in the plan; a run takes a free one
ASK_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class VllmEngineConfig(VllmOptions, EngineConfig):
    """See VllmOptions for the options."""

    resumable: ClassVar[frozenset[str]] = frozenset(
        ("servers", "python", "command", "server_device", "flags", "weights_dir", "patience", "max_mismatch",
         "microbatch_tokens", "gradient_checkpointing")
    )  # fmt: skip

    def check(self, blueprint: Blueprint) -> None:
        require_one_process(
            "engine=vllm", "type engine=trl for one run on all of them, or start it with python -m"
        )
        model = blueprint.model
        require_reference(blueprint.loss, has_adapter=model.lora is not None)
        if blueprint.loss.needs_entropies:
            raise UserError(
                "loss.negative_token_fraction: vLLM returns no entropies; type loss.negative_token_fraction=1.0, or engine=local"
            )
        if model.quantization is not None:
            raise UserError(
                f"model.quantization={model.quantization}: the servers hold the base in another format, so they sample from"
                " another policy; type model.quantization=null, or engine=local"
            )
        if model.lora is not None and lora_rank(model.lora.rank) is None:
            raise UserError(
                f"model.lora.rank={model.lora.rank}: vLLM takes adapters up to rank {RANKS[-1]}; type"
                f" model.lora.rank={RANKS[-1]}"
            )
        self.check_asynchrony(blueprint)
        if blueprint.device not in ("auto", "cpu"):
            resolve_device(blueprint.device)
        self.require_vllm()

    def require_vllm(self) -> None:
        """Raises UserError when a server is to be started and its program or its device is missing."""
        if self.servers is not None:
            return
        if (used := self.gpus) and max(used) >= gpus():
            raise UserError(
                f"engine.server_device={self.server_device}: this machine has {gpus()} GPUs for this process; type one of"
                " their numbers, from 0, or cpu"
            )
        if self.program is not None:
            if shutil.which(self.program[0]) is None:
                raise UserError(
                    f"engine.command={self.command}: {self.program[0]} is no program on PATH; give its path"
                )
            return
        python = interpreter(self)
        find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
        try:
            found = subprocess.run([python, "-I", "-c", find], capture_output=True, timeout=ASK_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = error.strerror if isinstance(error, OSError) else f"no answer in {ASK_SECONDS:.0f} s"
            inside = [Path(python) / name for name in ("python", "bin/python") if os.sep in python]
            found_inside = next((f"e.g. engine.python={path}" for path in inside if path.exists()), None)
            raise UserError(
                f"engine.python={self.python or python}: cannot be run ({reason}); expected the path of a Python that has vLLM;"
                f" {found_inside or 'docs/vllm.md says how to install it'}"
            ) from None
        if found.returncode:
            raise UserError(
                f"engine.python={self.python or 'null'}: {python} has no vLLM; make an environment for it (python -m venv"
                " /opt/vllm && /opt/vllm/bin/pip install vllm) and type engine.python=/opt/vllm/bin/python, or"
                " engine.servers=[http://HOST:PORT]"
            )

    def open(self, blueprint: Blueprint, tokenizer: Any) -> Engine:
        from rl.engines.vllm.engine import open_engine

        return open_engine(self, blueprint, tokenizer)

    def policies(self, model: ModelConfig, renderer: Renderer, weights: Path | None, device: str) -> Policies:
        from rl.engines.vllm.policies import open_policies

        return open_policies(self, model, renderer, weights)

    def commands(self, blueprint: Blueprint, overrides: str) -> dict[str, str]:
        """The command of each server; it fits a CPU where this process sees no GPU."""
        model = blueprint.model
        if self.servers is not None:
            return {
                f"the server at {url}, on its machine": f"\n{own_command(self, model, url).shell()}"
                for url in self.servers
            }
        on_cpu = not (gpus() and self.server_device != "cpu")
        dtype = "float32" if on_cpu and self.compute != "bfloat16" else "bfloat16"
        command = server_command(self, model, model.source, dtype, PORT)
        return {"the server that the run starts, at a free port": f"\n{command.shell()}"}

    def forward_passes(self, blueprint: Blueprint) -> int:
        return super().forward_passes(blueprint) + self.checkpoints(
            resolve_device(blueprint.device) == "cuda"
        )
