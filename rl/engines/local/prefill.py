"""Prefill of a batch's prompts in one forward pass, and the interface of decoders that continue from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


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


def prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> Prefill:
    """One forward pass over all prompts."""
    width = max(map(len, prompts))
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
    return Prefill(cache, visible, logits)
