"""The options of `engine=tinker`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rl.engines.asynchrony import AsyncOptions
from rl.engines.prices import Prices
from rl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class TinkerOptions(AsyncOptions):
    """Those of AsyncOptions, and more. base_model: the service's name for the model; null: the model's Hub id (or path).

    reduction: how the service reduces a loss: `sum` over tokens (hosted Tinker), or `seq_mean`, the mean over rows of
    each row's mean over positions (SkyRL); `python -m recipes.check_engine` finds out. overlap: whether the service may
    sample for later steps while it trains; false for SkyRL's JAX backend, where sampling from an older policy resets the
    learner to it. attempts: how often a group is requested before it is dropped. max_usd: the run saves and stops before
    it would cost more. prices: USD per million tokens; null: rl/engines/prices.yaml.
    """

    base_model: str | None = None
    reduction: Literal["sum", "seq_mean"] = "sum"
    overlap: bool = True
    attempts: int = 3
    max_usd: float | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attempts < 1:
            raise UserError(f"engine.attempts={self.attempts}: expected a positive integer; e.g. 3")
        if self.max_usd is not None and not self.max_usd > 0:
            raise UserError(f"engine.max_usd={self.max_usd}: expected a positive number, or null; e.g. 20")
