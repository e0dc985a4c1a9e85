"""The precision of matrix products: bfloat16 where it is faster, the same in sampler and learner."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

log = logging.getLogger("tanka")

# Smaller models spend their time outside of matrix products: casting makes them slower.
WORTH_A_TRIAL = 20_000_000
# bfloat16 costs accuracy, so a CPU must gain clearly by it.
CLEARLY_FASTER = 0.7
TRIAL_TOKENS, TRIAL_ROUNDS = 512, 3


@dataclass
class Precision:
    """compute: of the matrix products of a sampler and its learner, which share this object. `load` may change it."""

    compute: torch.dtype = torch.float32


def autocast(device: torch.device, compute: torch.dtype) -> torch.autocast:
    """Matrix products in `compute`. Sampler and learner both use it, so that their ratio is near 1 on policy."""
    return torch.autocast(device.type, torch.bfloat16, enabled=compute == torch.bfloat16)


@contextmanager
def sampling_in(model: PreTrainedModel, compute: torch.dtype, compiled: bool = False) -> Iterator[None]:
    """`autocast`, and linear layers with float32 weights keep a copy of them in `compute` meanwhile.

    autocast alone would cast every weight again for every token, which takes longer than the products themselves. compiled:
    by torch.compile, which casts inside its graph, and would compile again for other layers.
    """
    with autocast(model.device, compute), ExitStack() as copies:
        if compute != torch.float32 and not compiled:
            for module in model.modules():
                if type(module) is nn.Linear and module.weight.dtype == torch.float32:
                    copies.enter_context(_cast(module, compute))
        yield


@contextmanager
def _cast(linear: nn.Linear, compute: torch.dtype) -> Iterator[None]:
    """Inside, the layer computes with a copy of its weights in `compute`."""
    weight, bias = (None if own is None else own.detach().to(compute) for own in (linear.weight, linear.bias))
    linear.forward = partial(functional.linear, weight=weight, bias=bias)  # type: ignore[method-assign, arg-type]
    try:
        yield
    finally:
        del linear.forward


def compute_dtype(model: PreTrainedModel, wanted: Literal["auto", "float32", "bfloat16"]) -> torch.dtype:
    """What `engine.compute=wanted` means for `model` on its device.

    `auto`: bfloat16 on a GPU and for bfloat16 weights; on a CPU whatever a short trial finds faster.
    """
    if wanted != "auto":
        return getattr(torch, wanted)
    if model.device.type == "cuda" or model.dtype == torch.bfloat16:
        return torch.bfloat16
    if model.device.type != "cpu" or model.num_parameters() < WORTH_A_TRIAL:
        return torch.float32
    config = model.config.get_text_config()
    share = bfloat16_share(config.hidden_size, config.intermediate_size)
    chosen = torch.bfloat16 if share <= CLEARLY_FASTER else torch.float32
    log.info(
        "computing in %s: bfloat16 took %.2f of float32's time in a trial (engine.compute=float32 for exact log-probabilities)"
        if chosen == torch.bfloat16
        else "computing in %s: bfloat16 took %.2f of float32's time in a trial",
        str(chosen).removeprefix("torch."),
        share,
    )
    return chosen


def bfloat16_share(inputs: int, outputs: int) -> float:
    """bfloat16's time over float32's for one trained layer of `inputs` x `outputs`; the best of a few turns each."""
    weight = torch.randn(outputs, inputs, requires_grad=True)
    states = torch.randn(TRIAL_TOKENS, inputs, requires_grad=True)
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for _ in range(TRIAL_ROUNDS):
        for compute in best:
            start = time.perf_counter()
            with autocast(weight.device, compute):
                functional.linear(states, weight).sum().backward()
            best[compute] = min(best[compute], time.perf_counter() - start)
    return best[torch.bfloat16] / best[torch.float32]
