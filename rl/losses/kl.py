"""The KL penalty to the reference policy: the model as it was before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.errors import UserError
from rl.losses.base import PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

# Beyond it exp(reference - current) would leave float32; such a token is kept finite.
MAX_DIFFERENCE = 20.0


def require_reference(loss: PolicyLoss, has_adapter: bool) -> None:
    """Raises UserError when the loss needs a reference policy and there is no adapter that can be turned off."""
    if loss.needs_reference and not has_adapter:
        raise UserError(
            "model.lora=null: the reference policy of loss.kl_beta is the model with its adapter off, and no second model is"
            " loaded; type loss.kl_beta=0, or model.lora.rank=32"
        )


def token_kl(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """KL(current || reference) in nats, estimated at each sampled token, same shape: exp(d) - d - 1, d = reference - current.

    The k3 estimator of J. Schulman, "Approximating KL divergence" (2020), as in equation 4 of DeepSeekMath
    (arXiv:2402.03300): never negative, its gradient 1 - exp(d) times that of the log-probability.
    """
    difference = (reference_logprobs - logprobs).clamp(max=MAX_DIFFERENCE)
    return difference.expm1() - difference
