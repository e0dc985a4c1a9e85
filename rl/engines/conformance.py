"""The result of comparing a training step on a service with the same step on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Conformance:
    """A step on the service compared with the same step here.

    cosine, norm_ratio: the adapter's change on the service against the change here. sampler_drift: largest difference,
    in nats, of a sampled token's log-probability between the service's sampler and its learner; learner_drift: between
    its learner and ours. rows: rows of the step. admitted: rows inside the loss's trust region (service, here).
    overlaps: whether the policy before the step can still be sampled after it without resetting the learner.
    """

    cosine: float
    norm_ratio: float
    sampler_drift: float
    learner_drift: float
    rows: int
    admitted: tuple[int, int]
    overlaps: bool
