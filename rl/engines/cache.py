"""A key-value cache that is written in place: decoding a token copies that token's keys and values, nothing else."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer


class PreallocatedLayer(DynamicLayer):
    """One attention layer's keys and values, [B, kv_heads, capacity, head_dim], of which `length` columns are written."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device = key_states.device
        self.key_buffer = self._buffer(key_states, key_states.shape[0])
        self.value_buffer = self._buffer(value_states, value_states.shape[0])
        self.is_initialized = True

    def _buffer(self, like: Tensor, rows: int) -> Tensor:
        return like.new_empty(rows, like.shape[1], self.capacity, like.shape[3])

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[2]
        self.key_buffer[:, :, start : self.length] = key_states
        self.value_buffer[:, :, start : self.length] = value_states
        return self.key_buffer[:, :, : self.length], self.value_buffer[:, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length

    def select(self, rows: Tensor) -> None:
        """Keeps (or repeats) the given rows; only written columns are copied."""
        for name in ("key_buffer", "value_buffer"):
            old = getattr(self, name)
            new = self._buffer(old, len(rows))
            torch.index_select(old[:, :, : self.length], 0, rows, out=new[:, :, : self.length])
            setattr(self, name, new)


def preallocated_cache(config: PreTrainedConfig, capacity: int) -> DynamicCache:
    """The model's own cache with every full-attention layer's growth replaced; other kinds of layer stay as they are."""
    cache = DynamicCache(config=config)
    cache.layers = [
        PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def select_rows(cache: DynamicCache, rows: Tensor) -> None:
    """Keeps (or repeats) rows of every layer."""
    for layer in cache.layers:
        if isinstance(layer, PreallocatedLayer):
            layer.select(rows)
        else:
            layer.reorder_cache(rows)  # type: ignore[arg-type]


def bytes_per_token(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Keys and values of one token of one row over all layers."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    return 2 * text.num_hidden_layers * kv_heads * head_dim * dtype.itemsize
