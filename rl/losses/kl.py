"""The KL penalty to the reference policy: the model as it was before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Beyond it exp(reference - current) would leave float32; such a token is kept finite.
MAX_DIFFERENCE = 20.0


def token_kl(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """KL(current || reference) in nats, estimated at each sampled token, same shape: exp(d) - d - 1, d = reference - current.

    The k3 estimator of J. Schulman, "Approximating KL divergence" (2020), as in equation 4 of DeepSeekMath
    (arXiv:2402.03300): never negative, its gradient 1 - exp(d) times that of the log-probability.
    """
    difference = (reference_logprobs - logprobs).clamp(max=MAX_DIFFERENCE)
    return difference.expm1() - difference
