"""Log-probabilities through TRL's trainer, under the policy and under the reference of the KL penalty."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from rl.losses.kl import token_kl


def completion_logprobs(trainer: GRPOTrainer, model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """[B, T] of the response tokens, at the sampling temperature."""
    mask = inputs["completion_mask"]
    logprobs, _, _ = trainer._get_per_token_logps_and_entropies(
        model,
        torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        torch.cat([inputs["prompt_mask"], mask], dim=1),
        mask.size(1),
    )
    return logprobs


def reference_logprobs(trainer: GRPOTrainer, inputs: dict[str, Tensor]) -> Tensor:
    """[B, T] the same with the adapter turned off, one micro-batch of rows at a time."""
    adapter: Any = trainer.accelerator.unwrap_model(trainer.model)
    rows = trainer.args.per_device_train_batch_size
    parts = [
        {name: values[start : start + rows] for name, values in inputs.items()}
        for start in range(0, len(inputs["row"]), rows)
    ]
    with torch.no_grad(), use_adapter(adapter, adapter_name=None):
        return torch.cat([completion_logprobs(trainer, trainer.model, part) for part in parts])


def reference_kl(logprobs: Tensor, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The KL penalty of a micro-batch, a SUM over its tokens, and [C] the KL at each of its C sampled tokens."""
    mask = inputs["sampled"]
    divergence = token_kl(logprobs[mask], inputs["reference_logprobs"][mask])
    weights = inputs["kl_weight"][:, None].expand(mask.shape)[mask]
    return weights @ divergence, divergence.detach()
