"""Splits a completion's ids into thinking and answer at the think tags; nothing is re-encoded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from renderers.tokens import decode
from rl.rollouts import Completion, Ended, Parsed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

Span = tuple[int, int]
Whole = TypeVar("Whole", str, list[int])


class Parser:
    """Splits at the tokenizer's think tokens if it has them, otherwise at the tags as plain text.

    turn_end: the stop id that ends a turn (`stop`); every other stop id counts as `eos`.
    stop_text: text that ends a turn, for a format without a token for it; think tags are then plain text too.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: frozenset[int],
        turn_end: int | None = None,
        prefilled: bool = False,
        stop_text: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._turn_end = turn_end
        self._prefilled = prefilled
        self._stop_text = stop_text
        vocabulary = tokenizer.get_vocab()
        self._open, self._close = vocabulary.get(THINK_OPEN), vocabulary.get(THINK_CLOSE)

    def parse(self, completion: Completion) -> Parsed:
        """The completion up to its first stop token or stop text. The sampler decides whether the budget cut it."""
        tokens = completion.tokens
        end = next((i for i, token in enumerate(tokens) if token in self._stop_ids), None)
        ended: Ended = "length"
        if completion.stop_reason == "stop":
            ended = "stop" if end is None or tokens[end] == self._turn_end else "eos"
        body = tokens[:end]
        raw = decode(self._tokenizer, body)
        if self._stop_text is not None:
            raw = raw.partition(self._stop_text)[0]
        if self._stop_text is None and self._open is not None and self._close is not None:
            opens, closes = _token_spans(body, self._open), _token_spans(body, self._close)
            parts = split_thinking(body, opens, closes, self._prefilled)
            thinking, text = (decode(self._tokenizer, part) for part in parts)
        else:
            opens, closes = _text_spans(raw, THINK_OPEN), _text_spans(raw, THINK_CLOSE)
            thinking, text = split_thinking(raw, opens, closes, self._prefilled)
        unfinished = is_unfinished(opens, closes, self._prefilled)
        return Parsed(thinking.strip(), text.strip(), raw, ended, self._prefilled, unfinished)


def split_thinking(
    whole: Whole, opens: Sequence[Span], closes: Sequence[Span], prefilled: bool
) -> tuple[Whole, Whole]:
    """(thinking, answer): the answer is the part after the last closing tag, empty if the reasoning is unfinished."""
    nothing = whole[:0]
    begin = 0 if prefilled else opens[0][1] if opens else None
    if is_unfinished(opens, closes, prefilled):
        return whole[begin:], nothing
    return (whole[begin or 0 : closes[-1][0]], whole[closes[-1][1] :]) if closes else (nothing, whole)


def is_unfinished(opens: Sequence[Span], closes: Sequence[Span], prefilled: bool) -> bool:
    """Whether the last opening tag has no closing tag after it."""
    return opens[-1] > closes[-1] if opens and closes else not closes and (prefilled or bool(opens))


def _token_spans(tokens: list[int], tag: int) -> list[Span]:
    return [(i, i + 1) for i, token in enumerate(tokens) if token == tag]


def _text_spans(text: str, tag: str) -> list[Span]:
    return [match.span() for match in re.finditer(re.escape(tag), text)]
