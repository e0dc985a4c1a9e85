"""QLoRA (arXiv:2305.14314): the frozen base in 4-bit NormalFloat through bitsandbytes, adapters in float32."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from rl.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Bytes of a weight: 4 bits, and scales of 64 weights in 8 bits, themselves scaled in blocks of 256 (section 3 there).
NF4_BYTES = (4 + 8 / 64 + 32 / (64 * 256)) / 8


def require_bitsandbytes(typed: str, instead: str) -> None:
    """Raises UserError when the package is missing. typed: the override that needs it; instead: one that does not."""
    if not importlib.util.find_spec("bitsandbytes"):
        raise UserError(
            f"{typed}: the package bitsandbytes is not installed; type pip install 'tanka-rl[quantization]', or {instead}"
        )


def nf4_config(on_gpu: bool) -> Any:
    """transformers' config of a 4-bit base, its scales quantized too; products in bfloat16 on a GPU, else in float32."""
    import torch
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if on_gpu else torch.float32,
    )


def keep_exact(model: PreTrainedModel) -> None:
    """Keeps bitsandbytes from repacking 4-bit weights for a CPU, which rounds their scales.

    Otherwise weights would change with the first sampling and with each checkpoint, so that a resumed run would differ.
    """
    from bitsandbytes.nn import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False


def require_plain(quantization: str | None, optimizer: str, engine: str) -> None:
    """Raises UserError for settings that only engine=local has."""
    if quantization is not None:
        raise UserError(
            f"model.quantization={quantization}: engine={engine} cannot train it; type engine=local, or model.quantization=null"
        )
    if optimizer != "adamw":
        raise UserError(
            f"optimizer.name={optimizer}: engine={engine} has adamw only; type engine=local, or optimizer.name=adamw"
        )
