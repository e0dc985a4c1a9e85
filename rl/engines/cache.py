"""A key-value cache that is written in place: decoding a token copies that token's keys and values, nothing else."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer


class PreallocatedLayer(DynamicLayer):
    """One attention layer's keys and values, [B, kv_heads, capacity, head_dim], of which `length` columns are written."""

    keys: Tensor
    values: Tensor

    def __init__(self, prompts: DynamicLayer, capacity: int) -> None:
        """Goes on from a layer that has read the prompts; room for `capacity` columns comes with the first reordering."""
        super().__init__()
        assert prompts.keys is not None and prompts.values is not None
        self.keys, self.values, self.length = prompts.keys, prompts.values, prompts.get_seq_length()
        self.capacity = capacity
        self.device, self.is_initialized = prompts.keys.device, True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        start, self.length = self.length, self.length + key_states.shape[2]
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.keys = rows_of(self.keys, beam_idx, self.length, self.capacity)
        self.values = rows_of(self.values, beam_idx, self.length, self.capacity)


def rows_of(buffer: Tensor, rows: Tensor, length: int, capacity: int) -> Tensor:
    """The given rows of [B, ..., L, D] in a new buffer of `capacity` columns, of which the first `length` are copied."""
    new = buffer.new_empty(len(rows), *buffer.shape[1:-2], capacity, buffer.shape[-1])
    torch.index_select(buffer[..., :length, :], 0, rows, out=new[..., :length, :])
    return new


def preallocate(cache: DynamicCache, rows: Tensor, capacity: int) -> None:
    """Goes on with the given rows of `cache`, some more than once.

    Its full-attention layers get room for `capacity` columns; other kinds of layer stay as they are.
    """
    cache.layers = [
        PreallocatedLayer(layer, capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    cache.reorder_cache(rows)  # type: ignore[arg-type]


def bytes_per_token(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Keys and values of one token of one row over all layers."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    return 2 * text.num_hidden_layers * kv_heads * head_dim * dtype.itemsize
