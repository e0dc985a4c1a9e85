"""Refusal and duplicate checks, and the report of which rows were kept or rejected, and why."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

EXAMPLES = 3  # rows shown for each reason
_SORRY = r"((i('m| am) )?(so |very )?sorry|i apologi[sz]e|my apologies|unfortunately)[,.]? (but )?"
_UNABLE = r"i('m| am)? (can't|cannot|can not|unable to|not able to|won't be able to)"
_TASK = r"(translate|answer|assist|help(?! but)|comply|fulfil|provide|process)"
_UNABLE_JA = r"(翻訳|訳[すせ]|対応|回答|答え|応じ|手伝|提供|処理)[^。\n]*(ません|かねます)"
_REFUSAL = re.compile(
    rf"\s*({_SORRY})?(as an ai( language)? (model|assistant)\b|{_UNABLE} {_TASK})"
    rf"|\s*(申し訳|恐れ入りますが|すみませんが|残念ながら|(私は)?(ai|人工知能))[^。\n]*{_UNABLE_JA}"
    rf"|\s*[このそご]{{0,2}}(文章|テキスト|内容|質問|要求|依頼)[はをにの][^。\n]{{0,10}}{_UNABLE_JA}",
    re.IGNORECASE,
)
_WIDE = str.maketrans({"、": ",", "。": "."} | dict.fromkeys("‘’“”「」『』・"))
_PAUSE = re.compile(r"[.,](?!\d)")
_IGNORED = b" \t\n\r\"'?;"


def is_refusal(text: str) -> bool:
    """Whether a text begins like a refusal by a model or a translator, in English or Japanese."""
    return _REFUSAL.match(text.replace("’", "'")) is not None


def normalized(text: str) -> bytes:
    """The text for comparison, without differences of width, case, white space and sentence punctuation.

    Operators are kept, and so is a point or comma before a digit: "1.5" is not "15".
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_WIDE)
    text = _PAUSE.sub("", text.casefold())
    return text.encode("utf-8", "surrogatepass").translate(None, _IGNORED)


@dataclass
class SplitReport:
    """Counts of a split's rows: read = kept + rejected; `noted` rows are among the kept ones."""

    read: int = 0
    kept: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def reject(self, reason: str, example: str) -> None:
        self.rejected[reason] += 1
        self._example(reason, example)

    def note(self, what: str, example: str) -> None:
        self.noted[what] += 1
        self._example(what, example)

    def summary(self) -> str:
        """E.g. ``16 read, 12 kept, 4 rejected: 1 refusal, 3 duplicate``."""
        text = f"{self.read:,} read, {self.kept:,} kept"
        if self.rejected:
            text += f", {self.rejected.total():,} rejected: {_counts(self.rejected)}"
        return f"{text} ({_counts(self.noted)})" if self.noted else text

    def _example(self, reason: str, example: str) -> None:
        shown = self.examples.setdefault(reason, [])
        if len(shown) < EXAMPLES:
            shown.append(example)


@dataclass
class LoadReport:
    """What was read, kept and rejected, by split; `leaks` maps each leaked train row to the test row it equals."""

    name: str
    splits: dict[str, SplitReport] = field(default_factory=dict)
    leaks: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The report as lines of plain text."""
        lines = []
        for split, report in self.splits.items():
            lines.append(f"{self.name} {split}: {report.summary()}")
            for reason, examples in report.examples.items():
                lines.extend(f"  {_words(reason)}: {example}" for example in examples)
        if self.leaks:
            lines.append(f"  {len(self.leaks):,} train rows are in a test split too (data.allow_leak=true)")
        return lines

    def to_json(self) -> dict[str, Any]:
        """The report as plain dicts, lists and numbers."""
        splits = {
            split: {
                "read": report.read,
                "kept": report.kept,
                "rejected": dict(report.rejected),
                "noted": dict(report.noted),
                "examples": report.examples,
            }
            for split, report in self.splits.items()
        }
        return {"name": self.name, "splits": splits, "leaks": len(self.leaks)}


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count:,} {_words(reason)}" for reason, count in counter.items())


def _words(reason: str) -> str:
    return reason.replace("_", " ")
