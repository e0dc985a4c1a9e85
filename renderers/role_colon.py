"""Plain text for base models without a chat template: `User: …`, `Assistant: …`, with blank lines between turns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from renderers.base import Renderer, ToolSchema
from renderers.parsing import Parser
from renderers.tokens import control_pattern, decode, encode, shield
from rl.errors import UserError
from rl.rollouts import Completion, Message, Parsed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


STOP_TEXT = "\n\nUser:"


class RoleColon(Renderer):
    """A prompt ends with `Assistant:`. An answer ends at the next `User:` line (`stop`) or the model's EOS (`eos`)."""

    name = "role_colon"
    stop_text: str | None = STOP_TEXT

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_ids: frozenset[int]) -> None:
        self.stop_ids = stop_ids
        self._parser = Parser(tokenizer, stop_ids, stop_text=STOP_TEXT)
        self._tokenizer = tokenizer
        self._controls = control_pattern(
            t.content for t in tokenizer.added_tokens_decoder.values() if t.special
        )
        first = tokenizer.encode("?")[:1]
        self._bos = first if first == [tokenizer.bos_token_id] else []

    def prompt(self, messages: list[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        if tools:
            raise UserError(
                "renderer=role_colon: it cannot show tools to the model; choose a model that was taught to call them,"
                " such as model=qwen2.5-7b-instruct, or type renderer=chat_template"
            )
        turns = [f"{m['role'].capitalize()}: {shield(m['content'], self._controls)}" for m in messages]
        return self._bos + encode(self._tokenizer, "\n\n".join([*turns, "Assistant:"]))

    def cut(self, completion: Completion) -> Completion:
        if STOP_TEXT not in decode(self._tokenizer, completion.tokens):
            return completion
        # The fewest tokens that include the stop text; the last one may hold further characters.
        end = bisect_left(
            range(len(completion.tokens)),
            True,
            key=lambda length: STOP_TEXT in decode(self._tokenizer, completion.tokens[:length]),
        )
        return Completion(
            tokens=completion.tokens[:end],
            logprobs=completion.logprobs[:end],
            stop_reason="stop",
            entropies=None if completion.entropies is None else completion.entropies[:end],
        )

    def parse(self, completion: Completion) -> Parsed:
        return self._parser.parse(completion)
