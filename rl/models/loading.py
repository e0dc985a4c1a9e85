"""Loading a checkpoint: tokenizer, renderer, weights, and fresh LoRA adapters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import renderers
from renderers.base import Renderer, RendererConfig
from rl.errors import UserError, first_line
from rl.models.adapters import adapts_tied_weights, quiet_peft
from rl.models.compatibility import require_causal
from rl.models.config import LoraConfig, ModelConfig
from rl.models.hub import hub, loading_weights, model_errors
from rl.models.quantization import keep_exact, nf4_config
from rl.storage.file_kinds import lfs_pointer, pointer_advice

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# Every tokenizer folder has at least one of these.
VOCABULARIES = ("tokenizer.json", "*.model", "vocab*", "*.tiktoken", "tekken.json")


def open_renderer(model: ModelConfig, config: RendererConfig) -> tuple[Any, Renderer]:
    """The model's tokenizer and the renderer bound to it."""
    from rl.models.loading import load_tokenizer

    tokenizer = load_tokenizer(model)
    renderer = renderers.load(
        config,
        tokenizer,
        model_renderer=model.renderer,
        stop_tokens=model.stop_tokens,
        eos_ids=end_ids(model),
    )
    return tokenizer, renderer


def end_ids(model: ModelConfig) -> list[int]:
    """The end-of-sequence ids of the checkpoint's generation config; [] when it has none."""
    from transformers import GenerationConfig

    from rl.models.loading import checkpoint_errors

    try:
        with checkpoint_errors(model):
            ids = GenerationConfig.from_pretrained(
                model.source, revision=model.revision or "main"
            ).eos_token_id
    except UserError:
        return []
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def read_model(spec: ModelConfig, attn_implementation: str, on_gpu: bool) -> PreTrainedModel:
    """The causal model, not yet on its device; on_gpu: whether it will run on a GPU.

    Raises UserError, with what to type, when the checkpoint cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # for reading and writing shards; download bars stay
    # Full fine-tuning keeps float32 master weights (a bf16 weight rounds small updates away) and computes in bf16.
    dtype = {
        "auto": torch.bfloat16 if on_gpu and spec.lora else torch.float32,
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
    }[spec.dtype]
    with checkpoint_errors(spec), loading_weights(spec.source, spec.revision):
        config = checkpoint_config(spec)
        require_causal(config, spec.source)
        found: Any = AutoModelForCausalLM.from_pretrained(
            spec.source,
            config=config,
            revision=spec.revision,
            dtype=dtype,
            quantization_config=nf4_config(on_gpu) if spec.quantization else None,
            attn_implementation=attn_implementation,
            output_loading_info=True,
        )
    model, loaded = found
    if missing := sorted(loaded["missing_keys"]):
        raise UserError(
            f"{spec.source}: lacks {len(missing)} of the model's tensors (first: {missing[0]}), which would be"
            " initialised at random; give a complete checkpoint of a causal language model"
        )
    if spec.quantization:
        keep_exact(model)
    return model


def add_lora(model: PreTrainedModel, lora: LoraConfig, checkpointing: bool, seed: int) -> tuple[Any, Any]:
    """(`model` with fresh adapters inside, the PEFT wrapper that saves them). Raises UserError for bad target modules."""
    import peft
    import torch

    torch.manual_seed(seed)  # LoRA's A matrices are drawn at random
    try:
        with quiet_peft():
            adapter = peft.get_peft_model(
                model,
                peft.LoraConfig(
                    r=lora.rank,
                    lora_alpha=lora.alpha,  # type: ignore[arg-type]
                    lora_dropout=lora.dropout,
                    target_modules=lora.target_modules,
                    task_type="CAUSAL_LM",
                ),
            )
    except (ValueError, re.error) as error:
        raise UserError(
            f"model.lora.target_modules={lora.target_modules}: {str(error).splitlines()[0]}"
        ) from None
    if adapts_tied_weights(model):
        raise UserError(
            "model.lora.target_modules: this model ties its head to its embedding, and an adapter on one would change both"
            " when merged; leave lm_head and embed_tokens out, e.g. model.lora.target_modules=all-linear"
        )
    if checkpointing:
        model.enable_input_require_grads()
    return adapter.get_base_model(), adapter


def has_tokenizer(folder: Path) -> bool:
    return any(any(folder.glob(name)) for name in VOCABULARIES)


def load_tokenizer(spec: ModelConfig) -> Any:
    """The model's own tokenizer. Raises UserError like `read_model`, and for a folder without tokenizer files.

    transformers would silently make a tokenizer with an empty vocabulary there.
    """
    from transformers import AutoTokenizer

    if spec.path is not None and not has_tokenizer(spec.local_path):
        raise UserError(
            f"model.path={spec.path}: its tokenizer files are missing (tokenizer.json, or a vocabulary"
            " file); copy them from the base model: AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)"
        )
    with checkpoint_errors(spec):
        return AutoTokenizer.from_pretrained(spec.source, revision=spec.revision)


@contextmanager
def checkpoint_errors(spec: ModelConfig) -> Iterator[None]:
    """Turns a failure to fetch or read a checkpoint into one line with what to type."""
    if spec.path is None:
        assert spec.id is not None
        with hub("model", spec.id), model_errors(spec.id):
            yield
        return
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a damaged file makes transformers and safetensors raise many kinds
        if pointer := lfs_pointer(spec.local_path):
            raise UserError(f"model.path={spec.path}: {pointer_advice(pointer)}") from None
        raise UserError(
            f"model.path={spec.path}: transformers cannot load this checkpoint ({type(error).__name__}: {first_line(error)}); are its config.json,"
            " tokenizer and weights whole? Copy them again, or give another model.path"
        ) from None


def context_of(model: ModelConfig) -> int | None:
    """The model's context in tokens, prompt plus completion, read without its weights; None: unknown."""
    return getattr(checkpoint_config(model).get_text_config(), "max_position_embeddings", None)


def checkpoint_config(spec: ModelConfig) -> Any:
    """The checkpoint's config, with `spec.context` applied. Raises UserError like `read_model`."""
    from transformers import AutoConfig

    with checkpoint_errors(spec):
        config = AutoConfig.from_pretrained(spec.source, revision=spec.revision)
    if spec.context is not None:
        config.get_text_config().max_position_embeddings = spec.context
    return config
