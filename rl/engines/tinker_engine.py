"""The engine behind `engine=tinker`: one adapter on the service, trained and sampled by calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl import signals
from rl.engines.base import Arrived, Asked, SamplingParams, UpdateStats
from rl.engines.tinker import TinkerEngineConfig, has_gate
from rl.engines.tinker_calls import finished, service_errors
from rl.engines.tinker_rows import datum, has_signal, loss_name, measure, row_logprobs, stats_of
from rl.engines.tinker_sampling import AskedGroups, Ledger, ceiling
from rl.engines.tinker_service import Service
from rl.errors import Stopped, UserError
from rl.losses import PolicyLoss
from rl.prices import Tokens
from rl.rollouts import Completion, TrainingRow

if TYPE_CHECKING:
    from rl.blueprint import Blueprint

STATE = "tinker.json"  # in a checkpoint: where the service keeps it, and what the run has cost up to it


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
        self.service.require_model()
        self.prices = config.prices_of(config.name_of(blueprint))
        # Over a step's rows: the gate scores them before each update.
        self.passes = blueprint.loss.updates_per_batch * (2 if has_gate(blueprint.loss) else 1)
        self.ledger = Ledger()
        self._learner: Any = None
        self.sampler: Any = None
        self._under_way: list[AskedGroups] = []  # whose completions nobody has taken yet
        self._adapter: str | None = None  # where the service keeps the learner's adapter as it is now

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
        asked = self._ask(prompts, n, params, self.passes, arrived)
        self._under_way.append(asked)
        return asked

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        return self._ask(prompts, n, params, passes=0, arrived=arrived).result()

    def _ask(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        passes: int,
        arrived: Arrived | None,
    ) -> AskedGroups:
        """Asks for completions whose rows will be trained or scored `passes` times. Raises Stopped for want of money."""
        self._under_way = [asked for asked in self._under_way if not asked.taken]
        self._require_affordable(ceiling(prompts, n, params.max_tokens, passes))
        self.publish()
        return AskedGroups(
            self.sampler, prompts, n, params, self.config.attempts, self.ledger, passes, arrived
        )

    def _require_affordable(self, batch: Tokens) -> None:
        """Raises Stopped unless this batch, and those under way, are within `max_usd` at their longest."""
        if self.config.max_usd is None or self.prices is None:
            return
        most = sum((asked.owed for asked in self._under_way), self.ledger.tokens + batch)
        if (cost := most.usd(self.prices)) > self.config.max_usd:
            raise Stopped(
                f"engine.max_usd={self.config.max_usd}: {self.ledger.tokens.usd(self.prices):.2g} USD are spent, and the next batch"
                f" could make it {cost:.2g}; to go on, type a larger engine.max_usd with this run_dir"
            )

    def logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        # Coefficients do not change a score, and one that is no number could not be sent.
        data = [
            datum(replace(row, behavior_logprobs=zeros(row), coefficients=zeros(row)), 1.0) for row in rows
        ]
        with service_errors("scoring", Stopped):
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
                row if ok else replace(row, coefficients=zeros(row))
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
            asked.wait()
        self.sampler = self._adapter = None
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
        name = path.name.strip(".").removesuffix(".tmp")
        # A signal in here would save the step just trained once more, as the one before it.
        with signals.postponed():
            state = self.service.save_state(self.learner, name)
            self._adapter = self.service.save_adapter(self.learner, name)
        # What is under way will be paid for, and asked for again by whoever goes on from here.
        tokens = sum((asked.unanswered for asked in self._under_way), self.ledger.tokens)
        facts = {
            "base_model": self.service.base_model,
            "base": self.base,
            "state": state,
            "adapter": self._adapter,
            "tokens": asdict(tokens),
        }
        (path / STATE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    def load(self, path: Path) -> None:
        facts = saved_state(path)
        self._learner, self.sampler = self.service.restored_learner(facts["state"]), None
        self._adapter = facts["adapter"]
        self.ledger.tokens = Tokens(**facts["tokens"])

    def recall(self, metrics: Mapping[str, Any]) -> None:
        spent = {field.name: metrics.get(f"cost/{field.name}_tokens") or 0 for field in fields(Tokens)}
        self.ledger.tokens = max(self.ledger.tokens, Tokens(**spent), key=lambda tokens: sum(astuple(tokens)))

    def export(self, path: Path) -> None:
        self._adapter = self._adapter or self.service.save_adapter(self.learner, "final")
        self.service.download(self._adapter, path, self.base)
        self.tokenizer.save_pretrained(path)

    def discard(self) -> None:
        """Deletes the adapter that `export` left on the service."""
        if self._adapter is not None:
            self.service.delete(self._adapter)
            self._adapter = None

    def close(self) -> None:
        """Ends the session there; what the service was told to keep stays: see recipes/checkpoints.py."""
        self.service.close()


def zeros(row: TrainingRow) -> list[float]:
    """[T] of them."""
    return [0.0] * len(row.completion_tokens)


def positions(row: TrainingRow) -> int:
    """Positions of the row's datum: each predicts the token after it."""
    return len(row.prompt_tokens) + len(row.completion_tokens) - 1


def saved_state(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint says about its state on the service. Raises UserError when it is another engine's."""
    file = checkpoint / STATE
    if not file.is_file():
        raise UserError(f"{checkpoint}: holds no {STATE}; expected a checkpoint that engine=tinker wrote")
    return json.loads(file.read_text(encoding="utf-8"))
