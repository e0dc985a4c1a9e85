"""What a renderer is: one chat format bound to one tokenizer. Imports neither torch nor transformers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rl.errors import UserError
from rl.rollouts import Completion, Message, Parsed
from rl.schema import TARGET, bound, locate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What a fingerprint renders: no system turn, so that a template's default system prompt shows, and an earlier
# assistant turn, so that its treatment of history shows.
FIXED_CONVERSATION: list[Message] = [
    {"role": "user", "content": "What is 1 + 1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "それに 3 を足すと？"},
]


@dataclass(frozen=True, kw_only=True)
class RendererConfig:
    """The `renderer` node of a blueprint.

    name: a chat format; `auto` takes the one that the catalogue (conf/model) gives for the model.
    thinking: the template's thinking switch; null leaves the template's default.
    template: a Jinja file in place of the tokenizer's own template.
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
                    f"{typed}: renderer={self.name} has no such choice; type renderer=chat_template {typed}"
                )
        if self.template is not None and not Path(self.template).is_file():
            raise UserError(
                f"renderer.template={self.template}: no such file: {Path(self.template).absolute()};"
                " expected a Jinja chat template"
            )

    @classmethod
    def from_target(cls, node: Mapping[str, Any], key: str) -> RendererConfig:
        """The config of a node with `_target_`, at the dotted `key`: a format of the user's own."""
        options = {name: value for name, value in node.items() if name != TARGET}
        target = locate(node[TARGET], f"{key}.{TARGET}")
        return OwnRendererConfig(
            target=node[TARGET],
            make=bound(target, options, key, given=("tokenizer", "stop_ids")),
        )


@dataclass(frozen=True, kw_only=True)
class OwnRendererConfig(RendererConfig):
    """A `renderer` node whose `_target_` names a class or function of the user's: `make(tokenizer, stop_ids)`.

    The node's other keys go to it by name. stop_ids: the ids that end a completion whatever the format is: the
    tokenizer's EOS, the generation config's and the catalogue's. See docs/renderers.md for an example.
    """

    target: str
    make: Callable[[PreTrainedTokenizerBase, frozenset[int]], Renderer]


class Renderer(Protocol):
    """A chat format bound to one tokenizer. A class of your own that derives from it needs `name`, `stop_ids`, `prompt`
    and `parse` (renderers.parsing.Parser does the work); the rest has defaults.

    stop_ids: every id that ends a completion. stop_text: text that ends one where no token marks the end of a turn.
    prefilled: the prompt ends with the opening think tag, so that a completion starts inside the reasoning.
    """

    name: str
    stop_ids: frozenset[int]
    stop_text: str | None = None
    prefilled: bool = False

    def prompt(self, messages: list[Message]) -> list[int]:
        """The ids before the assistant's next turn, its header included; BOS once where the model wants one."""
        ...

    def parse(self, completion: Completion) -> Parsed:
        """Thinking and answer, from the sampled ids; never raises, whatever was sampled."""
        ...

    def cut(self, completion: Completion) -> Completion:
        """The completion up to its `stop_text`, which a sampler that stops at ids runs past; else unchanged."""
        return completion

    def fingerprint(self) -> str:
        """The name and 16 hexadecimal digits, e.g. `qwen3:0123456789abcdef`.

        Equal digits for renderers that give a fixed conversation the same ids and the same ends.
        """
        rendered = [self.prompt(FIXED_CONVERSATION), sorted(self.stop_ids), self.stop_text]
        return f"{self.name}:{hashlib.sha256(repr(rendered).encode()).hexdigest()[:16]}"


# What every renderer is tried on: one question, and the turns of its fingerprint.
TRIED = (("user",), tuple(message["role"] for message in FIXED_CONVERSATION))


def probe(roles: Sequence[str]) -> list[Message]:
    """A conversation of these roles. Each turn's text is unlike any other, and long enough to notice where one is cut."""
    return [
        {"role": role, "content": "2" if role == "assistant" else " ".join(_words(turn))}
        for turn, role in enumerate(roles)
    ]


def lacks_content(rendered: str, roles: Sequence[str]) -> str | None:
    """The role of a turn of `probe(roles)` whose text is not in `rendered`, or None.

    White space, case and earlier answers are the format's to change.
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
    """Raises UserError, showing both, unless `renderer` renders as the one whose fingerprint `where` holds.

    Two names for the same ids are no mismatch. One byte between the prompt of training and the prompt of use can cost
    half the score.
    """
    current = renderer.fingerprint()
    if current.rpartition(":")[2] != stored.rpartition(":")[2]:
        name = stored.partition(":")[0]
        raise UserError(
            f"{where} was trained with the chat format {stored}, and this command renders with {current};"
            f" type renderer={name}, with the tokenizer and template it was trained with"
        )
