"""FlashREINFORCE, its published recipe: one rollout a prompt, batch-centred rewards, a sequence trust region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from rl.errors import UserError
from rl.losses.base import PolicyLoss, highest_entropy
from rl.rollouts import Rollout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class FlashReinforce(PolicyLoss):
    """FlashREINFORCE: reward minus the batch mean, token importance weights, a sequence trust region, sample means.

    delta: a row whose mean Bernoulli KL exceeds it is rejected but still counts in N; inf turns the gate off.
    negative_token_fraction: a failed rollout trains only on this share of its tokens, those of highest entropy.
    weighting: the mean over each rollout's tokens and then over rollouts (`sample_mean`), or over all tokens of the batch
    (`token_mean`). allow_unstable: accept what the recipe advises against (docs/flashreinforce.md), to see its effect.
    """

    name: str = "flashreinforce"
    delta: float = 3e-3
    negative_token_fraction: float = 1.0
    weighting: Literal["sample_mean", "token_mean"] = "sample_mean"
    allow_unstable: bool = False

    needs_groups = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correction not in ("none", "recomputed"):
            raise UserError(
                f"loss.correction={self.correction}: flashreinforce already weighs each token by learner over sampler and has"
                " a trust region of its own; type loss.correction=none, or loss=grpo"
            )
        risks = {
            f"updates_per_batch={self.updates_per_batch}: flashreinforce takes one optimiser step a batch and discards it;"
            " later ones follow a gradient that nothing clips; use loss.updates_per_batch=1": self.updates_per_batch
            > 1,
            "weighting=token_mean: long rollouts, mostly failed ones, outweigh short ones; use"
            " loss.weighting=sample_mean": self.weighting == "token_mean",
            "correction=recomputed: the trust region then compares the learner with itself, and weights that the sampler"
            " had earlier go unnoticed; use loss.correction=none": self.correction == "recomputed",
        }
        for risk, chosen in risks.items():
            if chosen and not self.allow_unstable:
                raise UserError(f"loss.{risk}, or loss.allow_unstable=true to try it")
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

    @property
    def needs_verdicts(self) -> bool:  # type: ignore[override]
        return self.negative_token_fraction < 1

    def weights(
        self, rewards: Sequence[float], groups: Sequence[int], lengths: Sequence[int], budget: int
    ) -> list[float]:
        """(R - mean R) / (N T_n), or / sum T with `token_mean`."""
        if len(set(rewards)) == 1:
            return [0.0] * len(rewards)  # rounding in the mean must not become signal
        mean = fmean(rewards)
        if self.weighting == "token_mean":
            return [(reward - mean) / sum(lengths) for reward in rewards]
        return [
            (reward - mean) / (len(rewards) * length) for reward, length in zip(rewards, lengths, strict=True)
        ]

    def retained(self, rollout: Rollout) -> Sequence[bool] | None:
        if not self.needs_entropies or rollout.verdict.correct:
            return None
        entropies = rollout.completion.entropies
        assert entropies is not None, "the sampler was asked for entropies"
        return highest_entropy(entropies, self.negative_token_fraction)

    def admit(self, sequence_kl: Tensor) -> Tensor:
        return sequence_kl <= self.delta

    def objective(self, logprobs: Tensor, log_ratio: Tensor, coefficients: Tensor, mask: Tensor) -> Tensor:
        # The ratio weighs the score function; it is not differentiated and not clipped.
        return coefficients * log_ratio.detach().exp() * logprobs
