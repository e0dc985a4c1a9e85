"""`loss.correction`: what is done about a sampler whose probabilities are not the learner's.

Without a correction the ratio rho of every loss divides by the sampler's probability. With one, rho divides by the
learner's own probability before the batch's first update, and the difference between the two, w = learner / sampler, goes
into the coefficients. The sampler's probability so divides once, never twice. `recomputed` leaves w out: the difference
between sampler and learner is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from statistics import fmean
from typing import Literal

from rl.errors import UserError
from rl.rollouts import TrainingRow, scattered

Correction = Literal["none", "recomputed", "tis", "icepop", "sequence_mask"]

# The published bounds of w: TIS verl's default, IcePop its section 3, sequence masking the widest that verl's guide names.
BOUNDS = {"tis": (0.0, 2.0), "icepop": (0.5, 5.0), "sequence_mask": (1 / 1.001, 1.001)}
MAX_LOG_WEIGHT = 20.0  # a weight beyond exp(20) is kept finite


def require_bounds(correction: Correction, bounds: tuple[float, float] | None) -> None:
    """Raises UserError unless the bounds of w fit the correction."""
    if bounds is None:
        return
    low, high = bounds
    if correction not in BOUNDS:
        raise UserError(
            f"loss.correction_bounds=[{low:g},{high:g}]: there is nothing to bound; type loss.correction=tis too, or"
            " loss.correction_bounds=null"
        )
    if not 0 <= low < high or not high >= 1 >= low:
        example = ",".join(f"{bound:.4g}" for bound in BOUNDS[correction])
        raise UserError(
            f"loss.correction_bounds=[{low:g},{high:g}]: expected two numbers around 1, the lower one 0 or more; e.g."
            f" loss.correction_bounds=[{example}]"
        )


def correction_weights(
    correction: Correction, bounds: tuple[float, float] | None, log_ratio: Sequence[float]
) -> list[float]:
    """What multiplies the coefficients of a row's sampled tokens, from their log w = log learner - log sampler.

    tis: w clipped to the bounds. icepop: w inside the bounds, 0 outside. sequence_mask: 1 if the geometric mean of the
    row's w is inside the bounds, else 0. none, recomputed: 1.
    """
    if correction not in BOUNDS:
        return [1.0] * len(log_ratio)
    low, high = bounds or BOUNDS[correction]
    if correction == "sequence_mask":
        return [float(low <= _exp(fmean(log_ratio)) <= high)] * len(log_ratio)
    weights = [_exp(value) for value in log_ratio]
    if correction == "tis":
        return [min(max(weight, low), high) for weight in weights]
    return [weight if low <= weight <= high else 0.0 for weight in weights]


def corrected(
    rows: Sequence[TrainingRow],
    logprobs: Sequence[Sequence[float]],
    correction: Correction,
    bounds: tuple[float, float] | None,
) -> list[TrainingRow]:
    """The rows with corrected coefficients, and with the learner's log-probabilities in place of the sampler's.

    logprobs: [N][T] the learner's, before the batch's first update.
    """
    result = []
    for row, own in zip(rows, logprobs, strict=True):
        weights = scattered(correction_weights(correction, bounds, _log_weights(own, row)), row.mask)
        coefficients = [c * weight if c else c for c, weight in zip(row.coefficients, weights, strict=True)]
        result.append(replace(row, behavior_logprobs=list(own), coefficients=coefficients))
    return result


def correction_metrics(
    rows: Sequence[TrainingRow], corrected_rows: Sequence[TrainingRow]
) -> dict[str, float]:
    """`mismatch/*` over all sampled tokens, `correction/kept` over those with a coefficient; see rl/metrics.py."""
    log_weights = [
        value
        for before, after in zip(rows, corrected_rows, strict=True)
        for value in _log_weights(after.behavior_logprobs, before)
    ]
    kept = [
        float(now != 0)
        for before, after in zip(rows, corrected_rows, strict=True)
        for was, now in zip(before.coefficients, after.coefficients, strict=True)
        if was
    ]
    return {
        "mismatch/mean": fmean(map(_exp, log_weights)),
        "mismatch/max": _exp(max(log_weights)),
        "mismatch/min": _exp(min(log_weights)),
        "correction/kept": fmean(kept) if kept else math.nan,
    }


def largest_difference(rows: Sequence[TrainingRow], corrected_rows: Sequence[TrainingRow]) -> float:
    """The largest |log learner - log sampler| of a token, nats."""
    return max(
        abs(value)
        for before, after in zip(rows, corrected_rows, strict=True)
        for value in _log_weights(after.behavior_logprobs, before)
    )


def _log_weights(own: Sequence[float], row: TrainingRow) -> list[float]:
    """log w of the row's sampled tokens. own: [T] the learner's log-probabilities."""
    pairs = zip(own, row.behavior_logprobs, strict=True)
    return [mine - sampled for mine, sampled in compress(pairs, row.mask)]


def _exp(value: float) -> float:
    return math.exp(max(-MAX_LOG_WEIGHT, min(MAX_LOG_WEIGHT, value)))
