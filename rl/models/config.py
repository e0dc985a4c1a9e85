"""Which weights a run starts from, and what the catalogue knows about them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl.errors import UserError, require
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
    """Which weights, and what is known about them.

    id: Hub id. path: a local checkpoint, which wins over `id`. stop_tokens: texts of the tokens that end an answer.
    context: tokens of prompt and completion, in place of the checkpoint's own limit; its RoPE stays as it is.
    dtype: `auto` is bfloat16 on a GPU that has it, float32 elsewhere. lora: null trains all weights.
    recipe: what this model usually wants; the root scalars default to it. facts: see docs/renderers.md.
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
    recipe: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.id is None and self.path is None:
            raise UserError(
                "model.path=null: expected a local checkpoint or a Hub id; e.g. model.path=~/models/mine"
            )
        if self.context is not None:
            require(self.context >= 1, "model.context", self.context, "a positive integer, or null", 6144)
        if self.path is not None and not (self.local_path / "config.json").is_file():
            lacks = "no config.json in it" if self.local_path.is_dir() else "no such folder"
            raise UserError(
                f"model.path={self.path}: {lacks}: {self.local_path}; expected a folder that save_pretrained wrote"
            )

    @property
    def local_path(self) -> Path:
        """`path` against the start folder, or against the project for what it ships (assets/tiny)."""
        path = Path(self.path or "").expanduser()
        shipped = PROJECT / path
        return shipped if not path.exists() and shipped.exists() else path.absolute()

    @property
    def source(self) -> str:
        """What `from_pretrained` takes."""
        return str(self.local_path) if self.path is not None else str(self.id)
