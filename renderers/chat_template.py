"""The model's own chat template, which is the truth: its makers' Jinja decides every byte of the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from renderers.base import fingerprint
from renderers.parsing import THINK_CLOSE, THINK_OPEN, Parser
from renderers.tokens import control_pattern, encode, shield
from rl.errors import UserError
from rl.rollouts import Completion, Message, Parsed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Some templates write today's date into the system turn. A macro of the same name stops their clock at the date that
# the Llama 3 templates fall back on, so that a prompt is the same every day.
_STOPPED_CLOCK = (
    "{% macro strftime_now(format) %}{{ format.replace('%d', '26').replace('%b', 'Jul').replace('%B', 'July')"
    ".replace('%m', '07').replace('%Y', '2024').replace('%A', 'Friday').replace('%H', '00').replace('%M', '00')"
    ".replace('%S', '00') }}{% endmacro %}\n"
)
_ANSWER = "(answer)"


class ChatTemplate:
    """Renders with a Jinja chat template.

    template: Jinja text; None takes the tokenizer's own. thinking: the template's `enable_thinking`; None leaves its
    default. stop_ids: ends beside the template's own end of turn.

    Raises UserError when there is no template, it is broken, or it lacks the thinking mode asked for.
    """

    stop_text: str | None = None

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        stop_ids: frozenset[int],
        thinking: bool | None = None,
        template: str | None = None,
    ) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._template = self._own_template() if template is None else template
        if "strftime_now" in self._template:
            self._template = _STOPPED_CLOCK + self._template
        self._options = {} if thinking is None else {"enable_thinking": thinking}
        controls = self._control_tokens()
        self._controls = control_pattern(controls)
        # The think tags of an earlier assistant turn are the model's own format, which its template keeps or strips.
        self._answer_controls = control_pattern(t for t in controls if t not in (THINK_OPEN, THINK_CLOSE))
        opening = self._render([{"role": "user", "content": "?"}], **self._options)
        self.prefilled = opening.rstrip().endswith(THINK_OPEN)
        self._check_thinking(thinking)
        turn_end = self._find_turn_end()
        self.stop_ids = stop_ids if turn_end is None else stop_ids | {turn_end}
        self._parser = Parser(tokenizer, self.stop_ids, turn_end, self.prefilled)

    def prompt(self, messages: list[Message]) -> list[int]:
        text = self._render([self._shielded(message) for message in messages], **self._options)
        return encode(self._tokenizer, text)

    def cut(self, completion: Completion) -> Completion:
        return completion

    def parse(self, completion: Completion) -> Parsed:
        return self._parser.parse(completion)

    def fingerprint(self) -> str:
        return fingerprint(self)

    def _own_template(self) -> str:
        try:
            return str(self._tokenizer.get_chat_template())
        except ValueError:
            raise UserError(
                f"renderer={self.name}: the tokenizer of {self._model} has no chat template; type renderer=role_colon"
                " (for base models), or renderer=chat_template renderer.template=PATH with a Jinja file"
            ) from None

    @property
    def _model(self) -> str:
        return self._tokenizer.name_or_path or "this model"

    def _render(self, messages: list[Message], generation: bool = True, **options: Any) -> str:
        from jinja2 import TemplateError

        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages,
                    chat_template=self._template,
                    add_generation_prompt=generation,
                    tokenize=False,
                    **options,
                )
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(
                f"renderer={self.name}: the chat template of {self._model} refuses the turns ({roles}): {error}"
            ) from None

    def _control_tokens(self) -> list[str]:
        """Tokens that content must not forge: special ones, the think tags, and what the template itself writes."""
        return [
            token.content
            for token in self._tokenizer.added_tokens_decoder.values()
            if token.special
            or token.content in (THINK_OPEN, THINK_CLOSE)
            or (token.content in self._template and not token.content.isspace())
        ]

    def _shielded(self, message: Message) -> Message:
        controls = self._answer_controls if message["role"] == "assistant" else self._controls
        return {**message, "content": shield(message["content"], controls)}

    def _check_thinking(self, thinking: bool | None) -> None:
        question: list[Message] = [{"role": "user", "content": "?"}]
        switch = self._render(question, enable_thinking=True) != self._render(question, enable_thinking=False)
        if thinking is None or switch or (thinking and self.prefilled):
            return
        modes = "always thinks" if self.prefilled else "has no thinking switch"
        raise UserError(
            f"renderer={self.name}: thinking={str(thinking).lower()} was asked for, but the chat template of"
            f" {self._model} {modes}; type renderer=chat_template renderer.thinking=null for its only mode"
        )

    def _find_turn_end(self) -> int | None:
        """The added token that the template writes after an answer, if it writes one."""
        turns: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        _, answer, after = self._render(turns, generation=False).rpartition(_ANSWER)
        added = self._tokenizer.added_tokens_decoder
        return (
            next((token for token in encode(self._tokenizer, after) if token in added), None)
            if answer
            else None
        )
