"""`loss.correction` on TRL: each process corrects its own share of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer

from rl.engines.trl.scoring import policy_logprobs
from rl.losses.base import PolicyLoss
from rl.losses.correction import corrected, correction_metrics, largest_difference
from rl.rollouts import TrainingRow

Corrected = tuple[list[TrainingRow], list[TrainingRow]]  # a share's rows before and after the correction


def corrected_share(
    trainer: GRPOTrainer,
    loss: PolicyLoss,
    rows: Sequence[TrainingRow],
    share: range,
    inputs: dict[str, Tensor],
) -> Corrected:
    """This process's rows as sampled, and corrected by the log-probabilities of the current weights.

    inputs: the rows as tensors. Scored without dropout, as engine=local does.
    """
    before = [rows[index] for index in share]
    model: Any = trainer.model
    model.eval()
    scored = policy_logprobs(trainer, inputs).tolist()
    model.train()
    own = [values[: len(row.response_tokens)] for row, values in zip(before, scored, strict=True)]
    return before, corrected(before, own, loss.correction, loss.correction_bounds)


def joined_correction(mine: Corrected) -> tuple[dict[str, float], float]:
    """The metrics of all processes' corrections, and the largest |log learner - log sampler|, nats."""
    shares: list[Corrected] = gather_object([mine])
    before = [row for rows, _ in shares for row in rows]
    after = [row for _, rows in shares for row in rows]
    return correction_metrics(before, after), largest_difference(before, after)
