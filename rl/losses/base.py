"""Losses as coefficients: ``L = - sum_n sum_t coef[n,t] * f(rho[n,t])``, a plain SUM.

``rho = exp(logprobs - behavior_logprobs)``. All normalisation lives in the coefficients, which are computed once over
the complete batch, so that micro-batches, accumulation and sharding cannot change the gradient. One loss a file.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.errors import UserError
from rl.losses.correction import Correction, require_bounds
from rl.rollouts import Rollout, TrainingRow, training_row

if TYPE_CHECKING:
    from torch import Tensor

PROBABILITY_FLOOR = 1e-6
# exp(20) is far beyond any ratio that carries signal; the bound keeps a wild token's gradient finite.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Surrogate:
    """One micro-batch of B rows.

    loss: scalar, the SUM over rows and tokens; its gradient adds up over micro-batches.
    sequence_kl: [B] mean Bernoulli KL (nats) between the behaviour and the current probability of the sampled tokens.
    admitted: [B] whether the row's gradient passed the loss's trust region.
    log_ratio: [B, T] logprobs - behavior_logprobs, 0 outside the mask.
    """

    loss: Tensor
    sequence_kl: Tensor
    admitted: Tensor
    log_ratio: Tensor


@dataclass(frozen=True, kw_only=True)
class PolicyLoss(ABC):
    """What every loss has: a weight for each rollout of the batch, and an objective for each token.

    name: what it is called in messages and metrics. updates_per_batch: optimiser steps on one batch. correction,
    correction_bounds: for a sampler that differs from the learner (rl/losses/correction.py); None: the published bounds.
    needs_groups: the baseline is the group's, so a group of one carries no signal. needs_entropies, needs_verdicts:
    whether it reads each token's entropy, and whether a rollout is correct. needs_reference: it has a KL penalty, for which
    the learner scores each batch with the reference policy too. reads_parts: it compares the rewards of a set one by one.
    """

    name: str
    updates_per_batch: int = 1
    correction: Correction = "none"
    correction_bounds: tuple[float, float] | None = None

    needs_groups = True
    needs_entropies = False
    needs_verdicts = False
    needs_reference = False
    reads_parts = False

    def __post_init__(self) -> None:
        if self.updates_per_batch < 1:
            raise UserError(
                f"loss.updates_per_batch={self.updates_per_batch}: expected a positive integer; e.g. loss.updates_per_batch=1"
            )
        require_bounds(self.correction, self.correction_bounds)

    @property
    def has_gate(self) -> bool:
        """Whether rows may be rejected, so that they are scored before each update."""
        return type(self).admit is not PolicyLoss.admit

    @property
    def passes(self) -> int:
        """Passes over each row, for scoring and for training."""
        return self.updates_per_batch * (2 if self.has_gate else 1) + (self.correction != "none")

    def scores(self, rollouts: Sequence[Rollout], reward_weights: Mapping[str, float]) -> list[float]:
        """[N] the rewards that `weights` compares: the weighted sums. reward_weights: of each key of `rollout.rewards`."""
        return [rollout.reward for rollout in rollouts]

    @abstractmethod
    def weights(
        self, rewards: Sequence[float], groups: Sequence[int], lengths: Sequence[int], budget: int
    ) -> list[float]:
        """[N] the coefficient that each token of a rollout gets, from the complete batch.

        rewards: [N]. groups: [N] which rollouts share a problem. lengths: [N] sampled tokens T_n. budget: the token
        budget that the batch was sampled with.
        """

    @abstractmethod
    def objective(self, logprobs: Tensor, log_ratio: Tensor, coefficients: Tensor, mask: Tensor) -> Tensor:
        """[B, T] contribution of each token to the quantity that is maximised; all arguments are [B, T], 0 outside `mask`."""

    def kl_weights(self, lengths: Sequence[int], budget: int) -> list[float]:
        """[N] what the KL divergence at one token of a rollout adds to the loss; 0 where there is no penalty."""
        return [0.0] * len(lengths)

    def retained(self, rollout: Rollout) -> Sequence[bool] | None:
        """[T_n] which of a rollout's sampled tokens train; None: all of them."""
        return None

    def admit(self, sequence_kl: Tensor) -> Tensor:
        """[B] the rows inside the trust region; losses without one admit all."""
        return sequence_kl.new_ones(sequence_kl.shape).bool()

    def metrics(self, log_ratio: Tensor, coefficients: Tensor) -> dict[str, float]:
        """Metrics of its own, by name, from all sampled tokens of an update [sum of T_n]; {} for none."""
        return {}

    def surrogate(
        self, logprobs: Tensor, behavior_logprobs: Tensor, coefficients: Tensor, mask: Tensor
    ) -> Surrogate:
        """The loss of B rows of T tokens; everything is [B, T], `mask` is True on sampled tokens.

        Computed in float32 at least, whatever the model's dtype. Values outside `mask` may be anything, NaN included.
        """
        import torch

        dtype = torch.promote_types(logprobs.dtype, torch.float32)
        zero = torch.zeros((), dtype=dtype, device=logprobs.device)
        current = torch.where(mask, logprobs.to(dtype), zero)
        behavior = torch.where(mask, behavior_logprobs.to(dtype), zero)
        coefficients = torch.where(mask, coefficients.to(dtype), zero)

        sequence_kl = bernoulli_kl(behavior, current.detach()).mul(mask).sum(-1) / mask.sum(-1).clamp(min=1)
        admitted = self.admit(sequence_kl)
        coefficients = coefficients * admitted[:, None]
        log_ratio = (current - behavior).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        loss = -self.objective(current, log_ratio, coefficients, mask).sum()
        return Surrogate(loss, sequence_kl, admitted, (current - behavior).detach())


def weigh(
    rollouts: Sequence[Rollout],
    loss: PolicyLoss,
    budget: int,
    reward_weights: Mapping[str, float] | None = None,
    mask_truncated: bool = False,
) -> list[TrainingRow]:
    """The complete batch of N rollouts as training rows: one coefficient for each sampled token.

    reward_weights: of each reward of the set, for losses that read them one by one. mask_truncated: rollouts that the
    budget cut get coefficients of 0, and no KL penalty.
    """
    weights = rollout_weights(rollouts, loss, budget, reward_weights, mask_truncated)
    kl_weights = loss.kl_weights([r.length for r in rollouts], budget)
    rows = []
    for rollout, weight, kl_weight in zip(rollouts, weights, kl_weights, strict=True):
        retained = loss.retained(rollout)
        coefficients = [weight] * rollout.length if retained is None else [weight * keep for keep in retained]
        masked = mask_truncated and rollout.truncated
        rows.append(training_row(rollout, coefficients, 0.0 if masked else kl_weight))
    return rows


def rollout_weights(
    rollouts: Sequence[Rollout],
    loss: PolicyLoss,
    budget: int,
    reward_weights: Mapping[str, float] | None = None,
    mask_truncated: bool = False,
) -> list[float]:
    """[N] what each token of a rollout weighs; arguments as in `weigh`. A rollout of weight 0 teaches nothing."""
    groups, lengths = [r.group for r in rollouts], [r.length for r in rollouts]
    weights = loss.weights(loss.scores(rollouts, reward_weights or {}), groups, lengths, budget)
    return [
        0.0 if mask_truncated and r.truncated else weight for r, weight in zip(rollouts, weights, strict=True)
    ]


def bernoulli_kl(behavior_logprobs: Tensor, logprobs: Tensor) -> Tensor:
    """KL(behaviour || current) in nats of the event "this token was sampled", elementwise, probabilities kept off 0 and 1."""
    p = behavior_logprobs.exp().clamp(PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    q = logprobs.exp().clamp(PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    return p * (p.log() - q.log()) + (1 - p) * ((-p).log1p() - (-q).log1p())


def highest_entropy(entropies: Sequence[float], fraction: float) -> list[bool]:
    """[T] marks the ceil(fraction * T) tokens of highest entropy, ties by position."""
    # The tiny margin keeps a product such as 0.2 * 15 = 3.0000000000000004 from counting one token too many.
    count = math.ceil(fraction * len(entropies) - 1e-9)
    ranked = sorted(range(len(entropies)), key=lambda t: (-entropies[t], t))
    kept = set(ranked[:count])
    return [t in kept for t in range(len(entropies))]
