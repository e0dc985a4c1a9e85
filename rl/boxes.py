"""Marking the boxed answers in a model's text, for people to see. Grading has its own, stricter reader."""

from __future__ import annotations

import re
from collections.abc import Iterator

BOX = re.compile(r"\\boxed\s*\{")


def holds_box(text: str) -> bool:
    r"""Whether the text holds a whole `\boxed{...}`."""
    return any(boxed for _, boxed in split_boxes(text))


def split_boxes(text: str) -> Iterator[tuple[str, bool]]:
    r"""The text in pieces, each with whether it is a whole `\boxed{...}`; the pieces join to the text."""
    position = 0
    while match := BOX.search(text, position):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:  # never closed: no box
            break
        if match.start() > position:
            yield text[position : match.start()], False
        yield text[match.start() : end], True
        position = end
    if position < len(text):
        yield text[position:], False
