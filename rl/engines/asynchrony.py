"""The options of an engine whose sampler is elsewhere, so that sampling and learning may overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rl.blueprint import Blueprint
from rl.errors import UserError, require

MOST_GROUPS = 1024  # in flight with collect=arrival: each has a thread


@dataclass(frozen=True, kw_only=True)
class AsyncOptions:
    """max_lag: how many updates old the policy of a trained rollout may be; 0 waits for each batch.

    collect: `ordered`: the batches of later steps are requested early and trained in order; `arrival`: `in_flight` rollouts
    are always being sampled, and the learner takes the next batch of finished ones (rl/arrival.py). in_flight: rollouts, in
    whole groups; null: two batches, or MOST_GROUPS.
    """

    max_lag: int = 0
    collect: Literal["ordered", "arrival"] = "ordered"
    in_flight: int | None = None

    def __post_init__(self) -> None:
        if self.max_lag < 0:
            raise UserError(
                f"engine.max_lag={self.max_lag}: expected 0 (synchronous) or more; e.g. engine.max_lag=1"
            )
        require(
            self.in_flight is None or self.in_flight >= 1,
            "engine.in_flight", self.in_flight, "a positive number of rollouts, or null", 256,
        )  # fmt: skip

    def rollouts_in_flight(self, blueprint: Blueprint) -> int | None:
        """See EngineConfig."""
        if self.collect != "arrival":
            return None
        return self.in_flight or blueprint.group_size * min(2 * blueprint.batch_size, MOST_GROUPS)

    def check_asynchrony(self, blueprint: Blueprint) -> None:
        """Raises UserError for a blueprint whose batches cannot be requested early."""
        if self.collect == "arrival":
            self._check_arrival(blueprint)
            return
        if self.in_flight is not None:
            raise UserError(
                f"engine.in_flight={self.in_flight}: only read by engine.collect=arrival; type that too, or"
                " engine.in_flight=null"
            )
        if self.max_lag and not blueprint.environment.single_turn:
            raise UserError(
                f"engine.max_lag={self.max_lag}: with environment={blueprint.environment.name} a step's trajectories are"
                " sampled at that step; type engine.max_lag=0"
            )
        if self.max_lag and blueprint.thinking_tokens is not None:
            raise UserError(
                f"engine.max_lag={self.max_lag}: with thinking_tokens={blueprint.thinking_tokens} a step's answers are sampled at"
                " that step, after its reasonings; type engine.max_lag=0"
            )

    def _check_arrival(self, blueprint: Blueprint) -> None:
        """Raises UserError for a blueprint that cannot be trained in the order of arrival."""
        if not self.max_lag:
            raise UserError(
                "engine.collect=arrival: what arrives may be older than the weights; type engine.max_lag=4, or"
                " engine.collect=ordered"
            )
        if blueprint.refill:
            raise UserError(
                f"refill={blueprint.refill}: redraws are sampled while the learner waits, which engine.collect=arrival avoids;"
                " type refill=0, or engine.collect=ordered"
            )
        if blueprint.curriculum == "pass_rate":
            raise UserError(
                "curriculum=pass_rate: with engine.collect=arrival problems are asked before the pass rates that order them are"
                " known; type curriculum=none, or engine.collect=ordered"
            )
        if self.in_flight is None:
            return
        group, step = blueprint.group_size, blueprint.batch_size * blueprint.group_size
        if self.in_flight < group:
            raise UserError(
                f"engine.in_flight={self.in_flight}: a group has {group} rollouts; expected at least as many;"
                f" e.g. engine.in_flight={2 * step}"
            )
        if self.in_flight > MOST_GROUPS * group:
            raise UserError(
                f"engine.in_flight={self.in_flight}: expected at most {MOST_GROUPS} groups of {group}, each of which has a"
                f" thread; type engine.in_flight={MOST_GROUPS * group}"
            )
        if self.in_flight > (most := (self.max_lag + 1) * step):
            raise UserError(
                f"engine.in_flight={self.in_flight}: with engine.max_lag={self.max_lag} more than {most} would be too old"
                f" before they are trained; type engine.in_flight={most}, or a larger engine.max_lag"
            )
