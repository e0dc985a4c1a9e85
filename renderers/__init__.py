"""Chat formats: how a conversation becomes prompt ids, and how a completion's ids become thinking and answer."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, get_args, get_type_hints

from renderers.base import OwnRendererConfig, Renderer, RendererConfig
from rl.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Renderer", "RendererConfig", "load"]

logger = logging.getLogger("tanka")

# A named format is the model's own template in one mode; the vocabulary must hold these tokens.
_CHATML = ("<|im_start|>", "<|im_end|>")
NAMES = get_args(get_type_hints(RendererConfig)["name"])
_VOCABULARY = {
    "qwen3": _CHATML,
    "qwen3_disable_thinking": _CHATML,
    "qwen2": _CHATML,
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
}
_THINKING = {"qwen3": True, "qwen3_disable_thinking": False}


def load(
    config: RendererConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    model_renderer: str = "auto",
    stop_tokens: Iterable[str] = (),
    eos_ids: Iterable[int] = (),
) -> Renderer:
    """The renderer that `config` names, bound to `tokenizer`.

    model_renderer: the catalogue's format for the model, used by `renderer=auto`; `auto` for unknown models.
    stop_tokens, eos_ids: the catalogue's stop tokens and the generation config's EOS ids. They end a completion as
    well as the tokenizer's EOS and the template's end of turn.

    Raises UserError when the vocabulary, the template or the thinking mode does not fit.
    """
    model = tokenizer.name_or_path or "this model"
    name: str = model_renderer if config.name == "auto" else config.name
    if name not in NAMES:
        raise UserError(
            f"model.renderer={name}: no such chat format; expected one of {', '.join(NAMES)}; for a format of your own"
            " type renderer=NAME (docs/extending.md)"
        )
    if name == "auto" and not isinstance(config, OwnRendererConfig):
        logger.warning("renderer=auto: %s is not in the catalogue; using its own chat template", model)
        name = "chat_template"
    vocabulary = tokenizer.get_vocab()
    if missing := [token for token in _VOCABULARY.get(name, ()) if token not in vocabulary]:
        raise UserError(
            f"renderer={name}: the vocabulary of {model} lacks {' '.join(missing)};"
            " type renderer=chat_template to use the model's own format"
        )
    if missing := [token for token in stop_tokens if token not in vocabulary]:
        raise UserError(
            f"model.stop_tokens: the vocabulary of {model} lacks {' '.join(missing)};"
            " type model.stop_tokens=[] to use only the end tokens that the model names itself"
        )
    stop_ids = frozenset([*eos_ids, *(vocabulary[token] for token in stop_tokens)])
    if tokenizer.eos_token_id is not None:
        stop_ids |= {tokenizer.eos_token_id}

    if isinstance(config, OwnRendererConfig):
        from renderers.own import make_own

        return make_own(config, tokenizer, stop_ids)
    if name == "role_colon":
        from renderers.role_colon import RoleColon

        return RoleColon(tokenizer, stop_ids)
    from renderers.chat_template import ChatTemplate

    return ChatTemplate(tokenizer, name, stop_ids, _THINKING.get(name, config.thinking), config.template)
