"""Encodes text without letting content write control tokens, and decodes ids with every token visible."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A lone surrogate is not valid text, and `shield` replaces those in content, so content cannot forge the mark.
_BREAK = "\udc00"
_SURROGATES = re.compile("[\ud800-\udfff]")


def control_pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches the first character of each occurrence of a control token's text, overlapping ones included."""
    alternatives = "|".join(re.escape(token) for token in tokens if len(token) > 1)
    return re.compile(f"(?s)(?=(?:{alternatives})).") if alternatives else re.compile("(?!)")


def shield(content: str, controls: re.Pattern[str]) -> str:
    """`content` with a mark inside each control token's text, so that `encode` reads it as ordinary text.

    transformers' own `sanitize_control_tokens` wraps the tokens instead. A template then no longer strips the newlines
    around an earlier turn's think tags, which changes the prompt.
    """
    return controls.sub(rf"\g<0>{_BREAK}", _SURROGATES.sub("\ufffd", content))


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of rendered text, which already holds any BOS. Text without marks is encoded in one piece."""
    pieces = text.split(_BREAK)
    return [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]


def decode(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    """Text with special tokens kept, because a think tag may be one. A character cut by the budget becomes U+FFFD."""
    return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))
