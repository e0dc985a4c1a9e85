"""Prefill of a batch's prompts in one forward pass, and the interface of decoders that continue from it.

What is known of a prompt from the turn before (rl/engines/local/histories.py) is not computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rl.engines.local.histories import Known, States


@dataclass
class Prefill:
    """P prompts that the model has read, padded on the left to W tokens.

    cache: their keys and values. visible: [P, W], False at padding. logits: [P, V] of the first completion token.
    """

    cache: DynamicCache
    visible: Tensor
    logits: Tensor


class Decoder(Protocol):
    """B rows, at first n per prompt. All rows write to the same cache column at the same time.

    admits: whether it can add prompts while decoding.
    """

    admits: bool

    def step(self, tokens: Tensor) -> Tensor:
        """Appends one token [B] to each row and returns the logits [B, V] of the next."""

    def keep(self, rows: Tensor) -> None:
        """Keeps only the given rows. rows: increasing indices into the current B."""

    def admit(self, more: Prefill) -> None:
        """Adds n rows per new prompt, none longer than the longest of the first prompts."""

    def read(self, row: int, prompt: int, born: int, count: int) -> States:
        """A row's states: those of its `prompt` tokens, and of the `count` tokens it was fed from step `born` on.

        Only where `admits` is True.
        """


def prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]], known: Sequence[Known] = ()) -> Prefill:
    """One forward pass over what is new of each prompt. known: [P] what earlier turns left; () for nothing."""
    known = known or [Known() for _ in prompts]
    fresh = [prompt[found.reused :] for prompt, found in zip(prompts, known, strict=True)]
    past, width = max(found.reused for found in known), max(map(len, fresh))
    input_ids = torch.zeros(len(prompts), width, dtype=torch.long)
    visible = torch.zeros(len(prompts), past + width, dtype=torch.bool)
    for p, (found, new) in enumerate(zip(known, fresh, strict=True)):
        input_ids[p, width - len(new) :] = torch.tensor(new)
        visible[p, past - found.reused : past] = True
        visible[p, past + width - len(new) :] = True
    input_ids, visible = input_ids.to(model.device), visible.to(model.device)
    cache = DynamicCache(config=model.config)
    if past:
        restore(cache, known, past)
    logits = model(
        input_ids=input_ids,
        attention_mask=visible.long(),
        position_ids=visible.long().cumsum(-1).sub(1).clamp(min=0)[:, past:],
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    if past:
        visible = close_gaps(cache, visible)
    return Prefill(cache, visible, logits)


def restore(cache: DynamicCache, known: Sequence[Known], past: int) -> None:
    """Fills a cache with the known states of P prompts, padded on the left to `past` tokens."""
    whole = next(found.states for found in known if found.reused and found.states)
    for index, layer in enumerate(whole):
        keys, values = (part.new_zeros(len(known), part.shape[0], past, part.shape[-1]) for part in layer)
        for p, found in enumerate(known):
            if found.states and found.reused:
                for buffer, part in zip((keys, values), found.states[index], strict=True):
                    buffer[p, :, past - found.reused :] = part[:, : found.reused]
        cache.update(keys, values, index)


def close_gaps(cache: DynamicCache, visible: Tensor) -> Tensor:
    """Moves the padding between known and new tokens to the left; returns the new `visible`."""
    width = int(visible.sum(-1).max())
    order = visible.int().argsort(dim=-1, stable=True)[:, -width:]  # padding first, then the tokens in order
    layers: Any = cache.layers
    for layer in layers:
        index = order[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[-1])
        layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
    return visible.gather(1, order)
