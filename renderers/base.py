"""The contract of a renderer, one chat format bound to one tokenizer. Imports neither torch nor transformers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from renderers.tool_calls import Call, hermes_calls
from rl.errors import UserError
from rl.rollouts import Completion, Message, Parsed
from rl.schema import TARGET, bound, locate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ToolSchema = dict[str, Any]  # as transformers' get_json_schema writes it

# The conversation that a fingerprint hashes. It has no system turn, to include a template's default system prompt, and
# an earlier assistant turn, to include the template's treatment of history.
FIXED_CONVERSATION: list[Message] = [
    {"role": "user", "content": "What is 1 + 1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "それに 3 を足すと？"},
]


@dataclass(frozen=True, kw_only=True)
class RendererConfig:
    """The `renderer` node of a blueprint.

    name: a chat format; `auto` uses the one that the catalogue (conf/model) names for the model.
    thinking: the template's thinking switch; null keeps the template's default.
    template: a Jinja file that replaces the tokenizer's own template.
    """

    name: Literal[
        "auto", "qwen3", "qwen3_disable_thinking", "qwen2", "llama3", "role_colon", "chat_template"
    ] = "auto"
    thinking: bool | None = None
    template: str | None = None

    def __post_init__(self) -> None:
        for option in ("thinking", "template"):
            value = getattr(self, option)
            if value is not None and self.name != "chat_template":
                typed = f"renderer.{option}={str(value).lower() if value in (True, False) else value}"
                raise UserError(
                    f"{typed}: renderer={self.name} has no such option; type renderer=chat_template {typed}"
                )
        if self.template is not None and not Path(self.template).is_file():
            raise UserError(
                f"renderer.template={self.template}: {'is a folder' if Path(self.template).is_dir() else 'no such file'}:"
                f" {Path(self.template).absolute()};"
                " expected a Jinja chat template"
            )

    @classmethod
    def from_target(cls, node: Mapping[str, Any], key: str) -> RendererConfig:
        """The config of a node with `_target_`, at the dotted `key`: a user's own renderer."""
        options = {name: value for name, value in node.items() if name != TARGET}
        target = locate(node[TARGET], f"{key}.{TARGET}")
        return OwnRendererConfig(
            target=node[TARGET],
            make=bound(target, options, key, given=("tokenizer", "stop_ids")),
        )


@dataclass(frozen=True, kw_only=True)
class OwnRendererConfig(RendererConfig):
    """A `renderer` node whose `_target_` names a user's class or function: `make(tokenizer, stop_ids)`.

    The node's other keys are passed by name. stop_ids: the ids that end a completion in any format: the tokenizer's
    EOS, the generation config's and the catalogue's. Example: docs/extending.md.
    """

    target: str
    make: Callable[[PreTrainedTokenizerBase, frozenset[int]], Renderer]


class Renderer(Protocol):
    """A chat format bound to one tokenizer. A subclass sets `name` and `stop_ids` and defines `prompt` and `parse`
    (renderers.parsing.Parser does the parsing); the other members have defaults. Environments of several turns also need
    `continuation`.

    stop_ids: every id that ends a completion. stop_text: text that ends one, for formats without an end-of-turn token.
    prefilled: the prompt ends with the opening think tag, so a completion starts inside the reasoning.
    think_close: the ids that close a reasoning, as `thinking_tokens` forces them; () for a format without reasoning.
    """

    name: str
    stop_ids: frozenset[int]
    stop_text: str | None = None
    prefilled: bool = False
    think_close: Sequence[int] = ()

    def prompt(self, messages: list[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """The ids up to and including the header of the assistant's next turn, with one BOS if the model uses it.

        tools: what the model may call. Callers leave it out without tools, so a format of your own may do without it.
        """
        ...

    def continuation(self, messages: list[Message]) -> list[int]:
        """The ids that follow an assistant's stop token: `messages` and the header of the assistant's next turn.

        messages: the tools' answers (role `tool`) or a user's turn. A conversation is only appended to: what was
        sampled and shown before is never rendered again. Raises UserError when the format has no such turns.
        """
        raise UserError(
            f"renderer={self.name}: it cannot continue a conversation, which an environment of several turns needs;"
            " type renderer=chat_template, or define `continuation` in your own renderer (docs/environments.md)"
        )

    def calls(self, parsed: Parsed) -> list[Call]:
        """The tool calls of an answer, in the order written. Calls in the thinking do not count. Never raises."""
        return hermes_calls(parsed.text)

    def parse(self, completion: Completion) -> Parsed:
        """Splits the sampled ids into thinking and answer. Never raises."""
        ...

    def cut(self, completion: Completion) -> Completion:
        """The completion up to its `stop_text`: a sampler that stops only at ids runs past it. Otherwise unchanged."""
        return completion

    def fingerprint(self) -> str:
        """The name and 16 hexadecimal digits, e.g. `qwen3:0123456789abcdef`.

        Renderers have equal digits when they give FIXED_CONVERSATION the same ids and have the same stop ids and text.
        """
        rendered = [self.prompt(FIXED_CONVERSATION), sorted(self.stop_ids), self.stop_text]
        return f"{self.name}:{hashlib.sha256(repr(rendered).encode()).hexdigest()[:16]}"


# The roles of the conversations that every renderer is tried on: one question, and the turns of the fingerprint.
TRIED = (("user",), tuple(message["role"] for message in FIXED_CONVERSATION))


def probe(roles: Sequence[str]) -> list[Message]:
    """A conversation of these roles. Each turn has its own words, enough of them to notice a cut."""
    return [
        {"role": role, "content": "2" if role == "assistant" else " ".join(_words(turn))}
        for turn, role in enumerate(roles)
    ]


def lacks_content(rendered: str, roles: Sequence[str]) -> str | None:
    """The role of the first turn of `probe(roles)` whose text is missing from `rendered`, or None.

    A format may change white space and case, and may leave out earlier answers.
    """
    seen = rendered.casefold()
    return next(
        (
            role
            for turn, role in enumerate(roles)
            if role != "assistant" and not all(word in seen for word in _words(turn))
        ),
        None,
    )


def _words(turn: int) -> list[str]:
    return [f"zq{turn}x{word}w" for word in range(35)]


def require_fingerprint(renderer: Renderer, stored: str, where: str) -> None:
    """Raises UserError, showing both fingerprints, unless `renderer` renders like the one that `where` was trained with.

    The names may differ. A prompt that differs from training by one byte can cost half the score.
    """
    current = renderer.fingerprint()
    if current.rpartition(":")[2] != stored.rpartition(":")[2]:
        name = stored.partition(":")[0]
        raise UserError(
            f"{where} was trained with the chat format {stored}, and this command renders with {current};"
            f" type renderer={name}, with the tokenizer and template it was trained with"
        )
