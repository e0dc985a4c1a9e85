"""`engine=tinker`: tokens go to a Tinker-compatible service, completions and log-probabilities come back.

The service holds the weights and computes gradients. Rewards, advantages, coefficients, the trust region and all
metrics are computed here. The service's loss is exactly the sum of rl/losses/base.py: see rl/engines/tinker/rows.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.blueprint import Blueprint, EngineConfig
from rl.data.problems import ProblemSet
from rl.engines.base import Engine
from rl.engines.conformance import Conformance
from rl.engines.prices import Prices, price_date, published_prices
from rl.engines.tinker.calls import is_hosted, require_access
from rl.engines.tinker.options import TinkerOptions
from rl.engines.tinker.rows import loss_name
from rl.errors import UserError
from rl.models.quantization import require_plain

SERVICE_ALPHA = 32.0  # LoRA alpha of every adapter, on the hosted service and SkyRL


@dataclass(frozen=True, kw_only=True)
class TinkerEngineConfig(TinkerOptions, EngineConfig):
    """See TinkerOptions for the options."""

    resumable: ClassVar[frozenset[str]] = frozenset(("max_usd", "prices", "attempts"))
    needs_full_support: ClassVar[str] = "a Tinker service scores the whole distribution only"

    def check(self, blueprint: Blueprint) -> None:
        """Also checks for the SDK and the key; sends nothing."""
        require_plain(blueprint.model.quantization, blueprint.optimizer.name, "tinker")
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
                f"model.lora.dropout={blueprint.model.lora.dropout}: a Tinker service has no dropout; type"
                " model.lora.dropout=0"
            )
        if blueprint.model.lora.alpha != SERVICE_ALPHA:
            raise UserError(
                f"model.lora.alpha={blueprint.model.lora.alpha:g}: a Tinker service uses {SERVICE_ALPHA:g}; type"
                f" model.lora.alpha={SERVICE_ALPHA:g}"
            )
        if blueprint.model.lora.target_modules != "all-linear":
            raise UserError(
                f"model.lora.target_modules={blueprint.model.lora.target_modules}: a Tinker service adapts every linear"
                " layer; type model.lora.target_modules=all-linear"
            )
        if blueprint.temperature != 1:
            raise UserError(
                f"temperature={blueprint.temperature}: a Tinker service scores at temperature 1 only; type temperature=1.0"
            )
        if blueprint.loss.needs_entropies:
            raise UserError(
                "loss.negative_token_fraction: a Tinker service returns no entropies; type loss.negative_token_fraction=1.0"
            )
        if blueprint.loss.needs_reference:
            raise UserError(
                "loss.kl_beta: a Tinker service adds no KL penalty to its losses; type loss.kl_beta=0, or engine=local"
            )
        self.check_asynchrony(blueprint)
        if self.collect == "arrival" and not self.overlap:
            raise UserError(
                "engine.overlap=false: this service cannot sample while it trains, and engine.collect=arrival always samples;"
                " type engine.collect=ordered"
            )
        loss_name(blueprint.loss)
        if self.max_usd is not None and self.usd_per_million(blueprint) is None:
            raise UserError(
                f"engine.max_usd={self.max_usd}: no price is known for {self.name_of(blueprint)} ({price_date()}); type"
                " engine.prices.prefill, engine.prices.sample and engine.prices.train, or engine.max_usd=null"
            )
        require_access()

    def name_of(self, blueprint: Blueprint) -> str:
        """The service's name for the model."""
        return self.base_model or blueprint.model.source

    def usd_per_million(self, blueprint: Blueprint) -> Prices | None:
        """See EngineConfig; None for a self-hosted server without engine.prices."""
        return self.prices or (published_prices(self.name_of(blueprint)) if is_hosted() else None)

    def open(self, blueprint: Blueprint, tokenizer: Any) -> Engine:
        self.check(blueprint)
        from rl.engines.tinker.learner import TinkerLearner
        from rl.engines.tinker.ledger import Ledger
        from rl.engines.tinker.sampler import TinkerSampler
        from rl.engines.tinker.service import Service

        service = Service(self.name_of(blueprint))
        service.require_model()
        ledger = Ledger(self.usd_per_million(blueprint), self.max_usd)
        learner = TinkerLearner(self, blueprint, tokenizer, service, ledger)
        return Engine(TinkerSampler(self, learner, blueprint.loss.passes), learner)

    def compare(self, blueprint: Blueprint, problems: ProblemSet) -> Conformance:
        from rl.engines.tinker.conformance import compare

        return compare(blueprint, problems)
