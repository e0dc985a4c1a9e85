"""How a training step on a service compares with the same step on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Conformance:
    """How a step there compares with the same step here.

    cosine, norm_ratio: of the adapter's change, there against here. sampler_drift: largest difference, in nats, of a
    sampled token's log-probability between the service's sampler and its learner; learner_drift: between its learner and
    ours. rows, admitted: rows of the step, and those inside the loss's trust region (there, here). overlaps: whether the
    policy before the step can still be sampled after it, and that leaves the learner as the step made it.
    """

    cosine: float
    norm_ratio: float
    sampler_drift: float
    learner_drift: float
    rows: int
    admitted: tuple[int, int]
    overlaps: bool
