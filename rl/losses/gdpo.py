"""GDPO: "Group reward-Decoupled Normalization Policy Optimization" (arXiv:2601.05242)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from rewards.reward_set import LENGTH
from rl.errors import UserError
from rl.losses.groups import STD_EPSILON, ClippedGroupLoss, group_deviation, sequence_means
from rl.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class GDPO(ClippedGroupLoss):
    """Each reward is normalised within its group by itself; their weighted sum is whitened over the batch; PPO clip.

    z = sum_k w_k (r_k - mu_k) / sigma_k, weight (z - mean z) / (sd z N T_n), mu_k and sigma_k of reward k in the group, w_k
    its weight in the reward set. A sum of rewards lets one reward hide another: under GRPO a group of (1 + 0) and (0 + 1)
    has no signal. length_weight: the w of a length rule.
    """

    name: str = "gdpo"
    length_weight: float = 1.0

    reads_parts = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.length_weight < float("inf"):
            raise UserError(
                f"loss.length_weight={self.length_weight}: expected 0 or more; e.g. loss.length_weight=0.5"
            )

    def scores(self, rollouts: Sequence[Rollout], reward_weights: Mapping[str, float]) -> list[float]:
        """[N] z; from the whole reward where a rollout's parts are not known."""
        groups = [rollout.group for rollout in rollouts]
        parts = [rollout.rewards or {"": rollout.reward} for rollout in rollouts]
        total = [0.0] * len(rollouts)
        for name in parts[0]:
            weight = self.length_weight if name == LENGTH else reward_weights.get(name, 1.0)
            normalised = super().advantages([part[name] for part in parts], groups)
            total = [sum_ + weight * value for sum_, value in zip(total, normalised, strict=True)]
        return total

    def advantages(self, rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
        """[N] the scores z over their deviation in the batch.

        Each reward's values sum to 0 in every group, so the mean over the batch is 0 and whitening subtracts nothing.
        """
        deviation = stdev(rewards) + STD_EPSILON if len(rewards) > 1 else 1.0
        return [value / deviation for value in rewards]

    def divisors(self, lengths: Sequence[int], budget: int) -> list[float]:
        return sequence_means(lengths)

    def spread(self, rewards: Sequence[float]) -> float:
        return group_deviation(rewards)
