"""The embedded data set: seeded English and Japanese word problems, and worked solutions for training on them.

Only a problem's kind and numbers decide its split, in both languages. So neither a test problem, nor its translation,
nor the same sum with other names is ever in the train split.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Literal

from rl.errors import UserError
from rl.rollouts import Problem
from rl.tiny.word_kinds import ITEMS, KINDS, NAMES, RESULTS, Kind

Split = Literal["train", "test"]
Language = Literal["en", "ja"]
Style = Literal["long", "short_en", "short_ja"]

LANGUAGES: tuple[Language, ...] = ("en", "ja")

LARGEST = 30  # largest result of a step: a million parameters can learn sums this small
TEST_SHARE = 5  # one number combination in five belongs to the test split
FRUITLESS_DRAWS = 100  # in a row, after which the generator assumes that no new problems are left

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
SIGNS = {"+": "+", "-": "-", "*": "×", "/": "÷"}


@dataclass(frozen=True)
class WordProblem:
    """A kind with its numbers (a, b, ... in order), in one language, with one name and one item."""

    kind: Kind
    numbers: tuple[int, ...]
    language: Language
    name: int  # index into NAMES
    item: int  # index into ITEMS

    @property
    def id(self) -> str:
        numbers = "-".join(map(str, self.numbers))
        return f"{self.kind.name}-{self.language}-{numbers}-{self.name}-{self.item}"

    @property
    def split(self) -> Split:
        return split_of(self.kind, self.numbers)

    @property
    def results(self) -> list[int]:
        return results(self.kind, self.numbers)

    @property
    def question(self) -> str:
        return self._told(getattr(self.kind, self.language).question, self.language)

    @property
    def answer(self) -> int:
        return self.results[-1]

    def problem(self) -> Problem:
        return Problem(
            id=self.id,
            question=self.question,
            answer=str(self.answer),
            language=self.language,
            source="word_problems",
            steps=len(self.kind.steps),
        )

    def steps(self, language: Language) -> list[tuple[str, str]]:
        """Each step's description in `language` and its equation, such as ``("all apples", "12+5=17")``."""
        values = _values(self.numbers, self.results)
        equations = [
            f"{values[left]}{SIGNS[sign]}{values[right]}={result}"
            for (left, sign, right), result in zip(map(tuple, self.kind.steps), self.results, strict=True)
        ]
        finds = getattr(self.kind, language).finds
        return [
            (self._told(find, language), equation) for find, equation in zip(finds, equations, strict=True)
        ]

    def _told(self, text: str, language: Language) -> str:
        words = {"name": NAMES[language][self.name], "item": ITEMS[language][self.item]}
        return text.format(**words, **dict(zip("abcde", self.numbers, strict=False)))


def split_of(kind: Kind, numbers: tuple[int, ...]) -> Split:
    """The split that a number combination belongs to: a hash of only the kind and the numbers."""
    key = f"{kind.name} {numbers}".encode()
    return "test" if zlib.crc32(key) % TEST_SHARE == 0 else "train"


def results(kind: Kind, numbers: tuple[int, ...]) -> list[int]:
    """The result of each step; 0 for a division with a remainder."""
    found: list[int] = []
    for left, sign, right in map(tuple, kind.steps):
        values = _values(numbers, found)
        one, other = values[left], values[right]
        even = sign != "/" or one % other == 0
        found.append(OPERATIONS[sign](one, other) if even else 0)
    return found


def draw(split: Split, language: Language, rng: Random) -> WordProblem:
    """A random problem of `split`: kinds are equally likely; every step's result is in 1..LARGEST."""
    kind = rng.choice(KINDS)
    while True:
        numbers = tuple(rng.randint(low, high) for low, high in kind.ranges)
        if split_of(kind, numbers) == split and all(
            1 <= result <= LARGEST for result in results(kind, numbers)
        ):
            name = rng.randrange(len(NAMES["en"])) if "{name}" in kind.en.question else 0
            item = rng.randrange(len(ITEMS["en"])) if "{item}" in kind.en.question else 0
            return WordProblem(kind, numbers, language, name, item)


def generate(split: Split, count: int, seed: int, language: Literal["en", "ja", "both"]) -> list[Problem]:
    """`count` different problems, a pure function of the arguments; a larger count extends a smaller one.

    With ``both`` the languages alternate. Raises UserError if there are fewer different problems.
    """
    rng = Random(f"{split} {seed} {language}")
    stream = _stream(split, language, rng)
    found: dict[str, Problem] = {}
    while len(found) < count:
        one = next((one for one in islice(stream, FRUITLESS_DRAWS) if one.id not in found), None)
        if one is None:
            raise UserError(
                f"data.{split}_size={count}: data=word_problems has about {len(found):,} different {split} problems"
                f" with language={language}; type data.{split}_size={len(found)} or less"
            )
        found[one.id] = one.problem()
    return list(found.values())


def _stream(split: Split, language: Literal["en", "ja", "both"], rng: Random) -> Iterator[WordProblem]:
    while True:
        for each in LANGUAGES if language == "both" else (language,):
            yield draw(split, each, rng)


def _values(numbers: tuple[int, ...], found: list[int]) -> dict[str, int]:
    """The value of each operand character: a digit, a number of the problem, or an earlier result."""
    digits = {str(digit): digit for digit in range(10)}
    return digits | dict(zip("abcde", numbers, strict=False)) | dict(zip(RESULTS, found, strict=False))


# --- worked solutions -------------------------------------------------------------------------------------------

OPENINGS = (
    "Okay, let me think about this step by step.",
    "Okay, let me read the question again.",
    "Hmm, let me see what is asked here.",
)
STARTS = ("First,", "Okay, first,", "Let me start:")
NEXTS = ("Then", "Next,", "And then")
CHECKS = (
    "Wait, is that right? {equation}, yes.",
    "Hmm, let me check: {equation}. Okay.",
    "But wait, {equation}? Yes, that is right.",
)
DOUBTS = (
    "Hmm, did I miss something? No, I think it is fine.",
    "Wait, let me read it again. Hmm, okay, that is what is asked.",
    "Let me think. Did I use all the numbers? Yes.",
)
CLOSINGS = (
    "Let me check again: {equation}. So the answer should be {answer}.",
    "One last check: {equation}. Yes, so it is {answer}.",
)


def solution(one: WordProblem, style: Style, rng: Random) -> str:
    """A complete completion without its stop token: the reasoning in think tags, then the boxed answer.

    ``long`` doubts and checks itself, in English for every question; ``short_en`` and ``short_ja`` contain only the
    steps. The sentence with the box is in the question's language.
    """
    sentence = {"en": "The answer is \\boxed{%d}.", "ja": "答えは\\boxed{%d}です。"}[
        one.language
    ] % one.answer
    reasoning = {"long": _long, "short_en": _short_en, "short_ja": _short_ja}[style](one, rng)
    return f"<think>\n{reasoning}\n</think>\n\n{sentence}"


def _short_en(one: WordProblem, rng: Random) -> str:
    text = ", ".join(f"{find} {equation}" for find, equation in one.steps("en"))
    return f"{text[0].upper()}{text[1:]}."


def _short_ja(one: WordProblem, rng: Random) -> str:
    return "、".join(f"{find}{equation}" for find, equation in one.steps("ja")) + "。"


def _long(one: WordProblem, rng: Random) -> str:
    """One checked step, one doubt (with fewer than 4 steps), a last check: about 100 tokens for every kind."""
    steps = one.steps("en")
    checked = rng.randrange(len(steps))
    parts = [rng.choice(OPENINGS)]
    for index, (find, equation) in enumerate(steps):
        parts.append(f"{rng.choice(NEXTS if index else STARTS)} {find} {equation}.")
        if index == checked:
            parts.append(rng.choice(CHECKS).format(equation=equation))
    if len(steps) < 4:
        parts.append(rng.choice(DOUBTS))
    parts.append(rng.choice(CLOSINGS).format(equation=steps[-1][1], answer=one.answer))
    return " ".join(parts)
