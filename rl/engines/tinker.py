"""`engine=tinker`: tokens go to a Tinker-compatible service, completions and log-probabilities come back.

The service holds the weights and computes gradients; rewards, advantages, coefficients, the trust region and every
metric are ours. What it computes is the sum of rl/losses.py exactly: see `rl/engines/tinker_rows.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rl.engines.base import Engine
from rl.engines.tinker_calls import is_hosted, require_access
from rl.engines.tinker_rows import loss_name
from rl.errors import UserError
from rl.losses import PolicyLoss
from rl.prices import Prices, price_date, published_prices

if TYPE_CHECKING:
    from rl.blueprint import Blueprint

SERVICE_ALPHA = 32.0  # of every adapter, hosted or SkyRL's


@dataclass(frozen=True, kw_only=True)
class TinkerEngineConfig:
    """base_model: what the service calls the model; null: the model's Hub id (or path).

    reduction: what the service does with a loss: `sum` over tokens (hosted Tinker), or `seq_mean`, the mean over rows of
    each row's mean over positions (SkyRL); `python -m recipes.check_engine` tells. max_lag: how many updates old the
    policy that samples may be; 0 waits for each batch. overlap: whether the service may sample for later steps while it
    trains; SkyRL's JAX backend must not: sampling from an older policy there puts the learner back to it. attempts: how
    often a group is asked for before it is dropped.
    max_usd: the run saves and stops before it would cost more. prices: USD per million tokens; null: rl/prices.yaml.
    """

    base_model: str | None = None
    reduction: Literal["sum", "seq_mean"] = "sum"
    max_lag: int = 0
    overlap: bool = True
    attempts: int = 3
    max_usd: float | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if self.max_lag < 0:
            raise UserError(
                f"engine.max_lag={self.max_lag}: expected 0 (synchronous) or more; e.g. engine.max_lag=1"
            )
        if self.attempts < 1:
            raise UserError(f"engine.attempts={self.attempts}: expected a positive integer; e.g. 3")
        if self.max_usd is not None and not self.max_usd > 0:
            raise UserError(f"engine.max_usd={self.max_usd}: expected a positive number, or null; e.g. 20")

    def check(self, blueprint: Blueprint) -> None:
        """Also asks for the SDK and the key; nothing is sent."""
        if blueprint.model.lora is None:
            raise UserError(
                "model.lora=null: a Tinker service trains LoRA adapters only; type model.lora.rank=32"
            )
        if blueprint.model.context is not None:
            raise UserError(
                f"model.context={blueprint.model.context}: a service has its own limit; type model.context=null"
            )
        if blueprint.model.lora.dropout:
            raise UserError(
                f"model.lora.dropout={blueprint.model.lora.dropout}: a Tinker service has none; type 0"
            )
        if blueprint.model.lora.alpha != SERVICE_ALPHA:
            raise UserError(
                f"model.lora.alpha={blueprint.model.lora.alpha:g}: a Tinker service's is {SERVICE_ALPHA:g}; type"
                f" model.lora.alpha={SERVICE_ALPHA:g}"
            )
        if blueprint.model.lora.target_modules != "all-linear":
            raise UserError(
                f"model.lora.target_modules={blueprint.model.lora.target_modules}: a Tinker service adapts every linear"
                " layer; type model.lora.target_modules=all-linear"
            )
        if blueprint.temperature != 1:
            raise UserError(
                f"temperature={blueprint.temperature}: a Tinker service scores at temperature 1, so that training there needs"
                " temperature=1.0"
            )
        if blueprint.sampling.truncated:
            raise UserError(
                f"sampling.{blueprint.sampling.truncated}: a Tinker service scores the whole distribution; leave it off"
            )
        if blueprint.loss.needs_entropies:
            raise UserError(
                "loss.negative_token_fraction: a Tinker service returns no entropies; type loss.negative_token_fraction=1.0"
            )
        loss_name(blueprint.loss)
        if self.max_usd is not None and self.prices_of(self.name_of(blueprint)) is None:
            raise UserError(
                f"engine.max_usd={self.max_usd}: no price of {self.name_of(blueprint)} is known ({price_date()}); give"
                " engine.prices.prefill, engine.prices.sample and engine.prices.train, or engine.max_usd=null"
            )
        require_access()

    def name_of(self, blueprint: Blueprint) -> str:
        """What the service calls the model."""
        return self.base_model or blueprint.model.source

    def prices_of(self, model: str) -> Prices | None:
        """USD per million tokens; None where they are not known, as on a server of one's own."""
        return self.prices or (published_prices(model) if is_hosted() else None)

    def open(self, blueprint: Blueprint, tokenizer: Any) -> Engine:
        self.check(blueprint)
        from rl.engines.tinker_engine import TinkerEngine

        return TinkerEngine(self, blueprint, tokenizer)


def has_gate(loss: PolicyLoss) -> bool:
    """Whether the loss may reject rows, which takes their log-probabilities before the gradient."""
    return type(loss).admit is not PolicyLoss.admit
