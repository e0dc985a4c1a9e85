"""Estimates the memory of a step of `engine=local`, part by part, from the model's shape alone.

Always held: weights, adapters, gradients, AdamW's two moments. In addition, alternately: the sampler's key-value cache
and logits, or the learner's activations and logits. Not counted: Python, the libraries and a CUDA context (about
1 GiB), and the allocator's fragmentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rl.blueprint import Blueprint
from rl.engines.local.options import LocalOptions
from rl.models.config import LoraConfig, ModelConfig
from rl.models.loading import checkpoint_config
from rl.models.quantization import NF4_BYTES

if TYPE_CHECKING:
    import torch

HELD = ("weights", "adapters", "gradients", "optimizer")
SAMPLING = ("kv_cache", "sampling_logits")
TRAINING = ("activations", "training_logits")

LOGITS_COPIES = 3  # the head's output, its log-softmax, and one more in the backward pass


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder-only transformer with gated feed-forward layers (Llama, Qwen)."""

    parameters: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of each projection of a layer, by its name in LoRA's target_modules."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (hidden, queries),
            "k_proj": (hidden, keys),
            "v_proj": (hidden, keys),
            "o_proj": (queries, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }

    @property
    def saved_values(self) -> int:
        """Values saved for the backward pass, per token and layer.

        6 of the hidden size for two RMSNorms (input, normalized, scaled), 4 of the inner size for the gated layer, and
        for attention 4 of queries and of keys, 2 of those for Qwen3's norms. Counted with autograd's saved-tensor hooks.
        """
        attention = (self.heads + self.kv_heads) * self.head_dim
        return 6 * self.hidden_size + 4 * self.intermediate_size + 4 * attention

    def adapter_parameters(self, lora: LoraConfig) -> int:
        """rank x (inputs + outputs) of each adapted projection."""
        wanted = lora.target_modules
        sizes = [sum(size) for name, size in self.linears.items() if wanted == "all-linear" or name in wanted]
        return self.layers * lora.rank * sum(sizes)


def shape_of(model: ModelConfig) -> ModelShape:
    """A model's shape, from the catalogue if it is listed there, else from its config.json, as with a `path` of its own."""
    names = {field.name for field in fields(ModelShape)}
    if model.path is None and names <= model.facts.keys():
        return ModelShape(**{name: model.facts[name] for name in names})
    config = text_config(model)
    sizes = {
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
    }
    layer = sum(inputs * outputs for inputs, outputs in ModelShape(0, **sizes).linears.values())
    tables = 1 if config.tie_word_embeddings else 2
    parameters = config.num_hidden_layers * layer + tables * config.vocab_size * config.hidden_size
    return ModelShape(parameters, **sizes)


def text_config(model: ModelConfig) -> Any:
    """The checkpoint's config; of a multimodal model, its language part. Raises UserError as loading does."""
    return checkpoint_config(model).get_text_config()


def step_memory(
    blueprint: Blueprint,
    options: LocalOptions,
    shape: ModelShape,
    prompt_tokens: int,
    on_gpu: bool,
    max_kv_bytes: float,
) -> dict[str, float]:
    """Bytes by part (names above) for a step whose longest prompt has `prompt_tokens`; `peak`: the maximum in use."""
    lora = blueprint.model.lora
    casts = options.compute == "bfloat16" or (options.compute == "auto" and on_gpu)
    half = blueprint.model.dtype == "bfloat16" or (
        blueprint.model.dtype == "auto" and on_gpu and lora and options.compute != "float32"
    )
    weight = 2 if half else 4
    computed = 2 if casts else weight
    # Under autocast a float32 weight also has a bfloat16 copy.
    base: float = shape.parameters * (weight + 2 * (casts and not half))
    if blueprint.model.quantization:
        in_layers = shape.layers * sum(inputs * outputs for inputs, outputs in shape.linears.values())
        base = in_layers * NF4_BYTES + (shape.parameters - in_layers) * weight
    moment = 1 + 4 / 256 if blueprint.optimizer.name == "adamw_8bit" else None
    trained = shape.adapter_parameters(lora) if lora else shape.parameters
    trained_bytes = 4 if lora else weight  # peft keeps adapters in float32

    n, budget = blueprint.group_size, blueprint.budget.first(blueprint.max_tokens)
    group_tokens = prompt_tokens + n * budget  # completions share their prompt
    cached_tokens = n * (prompt_tokens + budget) if on_gpu else group_tokens  # on a GPU each row has a copy
    group_kv = 2 * shape.layers * shape.kv_heads * shape.head_dim * cached_tokens * weight
    groups = min(blueprint.batch_size, max(1, int(max_kv_bytes // group_kv)))
    tokens = min(options.microbatch(on_gpu), blueprint.batch_size * group_tokens)
    sampled = tokens * n * budget / group_tokens
    saved = shape.layers * shape.saved_values
    if options.checkpoints(on_gpu):
        saved = shape.layers * shape.hidden_size + shape.saved_values
    parts = {
        "weights": base,
        "adapters": trained * trained_bytes if lora else 0,
        "gradients": trained * trained_bytes,
        "optimizer": 2 * trained * (moment or trained_bytes),
        "kv_cache": groups * group_kv,
        "sampling_logits": LOGITS_COPIES * groups * n * shape.vocab_size * 4,
        "activations": tokens * saved * computed,
        "training_logits": LOGITS_COPIES * min(logits_at_once(), sampled * shape.vocab_size) * 4,
    }
    return {**parts, "peak": peak(parts)}


def peak(parts: Mapping[str, float]) -> float:
    """The parts always held, plus the larger of the sampling and training parts."""
    held, sampling, training = (sum(parts[name] for name in part) for part in (HELD, SAMPLING, TRAINING))
    return held + max(sampling, training)


def logits_at_once() -> int:
    """How many logits the learner computes at once."""
    from rl.engines.local.learner import LOGITS_AT_ONCE

    return LOGITS_AT_ONCE


def default_kv_gb(device: torch.device) -> float:
    """Half of the GPU memory that is free after loading the weights, in GiB; 4 on other devices."""
    import torch

    return torch.cuda.mem_get_info(device)[0] / 2 / 2**30 if device.type == "cuda" else 4.0
