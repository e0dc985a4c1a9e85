"""The learner: log-probabilities of completion tokens only, one optimiser step over micro-batches of rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rl.engines.base import OptimizerConfig, UpdateStats
from rl.losses import PolicyLoss
from rl.rollouts import TrainingRow

log = logging.getLogger("tanka")

# Logits are made for this many values at a time and recomputed in the backward pass: [tokens, vocabulary] never exists.
LOGITS_AT_ONCE = 2**25


@dataclass
class _Sums:
    """What the micro-batches of one update add up to: see UpdateStats. ratios: one tensor a micro-batch."""

    loss: float
    sequence_kl: list[float]
    admitted: list[bool]
    ratios: list[Tensor]


class Learner:
    """Trains `model` (a causal model, with or without a PEFT adapter inside) at one sampling temperature."""

    def __init__(
        self, model: PreTrainedModel, optimizer: OptimizerConfig, temperature: float, microbatch_tokens: int
    ) -> None:
        self.model = model
        self.temperature = temperature
        self.microbatch_tokens = microbatch_tokens
        self.halved = False
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.max_grad_norm = optimizer.max_grad_norm
        self.optimizer = torch.optim.AdamW(
            self.parameters, betas=optimizer.betas, eps=optimizer.eps, weight_decay=optimizer.weight_decay
        )

    def logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """[N][T] log-probabilities (nats, float32) of the completion tokens, in the order of the rows."""
        result: list[list[float]] = [[] for _ in rows]
        with torch.no_grad():
            for indices in self._microbatches(rows):
                batch = [rows[i] for i in indices]
                for i, row, values in zip(indices, batch, self._forward(batch).tolist(), strict=True):
                    result[i] = values[: len(row.completion_tokens)]
        return result

    def update(self, rows: Sequence[TrainingRow], loss: PolicyLoss, learning_rate: float) -> UpdateStats:
        """One optimiser step; none when every coefficient is 0 or the gradient is not finite.

        Adam's momentum and decay would move the weights even for a zero gradient, so a batch without signal takes no
        step at all (pitfall RL-20).
        """
        sums = self._backward_or_halve(rows, loss)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm))
        has_signal = any(any(row.coefficients) and ok for row, ok in zip(rows, sums.admitted, strict=True))
        stepped = has_signal and torch.isfinite(torch.tensor([sums.loss, grad_norm])).all().item()
        if stepped:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
        ratio = torch.cat(sums.ratios)
        return UpdateStats(
            loss=sums.loss,
            grad_norm=grad_norm,
            stepped=bool(stepped),
            sequence_kl=sums.sequence_kl,
            admitted=sums.admitted,
            ratio_mean=ratio.mean().item(),
            ratio_max=ratio.max().item(),
            ratio_min=ratio.min().item(),
        )

    def _backward_or_halve(self, rows: Sequence[TrainingRow], loss: PolicyLoss) -> _Sums:
        """`_backward`; the first time that the memory does not suffice, once more in micro-batches of half the size."""
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
        """The gradient of the whole batch, micro-batch after micro-batch, and what they say about it."""
        self.optimizer.zero_grad(set_to_none=True)
        sums = _Sums(0.0, [0.0] * len(rows), [True] * len(rows), [])
        for indices in self._microbatches(rows):
            batch = [rows[i] for i in indices]
            current = self._forward(batch)
            mask = _padded([[True] * len(row.completion_tokens) for row in batch], current, torch.bool)
            surrogate = loss.surrogate(
                current,
                _padded([row.behavior_logprobs for row in batch], current),
                _padded([row.coefficients for row in batch], current),
                mask,
            )
            surrogate.loss.backward()
            sums.loss += surrogate.loss.item()
            sums.ratios.append(surrogate.log_ratio[mask].exp())
            for i, row_kl, row_admitted in zip(
                indices, surrogate.sequence_kl.tolist(), surrogate.admitted.tolist(), strict=True
            ):
                sums.sequence_kl[i], sums.admitted[i] = row_kl, row_admitted
        return sums

    def _microbatches(self, rows: Sequence[TrainingRow]) -> Iterator[list[int]]:
        """Indices of rows of like length, as many at once as fit `microbatch_tokens` with their padding."""
        lengths = [len(row.prompt_tokens) + len(row.completion_tokens) for row in rows]
        batch: list[int] = []
        for i in sorted(range(len(rows)), key=lambda i: lengths[i]):
            if batch and (len(batch) + 1) * lengths[i] > self.microbatch_tokens:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _forward(self, rows: Sequence[TrainingRow]) -> Tensor:
        """[B, T] log-probabilities of the completions, 0 at padding.

        Rows are padded on the right: under causal attention no real token sees what follows it, so no mask is needed.
        """
        device = self.model.device
        width = max(len(row.prompt_tokens) + len(row.completion_tokens) for row in rows)
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        at: list[tuple[int, int]] = []  # (row, column) that predicts each completion token
        for r, row in enumerate(rows):
            ids = [*row.prompt_tokens, *row.completion_tokens]
            tokens[r, : len(ids)] = torch.tensor(ids)
            at += [(r, t - 1) for t in range(len(row.prompt_tokens), len(ids))]
        predicting, columns = torch.tensor(at, device=device).unbind(-1)
        tokens = tokens.to(device)
        with autocast(device):
            hidden = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
            values = self._token_logprobs(hidden[predicting, columns], tokens[predicting, columns + 1])
        longest = max(len(row.completion_tokens) for row in rows)
        offsets = torch.tensor([len(row.prompt_tokens) - 1 for row in rows], device=device)
        return values.new_zeros(len(rows), longest).index_put(
            (predicting, columns - offsets[predicting]), values
        )

    def _token_logprobs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """[K] log-probabilities of `targets` [K] from `hidden` [K, H], through the head in pieces."""
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
        return (logits / self.temperature).log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 matrix products on a GPU; sampler and learner both compute inside it, so that their ratio is 1."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def _padded(rows: Sequence[Sequence[float]], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """[B, T] tensor of rows of unequal length, 0 at padding."""
    result = torch.zeros(like.shape, dtype=dtype or like.dtype)
    for r, row in enumerate(rows):
        result[r, : len(row)] = torch.tensor(row, dtype=result.dtype)
    return result.to(like.device)
