"""Log-probabilities of tokens, with a gradient that needs no memory of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class TokenLogprobs(torch.autograd.Function):
    """[K] log-probabilities of `targets` [K] under `logits` [K, V].

    d log p_t / d logits = onehot_t - p. Autograd would allocate two more [K, V] tensors for it; here the gradient
    overwrites the tensor saved by the forward pass.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        logprobs = logits.log_softmax(-1)
        ctx.save_for_backward(logprobs, targets[:, None])
        return logprobs.gather(-1, targets[:, None]).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logprobs, targets = ctx.saved_tensors
        scale = gradient[:, None]
        return logprobs.exp_().mul_(-scale).scatter_add_(-1, targets, scale), None
