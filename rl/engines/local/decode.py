"""Decoding a batch: every row of it takes one token at a time, and gives the logits of the next.

`LlamaDecoder` (rl/engines/local/decode_llama.py) is for the models whose layers it knows; `ModelDecoder` is for all others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import CompileConfig, PreTrainedModel

from rl.engines.local.cache import Ring, bytes_per_token, preallocate
from rl.engines.local.decode_llama import LlamaDecoder, decodes
from rl.engines.local.prefill import Decoder, Prefill

# One graph for all batch sizes and lengths. CUDA graphs would need both to stay as they are.
COMPILED = CompileConfig(dynamic=True, mode="default")


def decoder_for(model: PreTrainedModel, first: Prefill, n: int, budget: int, compiled: bool) -> Decoder:
    """A decoder of n rows a prompt, those of one prompt next to each other, with room for `budget` tokens a row."""
    if shares_prompts(model, compiled):
        return LlamaDecoder(model, first, n, budget)
    return ModelDecoder(model, first, n, budget, compiled)


def shares_prompts(model: PreTrainedModel, compiled: bool) -> bool:
    """Whether the completions of a prompt share its keys and values."""
    return decodes(model) and not compiled


def cache_bytes(
    model: PreTrainedModel, prompts: int, rows: int, width: int, budget: int, compiled: bool
) -> int:
    """Keys and values of `rows` completions of `prompts` prompts of `width` tokens."""
    copies = prompts if shares_prompts(model, compiled) else rows
    return (copies * width + rows * budget) * bytes_per_token(model.config, model.dtype)


class ModelDecoder:
    """Any causal language model: its own forward pass, with a cache in which each row has its own prompt.

    compiled: the pass goes through torch.compile, once for all batch sizes and lengths.
    """

    def __init__(self, model: PreTrainedModel, first: Prefill, n: int, budget: int, compiled: bool) -> None:
        prompts, self.width = first.visible.shape
        spread = torch.arange(prompts, device=first.visible.device).repeat_interleave(n)
        layer_types = getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"]
        # A ready four-dimensional mask spares the model rebuilding one at every token, and can hide some rows' columns
        # from others. It has this form for sdpa only, and sliding windows need one of their own.
        self.admits = model.config._attn_implementation == "sdpa" and set(layer_types) == {"full_attention"}
        self.forward: Any = model.get_compiled_call(COMPILED) if compiled else model
        self.n = n
        self.ring = Ring(budget)
        preallocate(first.cache, spread, budget)
        self.cache = first.cache
        self.visible = self._widened(first.visible)[spread]  # [B, W + T]
        self.position = first.visible.sum(-1)[spread, None]

    def step(self, tokens: Tensor) -> Tensor:
        self.visible[:, self.width + self.ring.column] = True
        self.ring.advance()
        visible = self.visible[:, : self.width + self.ring.used]
        logits = self.forward(
            input_ids=tokens[:, None],
            attention_mask=visible[:, None, None, :] if self.admits else visible.long(),
            position_ids=self.position,
            cache=self.cache,
            use_cache=True,
        ).logits[:, -1]
        self.position = self.position + 1
        return logits

    def keep(self, rows: Tensor) -> None:
        self.cache.reorder_cache(rows)  # type: ignore[arg-type]
        self.visible, self.position = self.visible[rows], self.position[rows]

    def admit(self, more: Prefill) -> None:
        spread = torch.arange(len(more.visible), device=more.visible.device).repeat_interleave(self.n)
        layers: Any = self.cache.layers
        for layer, new in zip(layers, more.cache.layers, strict=True):
            layer.admit(new, spread)
        self.visible = torch.cat((self.visible, self._widened(more.visible)[spread]))
        self.position = torch.cat((self.position, more.visible.sum(-1)[spread, None]))

    def _widened(self, visible: Tensor) -> Tensor:
        """[P, W + T]: what a new row sees, and none of the ring's columns."""
        return functional.pad(visible, (self.width - visible.shape[1], self.ring.budget))
