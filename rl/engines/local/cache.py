"""A key-value cache written in place: decoding a token copies only that token's keys and values."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DynamicLayer


class Ring:
    """A ring buffer of `budget` columns; all rows write to the same column at the same time.

    A row lives for at most `budget` tokens, so it never overwrites its own columns; older ones are masked.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.written = 0

    @property
    def column(self) -> int:
        """The column that the next token is written to."""
        return self.written % self.budget

    @property
    def used(self) -> int:
        return min(self.written, self.budget)

    def columns(self, born: int, count: int) -> Tensor:
        """The columns of `count` tokens, of which the first was written after `born` others."""
        return (born + torch.arange(count)) % self.budget

    def advance(self) -> None:
        self.written += 1


class PreallocatedLayer(DynamicLayer):
    """One attention layer's keys and values, [B, kv_heads, width + budget, head_dim]: the prompts, then a ring."""

    keys: Tensor
    values: Tensor

    def __init__(self, prompts: CacheLayerMixin, rows: Tensor, budget: int) -> None:
        """Copies the given rows, possibly repeated, of a layer that has read the prompts."""
        super().__init__()
        assert prompts.keys is not None and prompts.values is not None
        self.width = prompts.get_seq_length()
        self.ring = Ring(budget)
        self.device, self.is_initialized = prompts.keys.device, True
        self.keys, self.values = prompts.keys, prompts.values
        self.reorder_cache(rows)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        column = self.width + self.ring.column
        self.keys[:, :, column : column + 1] = key_states
        self.values[:, :, column : column + 1] = value_states
        self.ring.advance()
        used = self.width + self.ring.used
        return self.keys[:, :, :used], self.values[:, :, :used]

    def get_seq_length(self) -> int:
        return self.width + self.ring.used

    def reorder_cache(self, beam_idx: Tensor) -> None:
        capacity = self.width + self.ring.budget
        self.keys, self.values = (
            rows_of(buffer, beam_idx, self.get_seq_length(), capacity) for buffer in (self.keys, self.values)
        )

    def admit(self, prompts: CacheLayerMixin, rows: Tensor) -> None:
        """Adds the given rows of a layer that has read more prompts, none longer than the current ones."""
        assert prompts.keys is not None and prompts.values is not None
        # Zeros, not uninitialised memory: a NaN in a masked column would still spread (0 * NaN is NaN).
        self.keys, self.values = (
            torch.cat((buffer, widened(new[rows], self.width, self.ring.budget)))
            for buffer, new in ((self.keys, prompts.keys), (self.values, prompts.values))
        )


def rows_of(buffer: Tensor, rows: Tensor, used: int, capacity: int) -> Tensor:
    """The given rows of [B, ..., L, D] in a new buffer of `capacity` columns; only the first `used` are copied."""
    new = buffer.new_empty(len(rows), *buffer.shape[1:-2], capacity, buffer.shape[-1])
    torch.index_select(buffer[..., :used, :], 0, rows, out=new[..., :used, :])
    return new


def widened(prompts: Tensor, width: int, budget: int) -> Tensor:
    """[..., L, D] with zeros on the left up to `width` columns, and `budget` columns of zeros on the right."""
    return functional.pad(prompts, (0, 0, width - prompts.shape[-2], budget))


def preallocate(cache: DynamicCache, rows: Tensor, budget: int) -> None:
    """Expands a cache that has read the prompts to the given rows, possibly repeated, in place.

    Full-attention layers get room for `budget` more tokens; other layer types only have their rows reordered.
    """
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[index] = PreallocatedLayer(layer, rows, budget)
        else:
            layer.reorder_cache(rows)  # type: ignore[arg-type]


def bytes_per_token(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values, over all layers."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    return 2 * text.num_hidden_layers * kv_heads * head_dim * dtype.itemsize
