"""Renders with the model's own chat template: its Jinja decides every byte of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from renderers.base import TRIED, Renderer, ToolSchema, lacks_content, probe
from renderers.parsing import THINK_CLOSE, THINK_OPEN, Parser
from renderers.tokens import control_pattern, encode, shield
from renderers.tool_calls import Call, finder_for
from renderers.trial import try_template
from rl.errors import UserError, first_line
from rl.rollouts import Completion, Message, Parsed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Some templates write today's date into the system turn. A macro of the same name fixes it to the default date of the
# Llama 3 templates, so that a prompt is the same every day.
_STOPPED_CLOCK = (
    "{% macro strftime_now(format) %}{{ format.replace('%d', '26').replace('%b', 'Jul').replace('%B', 'July')"
    ".replace('%m', '07').replace('%Y', '2024').replace('%A', 'Friday').replace('%H', '00').replace('%M', '00')"
    ".replace('%S', '00') }}{% endmacro %}\n"
)
_MOST_BYTES = 1_000_000  # of a template file
_ANSWER = "(answer)"
_QUESTION: list[Message] = [{"role": "user", "content": "?"}]
_TURNS: list[Message] = [*_QUESTION, {"role": "assistant", "content": _ANSWER}]


class ChatTemplate(Renderer):
    """Renders with a Jinja chat template.

    template: a Jinja file; None uses the tokenizer's own. thinking: the template's `enable_thinking`; None keeps its
    default. stop_ids: ids that end a completion, to which the template's own end of turn is added.

    Raises UserError when there is no template, the template is broken or leaves out the question, a template file takes
    too much time or memory, or the template lacks the requested thinking mode.
    """

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
        self._what = f"renderer={name}: the chat template of {self._model}"
        self._way_out = (
            "type renderer=chat_template renderer.template=PATH with a Jinja file, or renderer=role_colon"
        )
        if template is not None:
            self._what = f"renderer.template={template}: the template"
            self._way_out = "correct it, or leave out renderer.template to use the model's own template"
        self._template = self._own_template() if template is None else _read(template)
        if "strftime_now" in self._template:
            self._template = _STOPPED_CLOCK + self._template
        self._options = {} if thinking is None else {"enable_thinking": thinking}
        if template is not None:
            self._require_limits()
        controls = self._control_tokens()
        self._controls = control_pattern(controls)
        # The template decides whether to keep the think tags of an earlier assistant turn.
        self._answer_controls = control_pattern(t for t in controls if t not in (THINK_OPEN, THINK_CLOSE))
        opening = self._render(_QUESTION, **self._options)
        self.prefilled = opening.rstrip().endswith(THINK_OPEN)
        # With thinking off, the prompt ends with an empty reasoning.
        thinks = THINK_CLOSE in self._template and not opening.rstrip().endswith(THINK_CLOSE)
        self.think_close = encode(tokenizer, THINK_CLOSE) if thinks else ()
        # Roles of the conversations that were checked: the template writes the text of each turn.
        self._shown: set[tuple[str, ...]] = set()
        for roles in TRIED:
            self._require_contents(roles)
        self._check_thinking(thinking)
        turn_end = self._find_turn_end()
        self.stop_ids = stop_ids if turn_end is None else stop_ids | {turn_end}
        self._turn_end = None if turn_end is None else str(tokenizer.added_tokens_decoder[turn_end].content)
        self._parser = Parser(tokenizer, self.stop_ids, turn_end, self.prefilled)
        self._find_calls = finder_for(self._template)

    def prompt(self, messages: list[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        self._require_contents(tuple(message["role"] for message in messages))
        schemas: dict[str, Any] = {"tools": self._schemas(tools)} if tools else {}
        text = self._render([self._shielded(message) for message in messages], **schemas, **self._options)
        return encode(self._tokenizer, text)

    def continuation(self, messages: list[Message]) -> list[int]:
        if self._turn_end is None:
            raise UserError(
                f"{self._what} ends an answer with no token of its own, so a conversation cannot go on; {self._way_out}"
            )
        self._require_contents(("user", "assistant", *(message["role"] for message in messages)))
        text = self._render([*_TURNS, *map(self._shielded, messages)], **self._options)
        _, _, after = text.partition(_ANSWER)
        return encode(self._tokenizer, after.partition(self._turn_end)[2])

    def calls(self, parsed: Parsed) -> list[Call]:
        return self._find_calls(parsed.text)

    def parse(self, completion: Completion) -> Parsed:
        return self._parser.parse(completion)

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
        except Exception as error:  # a template may raise any Python exception
            roles = ", ".join(message["role"] for message in messages)
            if type(error) is TemplateError:  # from the template's own `raise_exception`
                raise UserError(f"{self._what} refuses the turns ({roles}): {first_line(error)}") from None
            raise UserError(
                f"{self._what} fails on the turns ({roles}): {type(error).__name__}: {first_line(error)};"
                f" {self._way_out}"
            ) from None

    def _require_limits(self) -> None:
        renders: list[dict[str, Any]] = [
            {"conversation": _QUESTION, "add_generation_prompt": True, **options}
            for options in (self._options, {"enable_thinking": True}, {"enable_thinking": False})
        ]
        renders += [
            {"conversation": _TURNS},
            *({"conversation": probe(roles), "add_generation_prompt": True} for roles in TRIED),
        ]
        if wrong := try_template(self._template, self._tokenizer.special_tokens_map, renders):
            raise UserError(f"{self._what} {wrong}; {self._way_out}")

    def _require_contents(self, roles: tuple[str, ...]) -> None:
        """Raises UserError when the template leaves out a turn's text in a conversation of these roles."""
        if roles in self._shown:
            return
        if (role := lacks_content(self._render(probe(roles), **self._options), roles)) is not None:
            raise UserError(
                f"{self._what} leaves out the {role} turn's text ({', '.join(roles)}); expected a template that writes"
                f" every message['content'] (a string); {self._way_out}"
            )
        self._shown.add(roles)

    def _control_tokens(self) -> list[str]:
        """Tokens that content must not forge: special tokens, the think tags, and added tokens in the template."""
        return [
            token.content
            for token in self._tokenizer.added_tokens_decoder.values()
            if token.special
            or token.content in (THINK_OPEN, THINK_CLOSE)
            or (token.content in self._template and not token.content.isspace())
        ]

    def _schemas(self, tools: Sequence[ToolSchema]) -> list[ToolSchema]:
        """The schemas without control tokens. Raises UserError when the template leaves one out."""
        for tool in tools:
            name = tool["function"]["name"]
            if name not in self._render(_QUESTION, tools=[tool], **self._options):
                raise UserError(
                    f"{self._what} leaves out the tool {name}; choose a model that was taught to call tools, such as"
                    " model=qwen2.5-7b-instruct, or type renderer=chat_template renderer.template=PATH"
                )
        return [self._shielded_schema(tool) for tool in tools]

    def _shielded_schema(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._shielded_schema(child) for key, child in value.items()}
        if isinstance(value, list):
            return [self._shielded_schema(child) for child in value]
        return shield(value, self._controls) if isinstance(value, str) else value

    def _shielded(self, message: Message) -> Message:
        controls = self._answer_controls if message["role"] == "assistant" else self._controls
        return {**message, "content": shield(message["content"], controls)}

    def _check_thinking(self, thinking: bool | None) -> None:
        switch = self._render(_QUESTION, enable_thinking=True) != self._render(
            _QUESTION, enable_thinking=False
        )
        if thinking is None or switch or (thinking and self.prefilled):
            return
        modes = "always thinks" if self.prefilled else "has no thinking switch"
        raise UserError(
            f"renderer={self.name}: thinking={str(thinking).lower()} was asked for, but the chat template of"
            f" {self._model} {modes}; type renderer=chat_template renderer.thinking=null to use its only mode"
        )

    def _find_turn_end(self) -> int | None:
        """The added token that the template writes after an answer, or None."""
        _, answer, after = self._render(_TURNS, generation=False).rpartition(_ANSWER)
        added = self._tokenizer.added_tokens_decoder
        return (
            next((token for token in encode(self._tokenizer, after) if token in added), None)
            if answer
            else None
        )


def _read(path: str) -> str:
    try:
        if Path(path).stat().st_size > _MOST_BYTES:
            raise UserError(
                f"renderer.template={path}: is larger than {_MOST_BYTES:,} bytes; expected a Jinja chat template"
            )
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"renderer.template={path}: cannot be read as UTF-8 text ({error}); expected a Jinja chat template"
        ) from None
