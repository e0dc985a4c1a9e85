"""Checks that a model, its tokenizer and the run's settings fit together."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rl.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def require_vocabulary(model: PreTrainedModel, tokenizer: Any, source: str) -> None:
    """Raises UserError unless the embedding has a row for every id of the tokenizer."""
    rows: Any = model.get_input_embeddings().num_embeddings
    if (largest := max(tokenizer.get_vocab().values())) >= rows:
        raise UserError(
            f"{source}: its tokenizer has id {largest}, but its embedding only {rows} rows; give a"
            " checkpoint whose tokenizer and weights belong together"
        )


def require_causal(config: Any, source: str) -> None:
    """Raises UserError for a model with bidirectional attention: transformers loads some of these as causal models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    encoder = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    one_way = getattr(config, "is_decoder", False) or getattr(config, "causal", False)
    if config.is_encoder_decoder or (encoder and not one_way):
        kind = "an encoder-decoder" if config.is_encoder_decoder else "an encoder"
        raise UserError(
            f"{source}: {config.model_type} is {kind}; expected a causal language model,"
            " e.g. model=qwen3-0.6b"
        )


def require_attention(implementation: str) -> None:
    """Raises UserError if the package that `engine.attn_implementation` needs is not installed."""
    if implementation == "flash_attention_2" and not importlib.util.find_spec("flash_attn"):
        raise UserError(
            "engine.attn_implementation=flash_attention_2: the package flash-attn is not installed; type"
            " engine.attn_implementation=sdpa, or pip install flash-attn"
        )


def require_context(model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
    """Raises UserError unless the longest prompt plus `max_tokens` fits the model's context."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if context and (needed := max(map(len, prompts)) + max_tokens) > context:
        raise UserError(
            f"max_tokens={max_tokens}: the longest prompt and the budget make {needed} tokens, and the model's"
            f" context holds {context}; type max_tokens={max(1, context - needed + max_tokens)} or less (the widest"
            " budget of budget=tighten, budget=thinkprune and eval_max_tokens counts), or data.max_prompt_tokens=N"
        )
