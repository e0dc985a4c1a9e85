"""The embedded agent's data set: seeded products and sums in English and Japanese, too large to work out in its head.

Only the two numbers decide a question's split, in both languages and in either order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Literal

from rl.errors import UserError
from rl.rollouts import Problem
from rl.tiny.word_problems import FRUITLESS_DRAWS, LANGUAGES, TEST_SHARE, Language, Split

RANGES = {"*": (12, 99), "+": (100, 999)}
# A question names its numbers in the order in which they are calculated.
QUESTIONS: dict[str, dict[Language, tuple[str, ...]]] = {
    "*": {
        "en": (
            "What is {a} × {b}?",
            "Multiply {a} by {b}.",
            "How many pens are in {a} boxes of {b} pens?",
            "{a} tickets cost {b} dollars each. What do they cost together?",
        ),
        "ja": (
            "{a} × {b} はいくつですか？",
            "{a}に{b}をかけてください。",
            "{a}箱にペンが{b}本ずつあります。全部で何本ですか？",
            "{a}人が{b}円ずつ払いました。全部で何円ですか？",
        ),
    },
    "+": {
        "en": (
            "What is {a} + {b}?",
            "Add {a} and {b}.",
            "A shop sold {a} apples and then {b} more. How many did it sell?",
            "One hall has {a} seats and another has {b}. How many seats are there?",
        ),
        "ja": (
            "{a} + {b} はいくつですか？",
            "{a}に{b}を足してください。",
            "りんごが{a}個売れ、さらに{b}個売れました。全部で何個ですか？",
            "{a}円の本と{b}円のペンを買いました。全部で何円ですか？",
        ),
    },
}


@dataclass(frozen=True)
class Exercise:
    """Two numbers and a sign, asked in one of the wordings of a language."""

    left: int
    sign: Literal["*", "+"]
    right: int
    language: Language
    wording: int

    @property
    def expression(self) -> str:
        return f"{self.left}{self.sign}{self.right}"

    @property
    def answer(self) -> int:
        return self.left * self.right if self.sign == "*" else self.left + self.right

    @property
    def question(self) -> str:
        return QUESTIONS[self.sign][self.language][self.wording].format(a=self.left, b=self.right)

    @property
    def split(self) -> Split:
        key = f"{min(self.left, self.right)}{self.sign}{max(self.left, self.right)}".encode()
        return "test" if zlib.crc32(key) % TEST_SHARE == 0 else "train"

    def problem(self) -> Problem:
        return Problem(
            id=f"{self.expression}-{self.language}-{self.wording}",
            question=self.question,
            answer=str(self.answer),
            language=self.language,
            source="arithmetic",
            steps=1,
        )


def draw(split: Split, language: Language, rng: Random) -> Exercise:
    """A random exercise of `split`; products and sums are equally likely."""
    while True:
        sign: Literal["*", "+"] = rng.choice(("*", "+"))
        left, right = (rng.randint(*RANGES[sign]) for _ in range(2))
        one = Exercise(left, sign, right, language, rng.randrange(len(QUESTIONS[sign][language])))
        if one.split == split:
            return one


def generate(split: Split, count: int, seed: int, language: Literal["en", "ja", "both"]) -> list[Problem]:
    """`count` different problems, a pure function of the arguments; a larger count extends a smaller one.

    With ``both`` the languages alternate. Raises UserError if there are fewer different problems.
    """
    stream = _stream(split, language, Random(f"arithmetic {split} {seed} {language}"))
    found: dict[str, Problem] = {}
    while len(found) < count:
        one = next((p for p in islice(stream, FRUITLESS_DRAWS) if p.id not in found), None)
        if one is None:
            raise UserError(
                f"data.{split}_size={count}: data=arithmetic has about {len(found):,} different {split} problems with"
                f" language={language}; type data.{split}_size={len(found)} or less"
            )
        found[one.id] = one
    return list(found.values())


def _stream(split: Split, language: Literal["en", "ja", "both"], rng: Random) -> Iterator[Problem]:
    while True:
        for each in LANGUAGES if language == "both" else (language,):
            yield draw(split, each, rng).problem()
