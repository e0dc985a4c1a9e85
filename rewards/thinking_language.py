"""The share of the reasoning that is written in one language, or in the problem's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rl.rollouts import Rollout

_MACRO = re.compile(r"\\[A-Za-z]+")
_SCRIPTS = {
    "en": re.compile(r"[A-Za-z\u00c0-\u024f\uff21-\uff3a\uff41-\uff5a]"),
    "ja": re.compile(
        r"[\u3005-\u3007\u3041-\u3096\u30a1-\u30fa\u30fc\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f]"
    ),
}


def script_share(text: str, language: str) -> float:
    """The share of the letters of `text` in the language's script: Latin for en, kana and kanji for ja.

    LaTeX macros are ignored. 0.0 for a text without letters.
    """
    text = _MACRO.sub(" ", text)
    letters = sum(character.isalpha() for character in text)
    return len(_SCRIPTS[language].findall(text)) / letters if letters else 0.0


@dataclass(frozen=True, kw_only=True)
class ThinkingLanguage:
    """`script_share` of the reasoning, or of the whole answer if the completion has no reasoning in think tags.

    language: `problem` is that of each problem.
    """

    language: Literal["en", "ja", "problem"]
    weight: float = 1.0
    baseline: float = 0.0

    needs_grading: ClassVar[bool] = False

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        own = self.language == "problem"
        return [
            script_share(r.parsed.thinking or r.parsed.text, r.problem.language if own else self.language)
            for r in rollouts
        ]
