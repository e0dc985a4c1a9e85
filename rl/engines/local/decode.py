"""Decoding a batch: each step feeds one token per row and returns the logits of the next.

`LlamaDecoder` (rl/engines/local/decode_llama.py) handles the architectures it knows; `ModelDecoder` all others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import CompileConfig, PreTrainedModel

from rl.engines.local.cache import Ring, bytes_per_token, preallocate
from rl.engines.local.decode_llama import LlamaDecoder, decodes
from rl.engines.local.histories import States
from rl.engines.local.prefill import Decoder, Prefill

# One graph for all batch sizes and lengths. CUDA graphs would need both to be fixed.
COMPILED = CompileConfig(dynamic=True, mode="default")


def decoder_for(model: PreTrainedModel, first: Prefill, n: int, budget: int, compiled: bool) -> Decoder:
    """A decoder with n rows per prompt, grouped by prompt, and room for `budget` tokens per row."""
    if shares_prompts(model, compiled):
        return LlamaDecoder(model, first, n, budget)
    return ModelDecoder(model, first, n, budget, compiled)


def shares_prompts(model: PreTrainedModel, compiled: bool) -> bool:
    """Whether the completions of a prompt share one copy of its keys and values."""
    return decodes(model) and not compiled


def cache_bytes(
    model: PreTrainedModel, prompts: int, rows: int, width: int, budget: int, compiled: bool
) -> int:
    """Bytes of keys and values for `rows` completions of `prompts` prompts of `width` tokens."""
    copies = prompts if shares_prompts(model, compiled) else rows
    return (copies * width + rows * budget) * bytes_per_token(model.config, model.dtype)


class ModelDecoder:
    """Any causal language model: its own forward pass, with a cache that holds the prompt once per row.

    compiled: use torch.compile, once for all batch sizes and lengths.
    """

    def __init__(self, model: PreTrainedModel, first: Prefill, n: int, budget: int, compiled: bool) -> None:
        prompts, self.width = first.visible.shape
        spread = torch.arange(prompts, device=first.visible.device).repeat_interleave(n)
        layer_types = getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"]
        # A ready-made 4-D mask saves the model from rebuilding one per token, and can hide columns row by row, which
        # admitting prompts needs. Only sdpa takes a mask of this form, and sliding windows need their own.
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

    def read(self, row: int, prompt: int, born: int, count: int) -> States:
        own = self.width + self.ring.columns(born, count)
        columns = torch.cat((torch.arange(self.width - prompt, self.width), own)).to(self.visible.device)
        layers: Any = self.cache.layers
        return [(layer.keys[row][:, columns], layer.values[row][:, columns]) for layer in layers]

    def _widened(self, visible: Tensor) -> Tensor:
        """[P, W + T] masks of new rows: their prompt is visible, the ring's columns are not."""
        return functional.pad(visible, (self.width - visible.shape[1], self.ring.budget))
