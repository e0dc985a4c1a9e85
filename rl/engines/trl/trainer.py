"""TRL's GRPOTrainer with our batches, coefficients and surrogate instead of its own.

tests/engines/test_trl_contract.py lists what is overridden, and fails when a TRL upgrade changes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate.utils import gather_object, is_peft_model
from datasets import Dataset
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedTokenizerBase, PrinterCallback
from trl import GRPOConfig, GRPOTrainer
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.utils import pad

from rl import progress
from rl.blueprint import Blueprint
from rl.engines.base import Steps, UpdateStats
from rl.engines.trl.correcting import corrected_share, joined_correction
from rl.engines.trl.ranks import Ranks
from rl.engines.trl.scoring import (
    completion_logprobs,
    reference_kl,
    reference_logprobs,
    require_same_policy,
)
from rl.engines.trl.vllm import merged_parameters
from rl.losses.base import Surrogate
from rl.rollouts import TrainingRow
from rl.seeds import derived_seed


@dataclass
class Share:
    """Measurements of one update, accumulated over one process's micro-batches; see UpdateStats.

    rows: index in the batch -> (mean Bernoulli KL, admitted). signal: whether an admitted row has a coefficient.
    """

    loss: float = 0.0
    signal: bool = False
    rows: dict[int, tuple[float, bool]] = field(default_factory=dict)
    log_ratios: list[Tensor] = field(default_factory=list)
    coefficients: list[Tensor] = field(default_factory=list)
    reference_kl: list[Tensor] = field(default_factory=list)

    def add(self, surrogate: Surrogate, inputs: dict[str, Tensor]) -> None:
        mask = inputs["sampled"]
        self.loss += surrogate.loss.item()
        self.signal |= bool((inputs["coefficients"].any(-1) & surrogate.admitted).any())
        self.log_ratios.append(surrogate.log_ratio[mask].cpu())
        self.coefficients.append(inputs["coefficients"][mask].cpu())
        kl, admitted = surrogate.sequence_kl.tolist(), surrogate.admitted.tolist()
        self.rows |= dict(zip(inputs["row"].tolist(), zip(kl, admitted, strict=True), strict=True))


class PolicyTrainer(GRPOTrainer):
    """Trains one process's share of every batch; accelerate averages the gradients of all processes.

    steps: the run's steps on rank 0, None elsewhere. One of our steps is `loss.updates_per_batch` trainer steps.
    """

    args: GRPOConfig
    model: Any
    optimizer: Any
    train_dataset: Dataset

    def __init__(
        self,
        args: GRPOConfig,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        blueprint: Blueprint,
        ranks: Ranks,
        steps: Steps | None,
        total_steps: int,
    ) -> None:
        self.blueprint, self.ranks, self.steps, self.total_steps = blueprint, ranks, steps, total_steps
        self.share, self.stepped, self.compared = Share(), False, False
        args.max_steps = total_steps * blueprint.loss.updates_per_batch
        super().__init__(
            model=model,
            reward_funcs=[_rewarded_elsewhere],
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [""] * total_steps}),  # one row per step
            processing_class=tokenizer,
        )
        self.remove_callback(PrinterCallback)
        if self.use_vllm and is_peft_model(self.model):
            generation: Any = self.vllm_generation
            generation._iter_named_params = lambda: merged_parameters(generation)
        plugin = self.accelerator.state.fsdp_plugin if self.accelerator.is_fsdp2 else None
        if plugin and plugin.mixed_precision_policy:
            # Otherwise log-probabilities and summed gradients would be rounded to bfloat16.
            plugin.mixed_precision_policy = replace(
                plugin.mixed_precision_policy, output_dtype=None, reduce_dtype=torch.float32
            )

    def _send_telemetry(self) -> None:
        """Disabled: runs send no telemetry to TRL's authors."""

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            config = self.blueprint.optimizer
            self.optimizer = torch.optim.AdamW(
                [p for p in (model or self.model).parameters() if p.requires_grad],
                lr=self.blueprint.learning_rate,
                betas=config.betas,
                eps=config.eps,
                weight_decay=config.weight_decay,
            )
            self.optimizer.register_step_pre_hook(self._before_step)
        return self.optimizer

    @property
    def step(self) -> int:
        """Our current step, counted from 1."""
        return self.state.global_step // self.num_iterations + 1

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
        """This process's rows of the next batch, which rank 0 prepares with the help of the others."""
        rows = self.ranks.meet(lambda: self._prepare(self.step))
        rank, size = self.accelerator.process_index, len(rows) // self.accelerator.num_processes
        # Dropout and row order depend only on the step, so no random state needs to be stored.
        torch.manual_seed(derived_seed(self.blueprint.seed, f"update on {rank}", self.step))
        self.model.train()
        share = range(rank * size, (rank + 1) * size)
        inputs = _tensors(rows, share, self._tokenizer.pad_token_id, self.args.device)
        if self.blueprint.loss.correction != "none":
            self.corrected = corrected_share(self, self.blueprint.loss, rows, share, inputs)
            rows = [*rows[: share.start], *self.corrected[1], *rows[share.stop :]]
            inputs = _tensors(rows, share, self._tokenizer.pad_token_id, self.args.device)
        if self.blueprint.loss.needs_reference:
            inputs["reference_logprobs"] = reference_logprobs(self, inputs)
        return inputs

    def _prepare(self, step: int) -> list[TrainingRow]:
        assert self.steps is not None
        return self.steps.prepare(step)

    def _compute_loss(self, model: Any, inputs: dict[str, Tensor]) -> Tensor:
        """The SUM surrogate of one micro-batch, times the number of processes, because gradients are averaged."""
        logprobs, loss = completion_logprobs(self, model, inputs), self.blueprint.loss
        surrogate = loss.surrogate(
            logprobs, inputs["behavior_logprobs"], inputs["coefficients"], inputs["sampled"]
        )
        if loss.needs_reference:
            penalty, divergence = reference_kl(logprobs, inputs)
            surrogate = replace(surrogate, loss=surrogate.loss + penalty)
            self.share.reference_kl.append(divergence.cpu())
        self.share.add(surrogate, inputs)
        progress.advance(len(inputs["row"]) * self.accelerator.num_processes)
        if self.accelerator.sync_gradients:  # last micro-batch: DeepSpeed steps inside its backward pass
            self._join(gather_object([self.share]))
        return surrogate.loss * self.accelerator.num_processes

    def _join(self, shares: Sequence[Share]) -> None:
        """Combines all processes' measurements of this update, before its optimiser step."""
        rows = {index: facts for share in shares for index, facts in share.rows.items()}
        log_ratio = torch.cat([values for share in shares for values in share.log_ratios])
        coefficients = torch.cat([values for share in shares for values in share.coefficients])
        metrics = self.blueprint.loss.metrics(log_ratio, coefficients)
        if divergences := [values for share in shares for values in share.reference_kl]:
            metrics["kl_reference"] = torch.cat(divergences).mean().item()
        difference = log_ratio.abs().max().item()
        if self.blueprint.loss.correction != "none":
            measured, difference = joined_correction(self.corrected)
            metrics |= measured
        ratio = log_ratio.exp()
        loss = math.fsum(share.loss for share in shares)
        self.share = Share()
        self.stepped = any(share.signal for share in shares) and math.isfinite(loss)
        self.stats = UpdateStats(
            loss=loss,
            grad_norm=math.nan,  # known after the backward pass
            stepped=self.stepped,
            sequence_kl=[rows[index][0] for index in range(len(rows))],
            admitted=[rows[index][1] for index in range(len(rows))],
            ratio_mean=ratio.mean().item(),
            ratio_max=ratio.max().item(),
            ratio_min=ratio.min().item(),
            metrics=metrics,
        )
        if not self.compared:
            self.compared = True
            lora = self.blueprint.model.lora
            rounded = self.args.bf16 or self.use_vllm or self.model.dtype != torch.float32
            require_same_policy(difference, bool(rounded or (lora and lora.dropout)), self.ranks.leads)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The gradient norm over all processes; clears `stepped` if it is not finite.

        Called before the optimiser step, but after it under DeepSpeed, which skips such a step by itself.
        """
        norm = super()._get_grad_norm(model, grad_norm)
        self.stepped &= math.isfinite(float(norm))
        return norm

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Sets the step's learning rate; removes the gradients if there is no signal or something is not finite.

        AdamW skips parameters without a gradient; with a zero gradient, momentum and decay would still move them.
        """
        rate = self.blueprint.optimizer.rate(self.blueprint.learning_rate, self.step, self.total_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
            for parameter in group["params"] if not self.stepped else ():
                parameter.grad = None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Called after each update; concludes our step after the last update of a batch."""
        if "loss" in logs and self.state.global_step % self.num_iterations == 0:
            self.ranks.meet(lambda: self._conclude(logs["grad_norm"]))

    def _conclude(self, grad_norm: float) -> None:
        assert self.steps is not None
        self.steps.conclude(replace(self.stats, grad_norm=grad_norm, stepped=self.stepped))

    def synced_vllm(self) -> Any:
        """TRL's vLLM with the current weights."""
        if self.state.global_step != self._last_loaded_step:
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step
        return self.vllm_generation

    @contextmanager
    def whole_model(self) -> Iterator[Any]:
        """The policy with all its weights gathered on this process, in evaluation mode (no dropout)."""
        kwargs: Any = self.args.gradient_checkpointing_kwargs
        with (
            unwrap_model_for_generation(
                self.model_wrapped, self.accelerator, gradient_checkpointing_kwargs=kwargs
            ) as model,
            self._dist.summon_full_params(self.model_wrapped, writeback=False),
            _unsharded(self.model_wrapped),
        ):
            model.eval()
            yield without_wrapper(model)


def without_wrapper(model: Any) -> Any:
    """The model without PEFT's wrapper; under FSDP2 with it, because its forward pass gathers the shards."""
    return model.get_base_model() if is_peft_model(model) and not isinstance(model, FSDPModule) else model


@contextmanager
def _unsharded(model: Any) -> Iterator[None]:
    """Keeps FSDP2 weights gathered: processes that decode different numbers of tokens cannot gather per token."""
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()


def _tensors(rows: Sequence[TrainingRow], share: range, pad_id: int, device: Any) -> dict[str, Tensor]:
    """Tensors of one share: prompts padded on the left [B, P], the rest on the right [B, T]; `row`, `kl_weight`: [B].

    `completion_mask`: the response tokens, which attention reads. `sampled`: those among them that the loss reads.
    """
    chosen = [rows[index] for index in share]

    def padded(values: Callable[[TrainingRow], Sequence[float]], filler: int, side: str) -> Tensor:
        return pad([torch.tensor(values(row)) for row in chosen], filler, side).to(device)

    return {
        "prompt_ids": padded(lambda row: row.prompt_tokens, pad_id, "left"),
        "prompt_mask": padded(lambda row: [1] * len(row.prompt_tokens), 0, "left"),
        "completion_ids": padded(lambda row: row.response_tokens, pad_id, "right"),
        "completion_mask": padded(lambda row: [1] * len(row.response_tokens), 0, "right"),
        "sampled": padded(lambda row: row.mask, 0, "right"),
        "behavior_logprobs": padded(lambda row: row.behavior_logprobs, 0, "right"),
        "coefficients": padded(lambda row: row.coefficients, 0, "right"),
        "row": torch.tensor(list(share), device=device),
        "kl_weight": torch.tensor([row.kl_weight for row in chosen], device=device),
    }


def _rewarded_elsewhere(**_: Any) -> list[float | None]:
    """Placeholder for TRL's required reward function; rank 0 scores our rewards over the whole batch."""
    raise NotImplementedError
