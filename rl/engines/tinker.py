"""`engine=tinker`: tokens go to a Tinker-compatible service, completions and log-probabilities come back.

The service holds the weights and computes gradients; rewards, advantages, coefficients, the trust region and every
metric are ours. What it computes is the sum of rl/losses.py exactly: see `rl/engines/tinker_rows.py`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rl import signals
from rl.engines.base import Arrived, Asked, Engine, SamplingParams, UpdateStats
from rl.engines.tinker_rows import datum, has_signal, loss_name, measure, row_logprobs, stats_of
from rl.engines.tinker_sampling import AskedGroups, Ledger
from rl.engines.tinker_service import Service, finished, require_access, service_errors
from rl.errors import Stopped, UserError
from rl.losses import PolicyLoss
from rl.prices import Prices, Tokens, batch_tokens, price_date, published_prices
from rl.rollouts import Completion, TrainingRow

if TYPE_CHECKING:
    from rl.blueprint import Blueprint

SERVICE_ALPHA = 32.0  # of every adapter, hosted or SkyRL's
STATE = "tinker.json"  # in a checkpoint: where the service keeps it, and what the run has cost up to it


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
        return self.prices or published_prices(model)

    def open(self, blueprint: Blueprint, tokenizer: Any) -> Engine:
        self.check(blueprint)
        return TinkerEngine(self, blueprint, tokenizer)


class TinkerEngine:
    """A `Remote` engine (rl/engines/base.py): one adapter on the service, and the newest sampler of it."""

    def __init__(self, config: TinkerEngineConfig, blueprint: Blueprint, tokenizer: Any) -> None:
        assert blueprint.model.lora is not None, "checked"
        self.config = config
        self.max_lag = config.max_lag
        self.tokenizer = tokenizer
        self.optimizer = blueprint.optimizer
        self.lora = blueprint.model.lora
        self.seed = blueprint.seed
        self.base = blueprint.model.source
        self.service = Service(config.name_of(blueprint))
        self.prices = config.prices_of(config.name_of(blueprint))
        self.passes = 2 if has_gate(blueprint.loss) else 1  # over a step's rows: the gate scores them first
        self.ledger = Ledger()
        self._learner: Any = None
        self.sampler: Any = None
        self._under_way: list[AskedGroups] = []

    @property
    def learner(self) -> Any:
        """The adapter under training; made at the first use, so that a run which resumes makes only the one it loads."""
        if self._learner is None:
            self._learner = self.service.new_learner(self.lora.rank, self.seed)
        return self._learner

    def publish(self) -> None:
        if self.sampler is None:
            self.sampler = self.service.sampler(self.learner)

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> Asked:
        self._require_affordable(prompts, n, params.max_tokens)
        self.publish()
        asked = AskedGroups(self.sampler, prompts, n, params, self.config.attempts, self.ledger, arrived)
        self._under_way.append(asked)
        return asked

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        return self.submit(prompts, n, params, arrived).result()

    def _require_affordable(self, prompts: Sequence[Sequence[int]], n: int, max_tokens: int) -> None:
        """Raises Stopped unless this batch, and those under way, are within `max_usd` at their longest."""
        if self.config.max_usd is None or self.prices is None:
            return
        read, sampled = n * sum(map(len, prompts)), n * max_tokens * len(prompts)
        ceiling = self.ledger.tokens + batch_tokens(read, sampled, self.passes) * (self.max_lag + 1)
        if (cost := ceiling.usd(self.prices)) > self.config.max_usd:
            raise Stopped(
                f"engine.max_usd={self.config.max_usd}: {self.ledger.tokens.usd(self.prices):.2g} USD are spent, and the next batch"
                f" could make it {cost:.2g}; to go on, type a larger engine.max_usd with this run_dir"
            )

    def logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        data = [datum(row, 1.0) for row in rows]
        with service_errors("scoring"):
            output = finished(self.learner.forward(data, "importance_sampling"))
        self._count_pass(rows)
        return row_logprobs(output, rows)

    def update(self, rows: Sequence[TrainingRow], loss: PolicyLoss, learning_rate: float) -> UpdateStats:
        """See the protocol. grad_norm: 0 where the service does not report one; `max_grad_norm` is left to the service."""
        if has_gate(loss) or not has_signal(rows):
            surrogate, ratio = measure(rows, self.logprobs(rows), loss)
            admitted = surrogate.admitted.tolist()
            # A rejected row is sent all the same, with zeros: it still counts among the N that a mean divides by.
            rows = [
                row if ok else replace(row, coefficients=[0.0] * len(row.coefficients))
                for row, ok in zip(rows, admitted, strict=True)
            ]
            if not has_signal(rows):
                return stats_of(surrogate, ratio, grad_norm=0.0, stepped=False)
            _, grad_norm = self._step(rows, loss, learning_rate)
            return stats_of(surrogate, ratio, grad_norm, stepped=True)
        logprobs, grad_norm = self._step(rows, loss, learning_rate)
        return stats_of(*measure(rows, logprobs, loss), grad_norm, stepped=True)

    def _step(
        self, rows: Sequence[TrainingRow], loss: PolicyLoss, learning_rate: float
    ) -> tuple[list[list[float]], float]:
        """Gradient and optimiser step, submitted together; the log-probabilities before it, and the gradient's norm."""
        import tinker

        name, settings = loss_name(loss)
        means = self.config.reduction == "seq_mean"
        data = [datum(row, len(rows) * positions(row) if means else 1.0) for row in rows]
        optimizer = self.optimizer
        adam = tinker.AdamParams(
            learning_rate=learning_rate,
            beta1=optimizer.betas[0],
            beta2=optimizer.betas[1],
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            grad_clip_norm=optimizer.max_grad_norm if optimizer.max_grad_norm < float("inf") else 0.0,
        )
        for asked in self._under_way if not self.config.overlap else ():
            asked.result()
        self._under_way.clear()
        self.sampler = None
        # Once both are submitted the step is taken there, whatever happens here: a signal waits for the end of it.
        with (
            signals.postponed(),
            service_errors("training; go on from the last checkpoint with the same command"),
        ):
            gradient = self.learner.forward_backward(data, name, settings or None)
            step = self.learner.optim_step(adam)
            output, taken = finished(gradient), finished(step)
        self._count_pass(rows)
        norms = [value for key, value in (taken.metrics or {}).items() if key.endswith("grad_norm")]
        return row_logprobs(output, rows), norms[0] if norms else 0.0

    def _count_pass(self, rows: Sequence[TrainingRow]) -> None:
        self.ledger.tokens += Tokens(train=sum(len(r.prompt_tokens) + len(r.completion_tokens) for r in rows))

    def metrics(self) -> dict[str, float]:
        dropped, self.ledger.dropped_groups = self.ledger.dropped_groups, 0
        cost = {"cost/usd": self.ledger.tokens.usd(self.prices)} if self.prices else {}
        return {
            "dropped_groups": dropped,
            **{f"cost/{k}_tokens": v for k, v in asdict(self.ledger.tokens).items()},
            **cost,
        }

    def save(self, path: Path) -> None:
        name = unique(path.name.strip(".").removesuffix(".tmp"))
        # A signal in here would save the step just trained once more, as the one before it.
        with signals.postponed(), service_errors("saving"):
            state = finished(self.learner.save_state(name)).path
            adapter = self.service.save_adapter(self.learner, name)
        facts = {
            "base_model": self.service.base_model,
            "base": self.base,
            "state": state,
            "adapter": adapter,
            "tokens": asdict(self.ledger.tokens),
        }
        (path / STATE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    def load(self, path: Path) -> None:
        facts = saved_state(path)
        self._learner, self.sampler = self.service.restored_learner(facts["state"]), None
        self.ledger.tokens = Tokens(**facts["tokens"])

    def export(self, path: Path) -> None:
        self.service.download(self.service.save_adapter(self.learner, unique("final")), path, self.base)
        self.tokenizer.save_pretrained(path)

    def close(self) -> None:
        """Nothing to free here; what the service keeps stays: see recipes/checkpoints.py."""


def has_gate(loss: PolicyLoss) -> bool:
    """Whether the loss may reject rows, which takes their log-probabilities before the gradient."""
    return type(loss).admit is not PolicyLoss.admit


def positions(row: TrainingRow) -> int:
    """Positions of the row's datum: each predicts the token after it."""
    return len(row.prompt_tokens) + len(row.completion_tokens) - 1


def saved_state(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint says about its state on the service. Raises UserError when it is another engine's."""
    file = checkpoint / STATE
    if not file.is_file():
        raise UserError(f"{checkpoint}: holds no {STATE}; expected a checkpoint that engine=tinker wrote")
    return json.loads(file.read_text(encoding="utf-8"))


def unique(name: str) -> str:
    """A name that no earlier save has, also not one whose answer was lost."""
    return f"{name}-{secrets.token_hex(3)}"
