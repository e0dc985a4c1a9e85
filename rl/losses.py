"""Losses as coefficients: ``L = - sum_n sum_t coef[n,t] * f(rho[n,t])``, a plain SUM.

``rho = exp(logprobs - behavior_logprobs)``. All normalisation lives in the coefficients, which are computed once over
the complete batch, so that micro-batches, accumulation and sharding cannot change the gradient.

Sources: GRPO, DeepSeekMath (arXiv:2402.03300) section 4.1; Dr.GRPO, "Understanding R1-Zero-like training"
(arXiv:2503.20783) section 3; the clipped objective, PPO (arXiv:1707.06347) section 3; FlashREINFORCE, its published
recipe (one rollout a prompt, batch-centred rewards, a sequence trust region on the mean Bernoulli KL).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from rl.errors import UserError
from rl.rollouts import Rollout, TrainingRow

if TYPE_CHECKING:
    from torch import Tensor

STD_EPSILON = 1e-4
PROBABILITY_FLOOR = 1e-6
# exp(20) is far beyond any ratio that carries signal; the bound keeps a wild token's gradient finite.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Surrogate:
    """One micro-batch of B rows.

    loss: scalar, the SUM over rows and tokens; its gradient adds up over micro-batches.
    sequence_kl: [B] mean Bernoulli KL (nats) between the behaviour and the current probability of the sampled tokens.
    admitted: [B] whether the row's gradient passed the loss's trust region.
    log_ratio: [B, T] logprobs - behavior_logprobs, 0 at padding.
    """

    loss: Tensor
    sequence_kl: Tensor
    admitted: Tensor
    log_ratio: Tensor


@dataclass(frozen=True, kw_only=True)
class PolicyLoss(ABC):
    """What every loss has: an advantage for each rollout, a weight for it, and an objective for each token."""

    name: str
    updates_per_batch: int = 1

    needs_groups = True  # the baseline is the group's, so a group of one would carry no signal
    needs_entropies = False

    def __post_init__(self) -> None:
        if self.updates_per_batch < 1:
            raise UserError(
                f"loss.updates_per_batch={self.updates_per_batch}: expected a positive integer; e.g. loss.updates_per_batch=1"
            )

    @abstractmethod
    def advantages(self, rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
        """[N] advantages from [N] rewards; `groups` [N] says which rollouts share a prompt."""

    @abstractmethod
    def scale(self, advantage: float, length: int, count: int, max_tokens: int) -> float:
        """The coefficient of each of a rollout's `length` tokens, in a batch of `count` rollouts."""

    @abstractmethod
    def objective(self, logprobs: Tensor, log_ratio: Tensor, coefficients: Tensor) -> Tensor:
        """[B, T] contribution of each token to the quantity that is maximised."""

    def retained(self, rollout: Rollout) -> Sequence[bool] | None:
        """Which of a rollout's tokens train; None: all of them."""
        return None

    def admit(self, sequence_kl: Tensor) -> Tensor:
        """[B] the rows inside the trust region; losses without one admit all."""
        return sequence_kl.new_ones(sequence_kl.shape).bool()

    def surrogate(
        self, logprobs: Tensor, behavior_logprobs: Tensor, coefficients: Tensor, mask: Tensor
    ) -> Surrogate:
        """The loss of B rows of T tokens; everything is [B, T], `mask` is True on completion tokens.

        Computed in float32 at least, whatever the model's dtype. Padding may hold anything, NaN included.
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
        loss = -self.objective(current, log_ratio, coefficients).sum()
        return Surrogate(loss, sequence_kl, admitted, (current - behavior).detach())


@dataclass(frozen=True, kw_only=True)
class FlashReinforce(PolicyLoss):
    """FlashREINFORCE: reward minus the batch mean, token importance weights, a sequence trust region, sample means.

    delta: a row whose mean Bernoulli KL exceeds it is rejected but still counts in N; inf turns the gate off.
    negative_token_fraction: a failed rollout trains only on this share of its tokens, those of highest entropy.
    """

    name: str = "flashreinforce"
    delta: float = 3e-3
    negative_token_fraction: float = 1.0

    needs_groups = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.updates_per_batch != 1:
            raise UserError(
                f"loss.updates_per_batch={self.updates_per_batch}: flashreinforce takes one optimiser step a batch and"
                " discards it; use loss.updates_per_batch=1, or loss=grpo"
            )
        if not self.delta > 0:
            raise UserError(
                f"loss.delta={self.delta}: expected a positive number (inf: no gate); e.g. loss.delta=3e-3"
            )
        if not 0 < self.negative_token_fraction <= 1:
            raise UserError(
                f"loss.negative_token_fraction={self.negative_token_fraction}: expected a share in (0, 1];"
                " e.g. loss.negative_token_fraction=1.0"
            )

    @property
    def needs_entropies(self) -> bool:  # type: ignore[override]
        return self.negative_token_fraction < 1

    def advantages(self, rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
        mean = fmean(rewards)
        return [0.0] * len(rewards) if len(set(rewards)) == 1 else [reward - mean for reward in rewards]

    def scale(self, advantage: float, length: int, count: int, max_tokens: int) -> float:
        return advantage / (count * length)

    def retained(self, rollout: Rollout) -> Sequence[bool] | None:
        if not self.needs_entropies or rollout.verdict.correct:
            return None
        assert rollout.completion.entropies is not None, "the sampler was asked for entropies"
        return highest_entropy(rollout.completion.entropies, self.negative_token_fraction)

    def admit(self, sequence_kl: Tensor) -> Tensor:
        return sequence_kl <= self.delta

    def objective(self, logprobs: Tensor, log_ratio: Tensor, coefficients: Tensor) -> Tensor:
        # The ratio weighs the score function; it is not differentiated and not clipped.
        return coefficients * log_ratio.detach().exp() * logprobs


@dataclass(frozen=True, kw_only=True)
class GRPO(PolicyLoss):
    """Group-relative advantages scaled by the group's sample standard deviation, clipped, averaged by sequence.

    clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high]; 1 and inf leave it as it is.
    """

    name: str = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.clip_low <= 1:
            raise UserError(
                f"loss.clip_low={self.clip_low}: expected a number in (0, 1]; e.g. loss.clip_low=0.2"
            )
        if not self.clip_high > 0:
            raise UserError(
                f"loss.clip_high={self.clip_high}: expected a positive number; e.g. loss.clip_high=0.2"
            )

    def advantages(self, rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
        members: dict[int, list[float]] = {}
        for reward, group in zip(rewards, groups, strict=True):
            members.setdefault(group, []).append(reward)
        means = {group: fmean(values) for group, values in members.items()}
        # A uniform group's advantage is exactly 0: rounding in the mean must not become signal once divided by the spread.
        spreads = {
            group: 0.0 if len(set(values)) == 1 else self.spread(values) for group, values in members.items()
        }
        return [
            (reward - means[group]) / spreads[group] if spreads[group] else 0.0
            for reward, group in zip(rewards, groups, strict=True)
        ]

    def spread(self, rewards: Sequence[float]) -> float:
        """What a group's centred rewards are divided by."""
        return stdev(rewards) + STD_EPSILON

    def scale(self, advantage: float, length: int, count: int, max_tokens: int) -> float:
        return advantage / (count * length)

    def objective(self, logprobs: Tensor, log_ratio: Tensor, coefficients: Tensor) -> Tensor:
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return (coefficients * ratio).minimum(coefficients * clipped)


@dataclass(frozen=True, kw_only=True)
class DrGRPO(GRPO):
    """GRPO without its two biases: no division by the spread, and the token budget as the constant divisor."""

    name: str = "dr_grpo"

    def spread(self, rewards: Sequence[float]) -> float:
        return 1.0

    def scale(self, advantage: float, length: int, count: int, max_tokens: int) -> float:
        return advantage / (count * max_tokens)


def weigh(rollouts: Sequence[Rollout], loss: PolicyLoss, max_tokens: int) -> list[TrainingRow]:
    """Advantages over the complete batch of N rollouts, as one coefficient for each token."""
    advantages = loss.advantages([r.reward for r in rollouts], [r.group for r in rollouts])
    rows = []
    for rollout, advantage in zip(rollouts, advantages, strict=True):
        tokens = rollout.completion.tokens
        scale = loss.scale(advantage, len(tokens), len(rollouts), max_tokens)
        retained = loss.retained(rollout)
        coefficients = [scale] * len(tokens) if retained is None else [scale * keep for keep in retained]
        rows.append(TrainingRow(rollout.prompt_tokens, tokens, rollout.completion.logprobs, coefficients))
    return rows


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
