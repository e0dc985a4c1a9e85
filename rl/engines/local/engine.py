"""`engine=local`: sampler and learner share one model in this process, on one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from rl import signals
from rl.blueprint import Blueprint
from rl.engines.base import Arrived, Engine, Sampler, SamplingParams
from rl.engines.local.histories import Histories
from rl.engines.local.learner import LocalLearner
from rl.engines.local.memory import default_kv_gb
from rl.engines.local.options import LearnerOptions, LocalOptions
from rl.engines.local.precision import Precision, compute_dtype, sampling_in
from rl.engines.local.sampler import sample
from rl.models.adapters import base_facts
from rl.models.compatibility import require_context, require_vocabulary
from rl.models.config import ModelConfig
from rl.models.device import memory_errors, resolve_device
from rl.models.loading import add_lora, read_model
from rl.rollouts import Completion

L = TypeVar("L", bound=LocalLearner)

# Share of the cache's memory for the states of one turn; those of two turns are held while a turn begins.
HISTORIES_SHARE = 0.25


def open_engine(options: LocalOptions, blueprint: Blueprint, tokenizer: Any) -> Engine:
    """The model, loaded once, as a sampler and a learner."""
    learner = open_learner(LocalLearner, options, blueprint, tokenizer)
    model = learner.model
    kv_gb = options.max_kv_gb or default_kv_gb(model.device)
    return Engine(LocalSampler(model, learner.precision, kv_gb, options.compile), learner)


def open_learner(kind: type[L], options: LearnerOptions, blueprint: Blueprint, tokenizer: Any) -> L:
    """The model, loaded, as a learner of class `kind`."""
    device = torch.device(resolve_device(blueprint.device))
    model, adapter = load_model(blueprint.model, options, device, seed=blueprint.seed)
    require_vocabulary(model, tokenizer, blueprint.model.source)
    base = base_facts(model, tokenizer)
    # Every forward pass is a safe point for signals. LlamaDecoder bypasses this hook: the sampler checks per token.
    model.base_model.register_forward_pre_hook(lambda *_: signals.check())
    microbatch = options.microbatch(on_gpu=device.type == "cuda")
    precision = Precision(compute_dtype(model, options.compute))
    return kind(
        model, blueprint.optimizer, blueprint.temperature, microbatch, adapter, tokenizer, base, precision
    )


class LocalSampler(Sampler):
    """Samples from the learner's weights, in its precision. kv_gb: GiB for keys and values; compiled: use torch.compile."""

    def __init__(self, model: PreTrainedModel, precision: Precision, kv_gb: float, compiled: bool) -> None:
        self.model, self.precision = model, precision
        self.kv_gb, self.compiled = kv_gb, compiled
        self.histories: Histories | None = None
        self.computed = self.needed = 0

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        """See `Sampler`. On a CPU `arrived` is not called: graders would compete with the sampler for cores."""
        if not params.limits:  # these are within the context
            require_context(self.model, prompts, params.max_tokens)
        self.model.eval()  # no dropout: log-probabilities must match the distribution sampled from
        device = self.model.device
        share = 1 if self.histories is None else 1 - 2 * HISTORIES_SHARE
        with (
            memory_errors(f"engine.max_kv_gb={self.kv_gb / 2:.2g}"),
            sampling_in(self.model, self.precision.compute, self.compiled),
        ):
            return sample(
                self.model,
                prompts,
                n,
                params,
                self.kv_gb * 2**30 * share,
                compiled=self.compiled,
                arrived=None if device.type == "cpu" else arrived,
                histories=self.histories,
            )

    @contextmanager
    def conversations(self) -> Iterator[None]:
        """See `Sampler`: keeps the keys and values of the turn before."""
        self.histories = Histories(self.kv_gb * 2**30 * HISTORIES_SHARE)
        try:
            yield
        finally:
            self.computed += self.histories.computed
            self.needed += self.histories.needed
            self.histories = None

    def metrics(self) -> dict[str, float]:
        """`tokens/prefilled_over_needed`; {} where no trajectory was sampled since the last call."""
        computed, needed = self.computed, self.needed
        self.computed = self.needed = 0
        return {"tokens/prefilled_over_needed": computed / needed} if needed else {}

    def close(self) -> None:
        del self.model


def load_model(
    spec: ModelConfig, options: LearnerOptions, device: torch.device, seed: int
) -> tuple[PreTrainedModel, Any]:
    """The causal model on `device`, and the PEFT wrapper around it (None for full fine-tuning).

    Raises UserError, with the Hub id and what to do, when the checkpoint cannot be loaded.
    """
    on_gpu = device.type == "cuda"
    if options.compute == "float32" and spec.dtype == "auto":
        spec = replace(spec, dtype="float32")
    model: Any = read_model(spec, options.attn_implementation, on_gpu)
    model.to(device)
    checkpointing = options.checkpoints(on_gpu)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if spec.lora is None:
        return model, None
    return add_lora(model, spec.lora, checkpointing, seed)
