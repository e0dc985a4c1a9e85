"""A sample of kept rows beside their sources, the most doubtful first: as a page and in the terminal."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rl.data.translate.rows import Result

PAGE = "sample.html"
WORDS = {
    "en": {
        "title": "translated pairs, the most doubtful first", "source": "source", "translation": "translation",
        "doubt": "doubt", "none": "no doubts",
    },
    "ja": {
        "title": "翻訳の見本（疑わしい順）", "source": "原文", "translation": "翻訳", "doubt": "疑い", "none": "疑いなし",
        "asked again": "再依頼", "tidied": "余分な文を削除", "length of the question": "問題文の長さ",
        "length of the solution": "解答の長さ", "language of the question": "問題文の言語", "language of the solution": "解答の言語",
        "judge": "第二の意見",
    },
}  # fmt: skip


def most_doubtful(results: Iterable[Result], count: int) -> list[Result]:
    """Up to `count` kept rows, the largest doubt first, then in the order of the source."""
    kept = ((-r.doubt, i, r) for i, r in enumerate(results) if r.kept)
    return [result for _, _, result in heapq.nsmallest(count, kept)]


def why(result: Result, language: str) -> str:
    """The doubts of a row in words, e.g. ``asked again 0.5, judge 2.0``."""
    words = WORDS[language]
    return (
        ", ".join(f"{words.get(name, name)} {value:g}" for name, value in result.doubts.items())
        or words["none"]
    )


def write_page(folder: Path, results: Sequence[Result], name: str, to: str) -> Path:
    """Writes sample.html: self-contained, all text escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rl.data.translate"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("sample.html.j2").render(
        results=[(result, why(result, to)) for result in results], name=name, to=to, words=WORDS[to]
    )
    path = folder / PAGE
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def table(results: Sequence[Result], to: str) -> Any:
    """The same pairs for the terminal."""
    from rich.table import Table
    from rich.text import Text

    words = WORDS[to]
    shown = Table(title=words["title"], title_justify="left", show_lines=True)
    for name in ("doubt", "source", "translation"):
        shown.add_column(words[name], overflow="fold")  # Japanese has no blanks to break at
    for result in results:
        source = f"{result.source.question}\n\n{result.source.answer}"
        shown.add_row(
            Text(f"{result.source.id}\n{result.doubt:g}\n{why(result, to)}"),
            Text(source),
            Text(f"{result.question}\n\n{result.answer}"),
        )
    return shown
