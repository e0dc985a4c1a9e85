"""Prints text from data and models safely: control codes appear as visible escapes.

Otherwise a question or completion could retitle the window, clear the screen or reverse the reading direction.
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

PIPE_WIDTH = 120  # columns when stdout is not a terminal

# C0 except newline and tab, DEL, C1, and the characters that embed, override or isolate a text direction.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    r"""`text` with each control character as a visible escape, e.g. ``\x1b``; newlines and tabs stay."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


class EscapingFormatter(logging.Formatter):
    """Formats log lines without control characters, for the terminal and train.log."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))


class EscapingConsole(Console):
    """rich's console with control characters in text escaped; its own colours and cursor moves still work."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text):  # escape before wrapping, because escapes make the text longer
            renderable = _escaped(renderable)
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_controls(segment.text))


def open_console() -> EscapingConsole:
    """A console on stdout, PIPE_WIDTH columns wide if stdout is not a terminal."""
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
