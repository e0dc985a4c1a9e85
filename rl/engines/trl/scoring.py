"""Log-probabilities through TRL's trainer, under the policy and under the reference of the KL penalty."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from rl.errors import UserError
from rl.losses.kl import token_kl

log = logging.getLogger("tanka")

# Largest on-policy difference in nats between sampler and learner, in float32. Rounding gives 5e-6 for the embedded
# model, more for deeper ones. Above SAME_POLICY the run warns; above OFF_POLICY it cannot be rounding, and the run ends.
SAME_POLICY, OFF_POLICY = 1e-5, 1e-3


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
    with use_adapter(adapter, adapter_name=None):
        return policy_logprobs(trainer, inputs)


def policy_logprobs(trainer: GRPOTrainer, inputs: dict[str, Tensor]) -> Tensor:
    """[B, T] under the current weights, without gradients, one micro-batch of rows at a time."""
    rows = trainer.args.per_device_train_batch_size
    parts = [
        {name: values[start : start + rows] for name, values in inputs.items()}
        for start in range(0, len(inputs["row"]), rows)
    ]
    with torch.no_grad():
        return torch.cat([completion_logprobs(trainer, trainer.model, part) for part in parts])


def reference_kl(logprobs: Tensor, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The KL penalty of a micro-batch, a SUM over its tokens, and [C] the KL at each of its C sampled tokens."""
    mask = inputs["sampled"]
    divergence = token_kl(logprobs[mask], inputs["reference_logprobs"][mask])
    weights = inputs["kl_weight"][:, None].expand(mask.shape)[mask]
    return weights @ divergence, divergence.detach()


def require_same_policy(difference: float, rounded: bool, leads: bool) -> None:
    """Logs how far learner and sampler differ before the first update; raises UserError if too far.

    difference: max |log rho|, nats. rounded: the two may differ by more than float32's rounding. leads: on rank 0.
    """
    if leads:
        level = logging.INFO if rounded or difference <= SAME_POLICY else logging.WARNING
        log.log(level, "sampler against learner before the first update: max |log rho| %.2g", difference)
    if not rounded and not difference <= OFF_POLICY:
        raise UserError(
            f"engine=trl: sampler and learner differ by {difference:.2g} nats on a token before the first update, in"
            " float32; type engine.attn_implementation=eager, or engine=local"
        )
