"""Training an adapter on a Tinker service."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl import signals
from rl.engines.base import Learner, UpdateStats
from rl.engines.prices import Tokens
from rl.engines.tinker.calls import finished, service_errors
from rl.engines.tinker.ledger import Ledger
from rl.engines.tinker.options import TinkerOptions
from rl.engines.tinker.rows import datum, has_signal, loss_name, row_logprobs, stats_of
from rl.engines.tinker.service import Service
from rl.errors import Stopped, UserError
from rl.losses.base import PolicyLoss
from rl.rollouts import TrainingRow

if TYPE_CHECKING:
    from rl.blueprint import Blueprint

STATE = "tinker.json"  # in a checkpoint: its path on the service, and the run's cost so far


class TinkerLearner(Learner):
    """One adapter on the service. version: how often its weights have changed since this start."""

    def __init__(
        self, options: TinkerOptions, blueprint: Blueprint, tokenizer: Any, service: Service, ledger: Ledger
    ) -> None:
        assert blueprint.model.lora is not None, "checked"
        self.reduction, self.overlap = options.reduction, options.overlap
        self.service, self.ledger, self.tokenizer = service, ledger, tokenizer
        self.optimizer, self.lora, self.seed = blueprint.optimizer, blueprint.model.lora, blueprint.seed
        self.base = blueprint.model.source
        self.version = 0
        self._adapter: Any = None
        self._exported: str | None = None  # path of the current adapter's files on the service

    @property
    def adapter(self) -> Any:
        """The adapter under training, created on first use, so that a resumed run creates only the one it loads."""
        if self._adapter is None:
            self._adapter = self.service.new_learner(self.lora.rank, self.seed)
        return self._adapter

    def logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        # Scores do not depend on these values, and NaN cannot be serialised.
        data = [
            datum(replace(row, behavior_logprobs=zeros(row), coefficients=zeros(row)), 1.0) for row in rows
        ]
        with service_errors("scoring", Stopped):
            output = finished(self.adapter.forward(data, "importance_sampling"))
        self._count_pass(rows)
        return row_logprobs(output, rows)

    def update(self, rows: Sequence[TrainingRow], loss: PolicyLoss, learning_rate: float) -> UpdateStats:
        """See `Learner`. grad_norm: 0 if the service reports none. The service applies `max_grad_norm`."""
        if loss.has_gate or not has_signal(rows):
            stats = stats_of(rows, self.logprobs(rows), loss)
            # A rejected row is still sent, with zeros, because it counts in the N that a mean divides by.
            rows = [
                row if admitted else replace(row, coefficients=zeros(row))
                for row, admitted in zip(rows, stats.admitted, strict=True)
            ]
            if not has_signal(rows):
                return stats
            _, grad_norm = self._step(rows, loss, learning_rate)
        else:
            logprobs, grad_norm = self._step(rows, loss, learning_rate)
            stats = stats_of(rows, logprobs, loss)
        return replace(stats, grad_norm=grad_norm, stepped=True)

    def _step(
        self, rows: Sequence[TrainingRow], loss: PolicyLoss, learning_rate: float
    ) -> tuple[list[list[float]], float]:
        """Submits gradient and optimiser step together; returns the log-probabilities before it and the gradient norm."""
        import tinker

        name, settings = loss_name(loss)
        means = self.reduction == "seq_mean"
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
        if not self.overlap:
            self.ledger.wait()
        self.version += 1
        self._exported = None
        # Once submitted, the service takes the step whatever happens here, so a signal waits for it to end.
        with (
            signals.postponed(),
            service_errors("training; the same command resumes from the last checkpoint"),
        ):
            gradient = self.adapter.forward_backward(data, name, settings or None)
            step = self.adapter.optim_step(adam)
            output, taken = finished(gradient), finished(step)
        self._count_pass(rows)
        norms = [value for key, value in (taken.metrics or {}).items() if key.endswith("grad_norm")]
        return row_logprobs(output, rows), norms[0] if norms else 0.0

    def _count_pass(self, rows: Sequence[TrainingRow]) -> None:
        self.ledger.spend(Tokens(train=sum(r.length for r in rows)))

    def save(self, path: Path) -> None:
        name = path.name.strip(".").removesuffix(".tmp")
        # A signal here would save this step's weights again, as the step before.
        with signals.postponed():
            state = self.service.save_state(self.adapter, name)
            self._exported = self.service.save_adapter(self.adapter, name)
        facts = {
            "base_model": self.service.base_model,
            "base": self.base,
            "state": state,
            "adapter": self._exported,
            "tokens": asdict(self.ledger.committed()),
        }
        (path / STATE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    def load(self, path: Path) -> None:
        facts = saved_state(path)
        self._adapter, self._exported = self.service.restored_learner(facts["state"]), facts["adapter"]
        self.version += 1
        self.ledger.tokens = Tokens(**facts["tokens"])

    def export(self, path: Path) -> None:
        self._exported = self._exported or self.service.save_adapter(self.adapter, "final")
        self.service.download(self._exported, path, self.base)
        self.tokenizer.save_pretrained(path)

    def discard(self) -> None:
        """Deletes the adapter that `export` saved on the service."""
        if self._exported is not None:
            self.service.delete(self._exported)
            self._exported = None

    def close(self) -> None:
        """Ends the session; saved checkpoints stay on the service: see recipes/checkpoints.py."""
        self.service.close()


def zeros(row: TrainingRow) -> list[float]:
    """T zeros, one per response token."""
    return [0.0] * len(row.response_tokens)


def positions(row: TrainingRow) -> int:
    """Positions of the row's datum, each of which predicts the next token."""
    return row.length - 1


def saved_state(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's record of its state on the service. Raises UserError for another engine's checkpoint."""
    file = checkpoint / STATE
    if not file.is_file():
        raise UserError(f"{checkpoint}: holds no {STATE}; expected a checkpoint that engine=tinker wrote")
    return json.loads(file.read_text(encoding="utf-8"))
