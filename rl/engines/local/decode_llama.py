"""The decode step of Llama's layer (arXiv:2302.13971) as Llama, Qwen2 and Qwen3 have it, on a CPU with float32 weights.

A small model's own forward pass spends most of its time in Python and small tensor operations, and reads a copy of the
prompt's keys and values for each completion. This one calls the model's own modules, adapters included, in the same
order, and reads a prompt's keys and values once for all its completions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from rl.engines.local.cache import Ring, rows_of, widened
from rl.engines.local.histories import States
from rl.engines.local.prefill import Prefill

MODEL_TYPES = ("llama", "qwen2", "qwen3")


def decodes(model: PreTrainedModel) -> bool:
    """Whether this module supports the model and is as accurate as the model's own forward pass.

    In bfloat16 it would not be: GPU attention kernels accumulate in float32, the products here do not.
    """
    config = model.config
    return (
        config.model_type in MODEL_TYPES
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and model.device.type == "cpu"
        and model.dtype == torch.float32
    )


@dataclass
class LayerCache:
    """One layer's keys and values; K key-value heads of size D, W columns of prompt, T of completion.

    prompt_keys, prompt_values: [P * K, W, D]. keys, values: [B * K, T, D], a ring buffer, partly written.
    """

    prompt_keys: Tensor
    prompt_values: Tensor
    keys: Tensor
    values: Tensor


class LlamaDecoder:
    """A `Decoder` (rl/engines/local/prefill.py) of B rows, at first n per prompt."""

    admits = True

    def __init__(self, model: PreTrainedModel, first: Prefill, n: int, budget: int) -> None:
        self.base: Any = model.base_model
        self.head: Any = model.get_output_embeddings()
        self.n = n
        self.ring = Ring(budget)
        layers: Any = first.cache.layers
        _, self.kv_heads, self.width, self.head_dim = layers[0].keys.shape
        # Starts empty: the first prompts are admitted like all later ones.
        nothing = layers[0].keys.new_empty
        self.caches = [
            LayerCache(
                *(nothing(0, self.width, self.head_dim) for _ in range(2)),
                *(nothing(0, budget, self.head_dim) for _ in range(2)),
            )
            for _ in layers
        ]
        self.prompt = self.place = torch.empty(0, dtype=torch.long, device=first.visible.device)
        self.position = self.prompt[:, None]
        self.prompt_mask = nothing(0, 1, self.width)
        self.own_mask = nothing(0, 1, budget)
        self.admit(first)

    def admit(self, more: Prefill) -> None:
        prompts = len(more.visible)
        rows = torch.arange(prompts * self.n, device=more.visible.device)
        # Row r is completion `place[r]` of its prompt.
        self.prompt = torch.cat((self.prompt, len(self.prompt_mask) // self.kv_heads + rows // self.n))
        self.place = torch.cat((self.place, rows % self.n))
        self.position = torch.cat((self.position, more.visible.sum(-1)[rows // self.n, None]))
        visible = functional.pad(more.visible, (self.width - more.visible.shape[1], 0))
        mask = self.prompt_mask.new_zeros(visible.shape).masked_fill(~visible, -torch.inf)
        self.prompt_mask = torch.cat((self.prompt_mask, mask.repeat_interleave(self.kv_heads, 0)[:, None]))
        shape = (len(rows) * self.kv_heads, 1, self.ring.budget)
        self.own_mask = torch.cat((self.own_mask, self.own_mask.new_full(shape, -torch.inf)))
        layers: Any = more.cache.layers
        for cache, layer in zip(self.caches, layers, strict=True):
            keys, values = (widened(read.flatten(0, 1), self.width, 0) for read in (layer.keys, layer.values))
            cache.prompt_keys = torch.cat((cache.prompt_keys, keys))
            cache.prompt_values = torch.cat((cache.prompt_values, values))
            # Zeros, not uninitialised memory: a NaN in a masked column would still spread (0 * NaN is NaN).
            room = keys.new_zeros(len(rows) * self.kv_heads, self.ring.budget, self.head_dim)
            cache.keys, cache.values = torch.cat((cache.keys, room)), torch.cat((cache.values, room))
        self._index()

    def step(self, tokens: Tensor) -> Tensor:
        column = self.ring.column
        self.ring.advance()
        self.own_mask[:, :, column] = 0
        # Cast once for all projections that read them; autocast would do it for each.
        compute = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
        hidden = self.base.embed_tokens(tokens)
        cos, sin = self.base.rotary_emb(hidden, self.position)  # [B, 1, D]
        sin = torch.cat((-sin[..., : self.head_dim // 2], sin[..., self.head_dim // 2 :]), -1)
        for layer, cache in zip(self.base.layers, self.caches, strict=True):
            attention = layer.self_attn
            normed = normalized(layer.input_layernorm, hidden).to(compute)
            query, key, value = (
                project(normed).view(len(tokens), -1, self.head_dim)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            if hasattr(attention, "q_norm"):  # Qwen3
                query, key = normalized(attention.q_norm, query), normalized(attention.k_norm, key)
            cache.keys[:, column] = rotated(key, cos, sin).flatten(0, 1)
            cache.values[:, column] = value.flatten(0, 1)
            query = rotated(query, cos, sin).mul_(attention.scaling)
            with torch.autocast("cpu", enabled=False):
                attended = self._attend(query.view(len(cache.keys), -1, self.head_dim), cache)
            hidden = hidden + attention.o_proj(attended.view(len(tokens), -1))
            hidden = hidden + layer.mlp(normalized(layer.post_attention_layernorm, hidden).to(compute))
        self.position = self.position + 1
        return self.head(normalized(self.base.norm, hidden))

    def _attend(self, query: Tensor, cache: LayerCache) -> Tensor:
        """[B * K, heads per key, D] attention outputs: softmax over the prompt's and the row's own columns.

        The queries of a prompt's n rows are gathered into one product with the prompt's keys. In float32 even where the
        projections are not: bfloat16 scores would be coarser than those of the learner's attention.
        """
        heads, used = query.shape[1], self.ring.used
        gathered = query.index_select(0, self.row_of).view(-1, self.n * heads, self.head_dim)
        prompt_scores = torch.baddbmm(self.prompt_mask, gathered, cache.prompt_keys.transpose(1, 2))
        prompt_scores = prompt_scores.view(-1, heads, self.width).index_select(0, self.slot_of)
        own_scores = torch.baddbmm(self.own_mask[..., :used], query, cache.keys[:, :used].transpose(1, 2))
        weights = torch.cat((prompt_scores, own_scores), -1).softmax(-1)
        gathered = weights[..., : self.width].index_select(0, self.row_of)
        attended = torch.bmm(gathered.view(-1, self.n * heads, self.width), cache.prompt_values)
        attended = attended.view(-1, heads, self.head_dim).index_select(0, self.slot_of)
        return torch.baddbmm(attended, weights[..., self.width :], cache.values[:, :used])

    def keep(self, rows: Tensor) -> None:
        prompts, self.prompt = self.prompt[rows].unique(return_inverse=True)
        self.place, self.position = self.place[rows], self.position[rows]
        prompt_heads, row_heads = self._heads(prompts), self._heads(rows)
        self.own_mask = self.own_mask[row_heads]
        for cache in self.caches:
            if len(prompt_heads) < len(self.prompt_mask):
                cache.prompt_keys = cache.prompt_keys[prompt_heads]
                cache.prompt_values = cache.prompt_values[prompt_heads]
            cache.keys, cache.values = (
                rows_of(own, row_heads, self.ring.used, self.ring.budget)
                for own in (cache.keys, cache.values)
            )
        self.prompt_mask = self.prompt_mask[prompt_heads]
        self._index()

    def read(self, row: int, prompt: int, born: int, count: int) -> States:
        own, columns = self._heads(torch.tensor([row])), self.ring.columns(born, count)
        shared = self._heads(self.prompt[row : row + 1])
        return [
            (
                torch.cat((cache.prompt_keys[shared, self.width - prompt :], cache.keys[own][:, columns]), 1),
                torch.cat(
                    (cache.prompt_values[shared, self.width - prompt :], cache.values[own][:, columns]), 1
                ),
            )
            for cache in self.caches
        ]

    def _heads(self, index: Tensor) -> Tensor:
        """Indices of the K key-value heads of the given rows or prompts."""
        return (index[:, None] * self.kv_heads + torch.arange(self.kv_heads, device=index.device)).flatten()

    def _index(self) -> None:
        """Maps row r's head k to its slot (prompt, k, place) among the queries gathered by prompt, and back.

        slot_of: [B * K]. row_of: [P * K * n], its inverse; slots of finished rows point to row 0 and are not read.
        """
        prompt_heads = self._heads(self.prompt).view(-1, self.kv_heads)
        self.slot_of = (prompt_heads * self.n + self.place[:, None]).flatten()
        rows = torch.arange(len(self.slot_of), device=self.slot_of.device)
        self.row_of = rows.new_zeros(len(self.prompt_mask) * self.n)
        self.row_of[self.slot_of] = rows


def normalized(norm: Any, states: Tensor) -> Tensor:
    """An RMSNorm module's output (arXiv:1910.07467) in one pass; its own forward takes six."""
    return functional.rms_norm(
        states.to(norm.weight.dtype), norm.weight.shape, norm.weight, norm.variance_epsilon
    )


def rotated(states: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotary position embedding (arXiv:2104.09864) of [B, heads, D]; pairs are (i, i + D/2)."""
    return states * cos + states.roll(states.shape[-1] // 2, -1) * signed_sin
