"""Finds boxed answers in a model's text, to highlight them. Grading has its own, stricter parser."""

from __future__ import annotations

import re
from collections.abc import Iterator

BOX = re.compile(r"\\boxed\s*\{")


def holds_box(text: str) -> bool:
    r"""Whether the text contains a closed `\boxed{...}`."""
    return any(boxed for _, boxed in split_boxes(text))


def split_boxes(text: str) -> Iterator[tuple[str, bool]]:
    r"""Pieces that join to the text, each with whether it is a closed `\boxed{...}`."""
    position = 0
    while match := BOX.search(text, position):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:  # never closed, so not a box
            break
        if match.start() > position:
            yield text[position : match.start()], False
        yield text[match.start() : end], True
        position = end
    if position < len(text):
        yield text[position:], False
