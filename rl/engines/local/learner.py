"""The learner: log-probabilities of sampled tokens, and one optimiser step over micro-batches of rows."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rl import progress
from rl.engines.base import Learner, UpdateStats
from rl.engines.local.logprobs import TokenLogprobs
from rl.engines.local.packing import (
    Layout,
    gather,
    microbatches,
    packed_implementation,
    packed_layout,
    packed_rows,
    padded_layout,
    to_device,
)
from rl.engines.local.precision import Precision, autocast
from rl.errors import UserError
from rl.losses.base import PolicyLoss
from rl.losses.kl import token_kl
from rl.models.adapters import require_run_base, write_base
from rl.models.device import memory_errors
from rl.optimizer import OptimizerConfig
from rl.rollouts import TrainingRow

log = logging.getLogger("tanka")

# Largest number of logits computed at once; with several pieces, the backward pass recomputes each.
LOGITS_AT_ONCE = 2**26


@dataclass
class _Sums:
    """Results of one update, one tensor per micro-batch; see UpdateStats. order: row indices as processed."""

    order: list[int] = field(default_factory=list)
    loss: list[Tensor] = field(default_factory=list)
    sequence_kl: list[Tensor] = field(default_factory=list)
    admitted: list[Tensor] = field(default_factory=list)
    log_ratio: list[Tensor] = field(default_factory=list)
    reference_kl: list[Tensor] = field(default_factory=list)
    coefficients: list[Tensor] = field(default_factory=list)

    def in_order(self, values: list[Tensor]) -> list:
        """[N] Python values in the order of the update's rows."""
        by_row = dict(zip(self.order, torch.cat(values).tolist(), strict=True))
        return [by_row[i] for i in range(len(by_row))]


class LocalLearner(Learner):
    """Trains `model` (a causal model, with or without a PEFT adapter inside) at one sampling temperature.

    adapter: the PEFT wrapper around the model, which saves only the adapter; None for full fine-tuning.
    tokenizer, base: saved beside the weights, base from `base_facts`; None for a learner that never saves.
    precision: of matrix products, float32 by default; `load` restores the saved one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: OptimizerConfig,
        temperature: float,
        microbatch_tokens: int,
        adapter: Any = None,
        tokenizer: Any = None,
        base: Mapping[str, str] | None = None,
        precision: Precision | None = None,
    ) -> None:
        self.model, self.adapter, self.tokenizer, self.base = model, adapter, tokenizer, base or {}
        self.temperature = temperature
        self.microbatch_tokens = microbatch_tokens
        self.precision = precision or Precision()
        self.halved = False
        with autocast(model.device, self.precision.compute):
            self.packed_implementation = packed_implementation(model)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.max_grad_norm = optimizer.max_grad_norm
        self.optimizer = optimizer.over(self.parameters)

    def logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """See `Learner`: nats, float32, in the order of the rows."""
        return self._score(rows)

    def reference_logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """[N][T] the same with the adapter turned off. Raises UserError where all weights are trained."""
        if self.adapter is None:
            return super().reference_logprobs(rows)
        with self.adapter.disable_adapter():
            return self._score(rows)

    def _score(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        self.model.eval()
        result: list[list[float]] = [[] for _ in rows]
        scoring = progress.task("scoring", len(rows), "rows")
        with torch.no_grad(), self._attention(), scoring:
            for indices in microbatches(rows, self.microbatch_tokens, self.packs):
                layout = self._layout([rows[i] for i in indices])
                for i, values in zip(indices, layout.by_row(self._forward(layout)).tolist(), strict=True):
                    result[i] = values[: len(rows[i].response_tokens)]
                progress.advance(len(indices))
        return result

    def update(self, rows: Sequence[TrainingRow], loss: PolicyLoss, learning_rate: float) -> UpdateStats:
        """One optimiser step; none when every coefficient is 0 or the gradient is not finite.

        A batch without signal takes no step at all, because Adam's momentum and weight decay would move the weights
        even with a zero gradient.
        """
        self.model.train()
        with memory_errors(f"engine.microbatch_tokens={self.microbatch_tokens // 2}"):
            sums = self._backward_or_halve(rows, loss)
        admitted = sums.in_order(sums.admitted)
        total = float(torch.stack(sums.loss).sum())
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm))
        has_signal = any(any(row.coefficients) and ok for row, ok in zip(rows, admitted, strict=True))
        stepped = has_signal and math.isfinite(total) and math.isfinite(grad_norm)
        if stepped:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
        log_ratio = torch.cat(sums.log_ratio)
        ratio = log_ratio.exp()
        metrics = loss.metrics(log_ratio, torch.cat(sums.coefficients))
        if loss.needs_reference:
            metrics["kl_reference"] = torch.cat(sums.reference_kl).mean().item()
        return UpdateStats(
            loss=total,
            grad_norm=grad_norm,
            stepped=stepped,
            sequence_kl=sums.in_order(sums.sequence_kl),
            admitted=admitted,
            ratio_mean=ratio.mean().item(),
            ratio_max=ratio.max().item(),
            ratio_min=ratio.min().item(),
            metrics=metrics,
        )

    def _backward_or_halve(self, rows: Sequence[TrainingRow], loss: PolicyLoss) -> _Sums:
        """`_backward`; after the first out-of-memory error, once more with micro-batches of half the size."""
        try:
            return self._backward(rows, loss)
        except torch.OutOfMemoryError:
            if self.halved:
                raise
        self.halved = True
        self.microbatch_tokens //= 2
        log.warning(
            "out of memory: micro-batches are halved; next time type engine.microbatch_tokens=%d",
            self.microbatch_tokens,
        )
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        return self._backward(rows, loss)

    def _backward(self, rows: Sequence[TrainingRow], loss: PolicyLoss) -> _Sums:
        """Accumulates the gradient of the whole batch over micro-batches, and returns their measurements.

        A row whose coefficients are all 0, as in a group of equal rewards, has no gradient unless there is a KL penalty: it
        is only scored.
        """
        self.optimizer.zero_grad(set_to_none=True)
        sums = _Sums()
        with self._attention(), progress.task("updating", len(rows), "rows"):
            for teaches in (True, False):
                chosen = [
                    i for i, row in enumerate(rows) if (any(row.coefficients) or row.kl_weight > 0) == teaches
                ]
                with torch.set_grad_enabled(teaches):
                    for batch in microbatches([rows[i] for i in chosen], self.microbatch_tokens, self.packs):
                        self._microbatch(rows, [chosen[j] for j in batch], loss, sums)
        return sums

    def _microbatch(
        self, rows: Sequence[TrainingRow], indices: list[int], loss: PolicyLoss, sums: _Sums
    ) -> None:
        """Adds one micro-batch to `sums` and, if gradients are enabled, to the gradient."""
        batch = [rows[i] for i in indices]
        layout = self._layout(batch)
        current = self._forward(layout)
        given = [
            [value for row in batch for value in compress(row.behavior_logprobs, row.mask)],
            [value for row in batch for value in compress(row.coefficients, row.mask)],
        ]
        behavior, coefficients = to_device(torch.tensor(given), current.device)
        mask = torch.ones_like(layout.targets, dtype=torch.bool)
        surrogate = loss.surrogate(*map(layout.by_row, (current, behavior, coefficients, mask)))
        total = surrogate.loss
        if loss.needs_reference:
            given = [
                [value for row in batch for value in compress(row.reference_logprobs, row.mask)],
                [row.kl_weight for row in batch for _ in range(sum(row.mask))],
            ]
            reference, weights = to_device(torch.tensor(given), current.device)
            divergence = token_kl(current, reference)
            total = total + weights @ divergence
            sums.reference_kl.append(divergence.detach())
        if torch.is_grad_enabled():
            total.backward()
        progress.advance(len(indices))
        sums.order += indices
        sums.loss.append(total.detach())
        sums.sequence_kl.append(surrogate.sequence_kl)
        sums.admitted.append(surrogate.admitted)
        sums.log_ratio.append(surrogate.log_ratio.flatten()[layout.cells])
        sums.coefficients.append(coefficients)

    @property
    def packs(self) -> bool:
        """Whether rows are packed: shared prompts, no padding. See rl/engines/local/packing.py."""
        return self.packed_implementation is not None

    def _attention(self) -> AbstractContextManager[None]:
        """The context that `_layout` needs around forward and backward, where checkpointed layers run again."""
        return packed_rows(self.model) if self.packs else nullcontext()

    def _layout(self, rows: Sequence[TrainingRow]) -> Layout:
        if self.packed_implementation is None:
            return padded_layout(rows, self.model.device)
        return packed_layout(rows, self.model.device, self.packed_implementation)

    def _forward(self, layout: Layout) -> Tensor:
        """[C] log-probabilities of the sampled tokens."""
        with autocast(self.model.device, self.precision.compute):
            hidden = self.model.base_model(**layout.inputs, use_cache=False).last_hidden_state
            return self._token_logprobs(gather(hidden.flatten(0, 1), layout.predicting), layout.targets)

    def _token_logprobs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """[K] log-probabilities of `targets` [K] from `hidden` [K, H], computed in pieces."""
        piece = max(1, LOGITS_AT_ONCE // self.model.config.get_text_config().vocab_size)
        if len(hidden) <= piece:
            return self._head(hidden, targets)
        pieces = zip(hidden.split(piece), targets.split(piece), strict=True)
        return torch.cat([checkpoint(self._head, h, t, use_reentrant=False) for h, t in pieces])

    def _head(self, hidden: Tensor, targets: Tensor) -> Tensor:
        logits = self.model.get_output_embeddings()(hidden).float()
        softcap = getattr(self.model.config.get_text_config(), "final_logit_softcapping", None)
        if softcap:
            logits = softcap * torch.tanh(logits / softcap)
        if self.temperature != 1:
            logits = logits / self.temperature
        return TokenLogprobs.apply(logits, targets)

    def save(self, path: Path) -> None:
        with (path / "state.pt").open("wb") as file:  # Python's file reports a full disk clearly
            torch.save(
                {
                    "weights": self._trained(),
                    "optimizer": self.optimizer.state_dict(),
                    "compute": self.precision.compute,
                },
                file,
            )
        self.export(path)

    def load(self, path: Path) -> None:
        require_run_base(path, self.base)
        state = torch.load(path / "state.pt", map_location=self.model.device, weights_only=True)
        trained = self._trained()
        if {k: v.shape for k, v in state["weights"].items()} != {k: v.shape for k, v in trained.items()}:
            raise UserError(
                f"{path}: its weights do not fit this model; resume with the model it was trained from"
            )
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.precision.compute = state["compute"]

    def export(self, path: Path) -> None:
        (self.adapter or self.model).save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        write_base(path, self.base)

    def close(self) -> None:
        on_gpu = self.model.device.type == "cuda"
        del self.model, self.adapter, self.optimizer, self.parameters
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()

    def _trained(self) -> dict[str, Tensor]:
        """The parameters under training, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}
