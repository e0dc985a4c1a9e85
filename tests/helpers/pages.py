"""Shared by the tests of reports: a page as a browser reads it, and a line of evaluations.jsonl."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """The page's tags, the addresses it refers to, the text of its marks, and all its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.addresses: list[str] = []
        self.marks: list[tuple[str, str]] = []
        self.text = ""
        self.mark: str | None = None
        self.folded = 0
        self.folded_text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        named = dict(attributes)
        self.addresses += [str(named[key]) for key in ("src", "srcset", "href", "action") if key in named]
        self.folded += tag == "details"
        if tag == "mark":
            self.mark = named["class"]

    def handle_endtag(self, tag: str) -> None:
        self.folded -= tag == "details"
        if tag == "mark":
            self.mark = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.folded:
            self.folded_text += data
        if self.mark:
            self.marks.append((self.mark, data))


def evaluation(
    accuracy: float, low: float, high: float, tokens_per_correct: list[float | None]
) -> dict[str, Any]:
    return {
        "budget": 64, "problems": 32, "completions": 4, "temperature": 1.0, "accuracy": [accuracy, low, high],
        "truncated": [1 - accuracy, 1 - high, 1 - low], "tokens_per_correct": tokens_per_correct,
        "pass@4": [accuracy, low, high],
    }  # fmt: skip
