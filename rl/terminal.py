"""What text from data and models may do to a terminal: be read. Its control codes are printed as visible escapes.

A question or a completion can hold codes that retitle a window, clear the screen or turn the reading direction round.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable

import rich
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Span, Text

PIPE_WIDTH = 120  # columns where there is no terminal to ask

# C0 but newline and tab, DEL, C1, and the characters that embed, override or isolate a reading direction.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    r"""`text` with each control character as an escape that can be read, e.g. ``\x1b``; newlines and tabs stay."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


class EscapingFormatter(logging.Formatter):
    """Log lines without control characters, for a terminal and for train.log."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))


class EscapingConsole(Console):
    """rich's console, which lets no control character of a text through; its own colours and cursor moves stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text):  # before it is wrapped, so that the longer text still fits its place
            renderable = _escaped(renderable)
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_controls(segment.text))


def open_console() -> EscapingConsole:
    """A console on stdout, PIPE_WIDTH columns wide where that is no terminal."""
    return EscapingConsole(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def escape_shared_console() -> None:
    """Makes the console of `rich.print` and `rich.get_console` an EscapingConsole, for the rest of the process."""
    rich.get_console().__class__ = EscapingConsole


def _escaped(text: Text) -> Text:
    if not _CONTROLS.search(text.plain):
        return text
    escaped = text.copy()
    escaped.plain = escape_controls(text.plain)
    escaped.spans = [
        Span(_length(text.plain[: span.start]), _length(text.plain[: span.end]), span.style)
        for span in text.spans
    ]
    return escaped


def _length(text: str) -> int:
    return len(escape_controls(text))
