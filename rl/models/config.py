"""The model a run starts from, and its facts from the catalogue."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl.errors import UserError, require
from rl.models.quantization import require_bitsandbytes
from rl.places import PROJECT


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """LoRA through peft (arXiv:2106.09685). target_modules: `all-linear`, or the names of the projections."""

    rank: int = 32
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: str | list[str] = "all-linear"

    def __post_init__(self) -> None:
        require(self.rank >= 1, "model.lora.rank", self.rank, "a positive integer", 32)
        require(0 < self.alpha < math.inf, "model.lora.alpha", self.alpha, "a positive number", 32)
        require(0 <= self.dropout < 1, "model.lora.dropout", self.dropout, "a number in [0, 1)", 0.0)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model: where its weights are, and facts about it.

    id: Hub id. path: a local checkpoint, preferred to `id`. stop_tokens: texts of the tokens that end an answer.
    context: tokens of prompt and completion, instead of the checkpoint's own limit; RoPE is unchanged.
    dtype: `auto` is bfloat16 on a GPU that has it, float32 elsewhere. lora: null trains all weights. quantization: `nf4`
    keeps the base under an adapter in 4 bits (rl/models/quantization.py).
    recipe: defaults for the run's own keys, such as max_tokens. facts: see docs/renderers.md.
    """

    name: str
    id: str | None = None
    path: str | None = None
    revision: str | None = None
    context: int | None = None
    renderer: str = "auto"
    stop_tokens: list[str] = field(default_factory=list)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    lora: LoraConfig | None = None
    quantization: Literal["nf4"] | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.id is None and self.path is None:
            raise UserError(
                "model.path=null: expected a local checkpoint or a Hub id; e.g. model.path=~/models/mine"
            )
        if self.path is not None and not self.path.strip():
            raise UserError("model.path=: is empty; expected a folder that save_pretrained wrote")
        if self.context is not None:
            require(self.context >= 1, "model.context", self.context, "a positive integer, or null", 6144)
        if self.quantization is not None:
            typed = f"model.quantization={self.quantization}"
            if self.lora is None:
                raise UserError(
                    f"{typed}: 4-bit weights cannot be trained, only an adapter on them; type model.lora.rank=32, or"
                    " model.quantization=null"
                )
            require_bitsandbytes(typed, "model.quantization=null")
        if self.path is not None and not (self.local_path / "config.json").is_file():
            lacks = "has no config.json" if self.local_path.is_dir() else "no such folder"
            raise UserError(
                f"model.path={self.path}: {lacks}: {self.local_path}; expected a folder that save_pretrained wrote"
            )

    @property
    def local_path(self) -> Path:
        """`path`, relative to the current folder, or to the project for a shipped model (assets/tiny)."""
        path = Path(self.path or "").expanduser()
        shipped = PROJECT / path
        return shipped if not path.exists() and shipped.exists() else path.absolute()

    @property
    def source(self) -> str:
        """The folder or Hub id for `from_pretrained`."""
        return str(self.local_path) if self.path is not None else str(self.id)
