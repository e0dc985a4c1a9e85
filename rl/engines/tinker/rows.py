"""Training rows in the Tinker API's format, and its responses as the local learner's measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rl.engines.base import UpdateStats
from rl.errors import UserError
from rl.losses.base import PolicyLoss
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.groups import ClippedGroupLoss
from rl.losses.rloo import RLOO
from rl.rollouts import TrainingRow

if TYPE_CHECKING:
    from torch import Tensor


def loss_name(loss: PolicyLoss) -> tuple[str, dict[str, float]]:
    """The service's loss with the gradient of `loss`, and its settings. Raises UserError where none is mapped.

    `importance_sampling` is -sum rho*A; its gradient is that of -sum A*[rho]*log p with rho held constant. `ppo` is
    -sum min(rho*A, clip(rho)*A). Our coefficients are sent as A, so all normalisation stays here.
    """
    if type(loss).objective in (FlashReinforce.objective, RLOO.objective):
        return "importance_sampling", {}
    if isinstance(loss, ClippedGroupLoss) and type(loss).objective is ClippedGroupLoss.objective:
        if (loss.clip_low, loss.clip_high) == (1, math.inf):
            return "importance_sampling", {}
        return "ppo", {
            "clip_low_threshold": 1 - loss.clip_low,
            "clip_high_threshold": 1 + loss.clip_high,
        }
    raise UserError(
        f"loss={loss.name}: engine=tinker sends no loss with this objective; type loss=grpo or flashreinforce, or"
        " engine=local"
    )


def datum(row: TrainingRow, scale: float) -> Any:
    """The row as a datum, with coefficients times `scale` as advantages; 0 at the tokens that were not sampled.

    scale: undoes the averaging of a service that divides by a row's positions and by the number of rows.
    """
    import tinker

    tokens = [*row.prompt_tokens, *row.response_tokens]
    prompt = [0.0] * (len(row.prompt_tokens) - 1)
    inputs = {
        "target_tokens": (tokens[1:], "int64"),
        "logprobs": ([*prompt, *row.behavior_logprobs], "float32"),
        "advantages": ([*prompt, *(scale * c for c in row.coefficients)], "float32"),
    }
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            name: tinker.TensorData(data=values, dtype=dtype, shape=[len(values)])  # type: ignore[arg-type]
            for name, (values, dtype) in inputs.items()
        },
    )


def row_logprobs(output: Any, rows: Sequence[TrainingRow]) -> list[list[float]]:
    """[N][T] log-probabilities of the sampled tokens in the output of a forward pass; 0 at the others.

    Raises UserError when the service returns a different number of rows or tokens than it was sent.
    """
    lengths = [row.length - 1 for row in rows]
    answered = [len(values["logprobs"].tolist()) for values in output.loss_fn_outputs]
    if answered != lengths:
        raise UserError(
            f"engine=tinker: the service returned {len(answered)} rows of {sum(answered)} tokens, but was sent"
            f" {len(lengths)} of {sum(lengths)}; type the same command again to resume from the last checkpoint"
        )
    return [
        [
            value if sampled else 0.0
            for value, sampled in zip(
                values["logprobs"].tolist()[len(row.prompt_tokens) - 1 :], row.mask, strict=True
            )
        ]
        for row, values in zip(rows, output.loss_fn_outputs, strict=True)
    ]


def has_signal(rows: Sequence[TrainingRow]) -> bool:
    """Whether the rows have a gradient: some coefficient is not 0, and all numbers are finite."""
    finite = all(map(math.isfinite, (x for r in rows for x in (*r.coefficients, *r.behavior_logprobs))))
    return finite and any(any(row.coefficients) for row in rows)


def stats_of(
    rows: Sequence[TrainingRow], logprobs: Sequence[Sequence[float]], loss: PolicyLoss
) -> UpdateStats:
    """Measurements at log-probabilities [N][T], without a step: grad_norm 0, stepped False."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def padded(values: Sequence[Sequence[float]]) -> Tensor:
        return pad_sequence([torch.tensor(v, dtype=torch.float32) for v in values], batch_first=True)

    mask = padded([row.mask for row in rows]).bool()
    coefficients = padded([row.coefficients for row in rows])
    surrogate = loss.surrogate(
        padded(logprobs), padded([row.behavior_logprobs for row in rows]), coefficients, mask
    )
    log_ratio = surrogate.log_ratio[mask]
    ratio = log_ratio.exp()
    return UpdateStats(
        loss=surrogate.loss.item(),
        grad_norm=0.0,
        stepped=False,
        sequence_kl=surrogate.sequence_kl.tolist(),
        admitted=surrogate.admitted.tolist(),
        ratio_mean=ratio.mean().item(),
        ratio_max=ratio.max().item(),
        ratio_min=ratio.min().item(),
        metrics=loss.metrics(log_ratio, coefficients[mask]),
    )
