"""Decoding a batch: every row of it takes one token at a time, and gives the logits of the next.

`LlamaDecoder` (rl/engines/decode_llama.py) is for the models whose layers it knows; `ModelDecoder` is for all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import CompileConfig, DynamicCache, PreTrainedModel

from rl.engines.cache import bytes_per_token, preallocate
from rl.engines.decode_llama import LlamaDecoder, decodes

# One graph for all batch sizes and lengths. CUDA graphs would need both to stay as they are.
COMPILED = CompileConfig(dynamic=True, mode="default")


class Decoder(Protocol):
    """B rows whose prompts the model has read."""

    def step(self, tokens: Tensor) -> Tensor:
        """Appends one token [B] to each row; the logits [B, V] of the next."""

    def keep(self, rows: Tensor) -> None:
        """Goes on with the given rows only, an increasing index into the B of now."""


def prefill(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], n: int, budget: int, compiled: bool
) -> tuple[Decoder, Tensor]:
    """A decoder of n rows a prompt, those of one prompt next to each other, and the logits [P, V] after each prompt."""
    width = max(map(len, prompts))
    # Prompts are padded on the left, so that every row writes the same cache column at the same time.
    input_ids = torch.zeros(len(prompts), width, dtype=torch.long)
    visible = torch.zeros(len(prompts), width, dtype=torch.bool)
    for p, prompt in enumerate(prompts):
        input_ids[p, width - len(prompt) :] = torch.tensor(prompt)
        visible[p, width - len(prompt) :] = True
    input_ids, visible = input_ids.to(model.device), visible.to(model.device)
    cache = DynamicCache(config=model.config)
    logits = model(
        input_ids=input_ids,
        attention_mask=visible.long(),
        position_ids=visible.long().cumsum(-1).sub(1).clamp(min=0),
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    if decodes(model) and not compiled:
        return LlamaDecoder(model, cache, visible, n, budget), logits
    return ModelDecoder(model, cache, visible, n, budget, compiled), logits


def cache_bytes(model: PreTrainedModel, prompt_length: int, n: int, budget: int, compiled: bool) -> int:
    """Keys and values of one prompt and its n completions."""
    copies = 1 if decodes(model) and not compiled else n
    return (copies * prompt_length + n * budget) * bytes_per_token(model.config, model.dtype)


class ModelDecoder:
    """Any causal language model: its own forward pass, with a cache in which each row has its own prompt.

    compiled: the pass goes through torch.compile, once for all batch sizes and lengths.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: DynamicCache,
        visible: Tensor,
        n: int,
        budget: int,
        compiled: bool,
    ) -> None:
        prompts, self.length = visible.shape  # columns of the cache in use, the same for all rows
        spread = torch.arange(prompts, device=visible.device).repeat_interleave(n)
        self.model = model
        self.forward: Any = model.get_compiled_call(COMPILED) if compiled else model
        preallocate(cache, spread, self.length + budget)
        self.cache = cache
        self.visible = torch.cat((visible[spread], visible.new_ones(len(spread), budget)), -1)
        self.position = visible.sum(-1)[spread, None]

    def step(self, tokens: Tensor) -> Tensor:
        self.length += 1
        logits = self.forward(
            input_ids=tokens[:, None],
            attention_mask=self._mask(self.visible[:, : self.length]),
            position_ids=self.position,
            cache=self.cache,
            use_cache=True,
        ).logits[:, -1]
        self.position = self.position + 1
        return logits

    def keep(self, rows: Tensor) -> None:
        self.cache.reorder_cache(rows)  # type: ignore[arg-type]
        self.visible, self.position = self.visible[rows], self.position[rows]

    def _mask(self, visible: Tensor) -> Tensor:
        """The mask of one new token over [B, L] cache columns.

        A ready four-dimensional mask spares the model rebuilding one at every token. It has this form for sdpa only,
        and sliding-window layers need one of their own: other models get the plain mask and build theirs.
        """
        layer_types = getattr(self.model.config.get_text_config(), "layer_types", None) or []
        sliding = any(kind != "full_attention" for kind in layer_types)
        if self.model.config._attn_implementation != "sdpa" or sliding:
            return visible.long()
        return visible[:, None, None, :]
