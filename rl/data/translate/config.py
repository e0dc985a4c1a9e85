"""The choices of a translation: server, prices, prompts, checks, the second opinion. Checked before anything is read."""

from __future__ import annotations

import math
import os
import string
from dataclasses import dataclass, field
from typing import Any, Literal

from rl.data.translate.checks import LENGTH_RATIOS, Direction
from rl.errors import UserError, require
from rl.models.hub import is_address

Language = Literal["en", "ja"]
RESERVED = ("messages", "model", "stream", "n")  # fields of a request that are the recipe's own
DEFAULT_KEY_ENV = "OPENAI_API_KEY"
PART_FIELDS = {"text", "question", "question_translation", "language"}


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible server. See conf/translate.yaml.

    key_env: the environment variable with the API key; the key itself is never stored or printed.
    """

    url: str | None = None
    model: str | None = None
    key_env: str = DEFAULT_KEY_ENV
    timeout: float = 300.0
    retries: int = 10
    max_tokens: int = 4096
    temperature: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.url is not None and not is_address(self.url):
            raise UserError(
                f"server={self.url}: expected an address with http:// or https://; e.g. server=http://localhost:8000/v1"
            )
        require(0 < self.timeout < math.inf, "server.timeout", self.timeout, "seconds above 0", 300)
        require(self.retries >= 0, "server.retries", self.retries, "an integer of 0 or more", 10)
        require(self.max_tokens >= 1, "server.max_tokens", self.max_tokens, "an integer of 1 or more", 4096)
        heat = self.temperature
        is_heat = heat is None or 0 <= heat < math.inf
        require(is_heat, "server.temperature", heat, "a number of 0 or more, or null", 0.7)
        if taken := [name for name in RESERVED if name in self.extra]:
            raise UserError(
                f"server.extra.{taken[0]}={self.extra[taken[0]]}: recipes.translate sets this field itself; remove it"
            )

    def require_named(self) -> tuple[str, str]:
        """The address and the model. Raises UserError if one is missing, or if there can be no key in `key_env`."""
        if self.url is None:
            raise UserError(
                "server=null: expected the address of an OpenAI-compatible server; e.g. server=http://localhost:8000/v1"
            )
        if not self.model:
            raise UserError(
                f"model={self.model or 'null'}: expected a model of the server; e.g. model=openai/gpt-oss-120b"
            )
        if self.key_env != DEFAULT_KEY_ENV and not os.environ.get(self.key_env):
            raise UserError(
                f"server.key_env={self.key_env}: this environment variable is not set; type export {self.key_env or 'NAME'}=KEY"
                " first, or leave server.key_env out for a server without keys"
            )
        if not (self.key.isascii() and self.key.isprintable() and " " not in self.key):
            raise UserError(
                f"{self.key_env}: holds a blank, a line break or a character that no key has; set this environment variable"
                " to the key alone"
            )
        return self.url, self.model

    @property
    def key(self) -> str:
        """The API key; a placeholder where the variable is not set, because local servers need none."""
        return os.environ.get(self.key_env) or "none"


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens; None: unknown."""

    input: float | None = None
    output: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            value = getattr(self, name)
            require(
                value is None or 0 <= value < math.inf,
                f"price.{name}",
                value,
                "US dollars for a million tokens, 0 or more",
                0.6,
            )

        if (self.input is None) != (self.output is None):
            given, missing = ("input", "output") if self.output is None else ("output", "input")
            raise UserError(
                f"price.{given}={getattr(self, given):g}: needs the other price too; e.g. price.{missing}=0.5"
            )

    @property
    def known(self) -> bool:
        return self.input is not None and self.output is not None

    def usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The cost of these tokens; 0 where the price is unknown."""
        return (prompt_tokens * (self.input or 0.0) + completion_tokens * (self.output or 0.0)) / 1e6


@dataclass(frozen=True)
class Judge:
    """A second opinion about each row, which only ranks the sample. model: None for none, else a model of the same server.

    kind: yes_no asks whether the translation says the same; back_translation compares the question with a translation
    back. price: of that model.
    """

    model: str | None = None
    kind: Literal["yes_no", "back_translation"] = "yes_no"
    price: Price = field(default_factory=Price)


@dataclass(frozen=True)
class Prompts:
    """The texts sent to the server. In each, {language} is the target language in English.

    system: for every request. question, solution: the request for each part, with {text}; the solution's may use {question}
    and {question_translation}. again: after a bad answer, with {reasons}. style: more instructions by target language.
    yes_no, back_translation: the judge's requests, with {question}, {answer}, {question_translation}, {answer_translation}.
    """

    system: str
    question: str
    solution: str
    again: str
    yes_no: str
    back_translation: str
    style: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        judged = {"question", "answer", "question_translation", "answer_translation", "language"}
        for name, needed, known in (
            ("system", set(), {"language"}), ("question", {"text"}, PART_FIELDS), ("solution", {"text"}, PART_FIELDS),
            ("again", {"reasons"}, {"reasons", "language"}), ("yes_no", {"question_translation"}, judged),
            ("back_translation", {"question_translation"}, judged),
        ):  # fmt: skip
            _require_fields(name, getattr(self, name), needed, known)


def _require_fields(name: str, template: str, needed: set[str], known: set[str]) -> None:
    try:
        used = {
            field_name for _, field_name, _, _ in string.Formatter().parse(template) if field_name is not None
        }
    except ValueError as error:
        raise UserError(f"prompts.{name}: {error}; write a brace of the text itself twice: {{{{") from None
    if unknown := used - known:
        raise UserError(
            f"prompts.{name}: no such field {{{sorted(unknown)[0]}}}; known: {', '.join(f'{{{n}}}' for n in sorted(known))}"
        )
    if missing := needed - used:
        raise UserError(f"prompts.{name}: lacks {{{sorted(missing)[0]}}}, the place of what is sent")


@dataclass(frozen=True)
class Limits:
    """language_share: least share of a translation's letters in the target language.

    length_ratio: allowed range of letters of the translation over letters of the source; None: the target language's own.
    """

    language_share: float = 0.5
    length_ratio: list[float] | None = None

    def __post_init__(self) -> None:
        require(
            0 <= self.language_share <= 1,
            "checks.language_share",
            self.language_share,
            "a share from 0 to 1",
            0.5,
        )
        ratio = self.length_ratio
        is_range = ratio is None or (len(ratio) == 2 and 0 <= ratio[0] < ratio[1])
        require(is_range, "checks.length_ratio", ratio, "two numbers, the smaller one first", "[0.2,1.2]")

    def direction(self, source: str, to: str) -> Direction:
        low, high = self.length_ratio or LENGTH_RATIOS[to]
        return Direction(source, to, self.language_share, (low, high))
