"""Shows what the model reads and how its answers are parsed: `python -m recipes.render model=qwen3-8b data=gsm8k_ja`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from renderers.base import Renderer, RendererConfig
from rl.data.config import DataConfig
from rl.data.problems import peek
from rl.models.config import ModelConfig
from rl.rollouts import Completion, Ended, Message, Problem, StopReason
from rl.schema import build

REASONING = "2 bags hold 3 apples each: 2 x 3 = 6."
ANSWER = "The answer is \\boxed{6}."


@dataclass(frozen=True, kw_only=True)
class RenderConfig:
    """A model, a data set whose first problem is rendered, and a chat format."""

    model: ModelConfig
    data: DataConfig
    renderer: RendererConfig


@recipe("render", RenderConfig)
def main(composed: Composed) -> None:
    """Shows one prompt as text and ids, what ends a completion, and how sample answers are parsed."""
    import rich

    from rl.models.loading import open_renderer

    config: RenderConfig = build(RenderConfig, composed.tree)
    peeked = peek(config.data)
    tokenizer, renderer = open_renderer(config.model, config.renderer)
    if peeked.note:
        rich.print(Text(peeked.note, "yellow"))
    problem = peeked.problem or stand_in(config.data)
    rich.print(show(renderer, tokenizer, config.data.messages(problem)))


def stand_in(data: DataConfig) -> Problem:
    """A placeholder for the first problem of a data set that is not on this machine yet."""
    language = "ja" if data.language == "ja" else "en"
    return Problem(id="none", question="(…)", answer="", language=language, source=data.name)


def show(renderer: Renderer, tokenizer: Any, messages: list[Message]) -> Group:
    """The prompt for `messages` (special tokens in colour), its ids, what ends a completion, and parsed samples."""
    prompt = renderer.prompt(messages)
    text = visible(tokenizer, prompt)
    text.append("▶ the completion starts here", "green")
    if renderer.prefilled:
        text.append(", inside the reasoning", "green")
    count = f"{len(prompt)} tokens, {renderer.fingerprint()}"
    return Group(
        Panel(
            text,
            title=f"prompt, renderer {renderer.name}",
            title_align="left",
            subtitle=count,
            subtitle_align="left",
        ),
        Panel(Text(" ".join(map(str, prompt))), title="prompt ids", title_align="left"),
        ends_table(renderer, tokenizer),
        parse_table(renderer, tokenizer),
    )


def visible(tokenizer: Any, tokens: list[int]) -> Text:
    """Decoded tokens, with special and added ones in colour."""
    added = tokenizer.added_tokens_decoder
    text = Text()
    for is_added, run in groupby(tokens, key=added.__contains__):
        text.append(tokenizer.decode(list(run)), "bold magenta" if is_added else "")
    return text


def ends_table(renderer: Renderer, tokenizer: Any) -> Table:
    """Every token or text that ends a completion, and the name of that ending."""
    table = Table("ends a completion", "id", "as", title="ends", title_justify="left")
    for token in sorted(renderer.stop_ids):
        table.add_row(visible(tokenizer, [token]), str(token), ended_by(renderer, token))
    if renderer.stop_text is not None:
        table.add_row(Text(repr(renderer.stop_text)), "", "stop")
    table.add_row(Text("max_tokens", "italic"), "", "length")
    return table


def ended_by(renderer: Renderer, token: int) -> Ended:
    """The ending of a completion whose last token is `token`."""
    return renderer.parse(Completion([token], [0.0], "stop")).ended


def parse_table(renderer: Renderer, tokenizer: Any) -> Table:
    """Three sample completions: with thinking, without thinking, and cut by the budget while thinking."""
    columns = ("completion", "ended", "thinking", "answer")
    table = Table(*columns, title="sample completions, parsed", title_justify="left")
    opened = "" if renderer.prefilled else "<think>\n"
    stops = sorted(renderer.stop_ids, key=lambda token: ended_by(renderer, token) == "eos")
    turn_end = stops[:1]
    if renderer.stop_text is not None:
        turn_end = tokenizer.encode(renderer.stop_text, add_special_tokens=False)
    samples: list[tuple[str, list[int], StopReason]] = [
        (f"{opened}{REASONING}\n</think>\n\n{ANSWER}", turn_end, "stop"),
        (ANSWER, stops[-1:], "stop"),
        (f"{opened}{REASONING[:20]}", [], "length"),
    ]
    for text, stop, reason in samples:
        tokens = tokenizer.encode(text, add_special_tokens=False) + stop
        parsed = renderer.parse(Completion(tokens, [0.0] * len(tokens), reason))
        table.add_row(visible(tokenizer, tokens), parsed.ended, Text(parsed.thinking), Text(parsed.text))
    return table


if __name__ == "__main__":
    main()
