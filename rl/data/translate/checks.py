"""What can be wrong with a translated question or solution. Each fault has a reason, and what to tell the translator."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rewards.grading.golds import Layout
from rl.data.checks import is_refusal
from rl.data.translate.answers import calculations, disagree, gold_of
from rl.data.translate.marks import Masked, Restored, without_marks
from rl.data.translate.names import changed_names, shared_names
from rl.data.translate.numbers import compare
from rl.data.translate.units import added_units

LANGUAGES = {"en": "English", "ja": "Japanese"}
# The reasons, and what a translator is told; {detail} is what was found.
REASONS = {
    "no_answer": "The server sent no usable answer ({detail}).",
    "cut": "The answer was cut off before its end. Answer with the translation only.",
    "empty": "The answer holds no text.",
    "broken_text": "The answer holds broken characters.",
    "refusal": "This is a text from a school book. Translate it; do not answer or refuse.",
    "thinking": "The answer holds remarks or reasoning of your own ({detail}). Answer with the translation only.",
    "markdown": "The answer holds Markdown ({detail}). Answer with plain text.",
    "same_as_source": "The answer repeats the source text. Translate it.",
    "wrong_language": "The answer is not written in {language} ({detail}).",
    "length_ratio": "The answer is {detail}. Translate the whole text, and nothing else.",
    "marks_wrong": "Copy every [[...]] mark of the source exactly once ({detail}).",
    "numbers_lost": "Numbers of the source are missing: {detail}. Keep every number.",
    "numbers_new": "Numbers that the source does not have: {detail}. Do not compute or convert anything.",
    "units_changed": "Units or currencies that the source does not have: {detail}. Do not convert anything.",
    "names_changed": "A person has another name than in the question ({detail}). Use the question's names.",
    "calculation_wrong": "The two sides of a calculation differ: {detail}.",
    "calculations_differ": "The calculations are not those of the source: {detail}.",
    "missing_marker": "The answer line is missing.",
    "different_markers": "There are several answer lines with different values.",
    "unreadable_gold": "The answer line holds no single number.",
    "gold_differs": "The answer differs from the source's ({detail}).",
}
_THINKING = re.compile(
    r"</?think(?:ing)?>|<\|[a-z_]+\|>|assistantfinal|\A\s*(?:analysis|okay,|ok,|let me |let's (?:translate|think)|we need to |the user |sure[,!.]|here is|here's"
    r"|certainly|of course[,!.]|i need to |first, i )|\A\s*(?:承知|了解|かしこまり|はい、|以下[はがに]|翻訳すると|日本語に(?:翻訳|訳))"
    r"|(?:\A|\n)\s*(?:translation|translated text|note|訳注|訳者注|注|翻訳|日本語訳|和訳)\s*[:：]|[(（](?:訳注|訳者注|note:)",
    re.IGNORECASE,
)
_MARKDOWN = re.compile(r"```|\*\*[^*\n]+\*\*|(?:\A|\n)#{1,3} \S|(?:\A|\n)\s*[-*] \S")
KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa]")
_JAPANESE = re.compile("[\u3041-\u30ff\u3400-\u9fff々〇]")
# The signs of two prices, "$12 and $5", enclose no formula.
_TEX = re.compile(r"```.*?(?:```|\Z)|\$(?!\s)[^$\n]*[^$\s]\$(?!\d)|\\\[.*?\\\]|\\[A-Za-z]+", re.DOTALL)
_VARIABLE = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")  # x in 3x=6 belongs to no language
_UNIT = re.compile(
    r"(?<![A-Za-z])[A-Za-z]{2}(?![A-Za-z])"
)  # km; without a source it cannot be told from a word
_SHORT = 20  # letters: the length of shorter texts says nothing
LENGTH_RATIOS = {"ja": (0.12, 1.3), "en": (0.7, 8.0)}  # letters of the translation over letters of the source


@dataclass(frozen=True)
class Fault:
    """A reason to reject a translation. detail: what was found, e.g. the numbers that are missing."""

    reason: str
    detail: str = ""

    def advice(self, to: str) -> str:
        """What to tell the translator."""
        return REASONS[self.reason].format(detail=self.detail or "see the source", language=LANGUAGES[to])

    def __str__(self) -> str:
        return (
            f"{self.reason.replace('_', ' ')} ({self.detail})"
            if self.detail
            else self.reason.replace("_", " ")
        )


@dataclass(frozen=True)
class Direction:
    """source, to: languages. share: of the letters that must be in `to`. ratios: allowed lengths, see LENGTH_RATIOS."""

    source: str
    to: str
    share: float = 0.5
    ratios: tuple[float, float] | None = None


def text_faults(source: str, translation: str, direction: Direction) -> Iterator[Fault]:
    """Faults of any translated text. Raises nothing; a text without letters on both sides is fine.

    source: "" if unknown; the checks that compare with it are then left out.
    """
    known = bool(source)
    source, text = without_marks(source), without_marks(translation)
    if not any(map(str.isalnum, translation)):
        yield Fault("empty")
        return
    if not _is_unicode(translation):
        yield Fault("broken_text")
        return
    if is_refusal(text) and not is_refusal(source):
        yield Fault("refusal")
    if (found := _THINKING.search(translation)) and not _THINKING.search(source):
        yield Fault("thinking", f"{found[0].strip()!r}")
    if known and (found := _MARKDOWN.search(text)) and not _MARKDOWN.search(source):
        yield Fault("markdown", f"{found[0].strip()!r:.40}")
    ours, theirs = _letters(source), _letters(text)
    if known and not ours:
        return
    if ours == theirs and len(ours) > 3 and _letters(_VARIABLE.sub(" ", source)):
        yield Fault("same_as_source")
    elif (share := language_share(text if known else _UNIT.sub(" ", text), direction.to)) < direction.share:
        yield Fault("wrong_language", f"{share:.0%} of its letters are {LANGUAGES[direction.to]}")
    low, high = direction.ratios or LENGTH_RATIOS[direction.to]
    if len(ours) >= _SHORT and not low <= (ratio := len(theirs) / len(ours)) <= high:
        yield Fault("length_ratio", f"{ratio:.2f} times as long as the source")


def question_faults(source: str, translation: str, direction: Direction) -> Iterator[Fault]:
    """Numbers, units and currencies of a question that are not the source's."""
    difference = compare(source, translation, direction.source, direction.to)
    if difference.lost:
        yield Fault("numbers_lost", ", ".join(difference.lost))
    if difference.new:
        yield Fault("numbers_new", ", ".join(difference.new))
    if units := added_units(source, translation, direction.source, direction.to):
        yield Fault("units_changed", ", ".join(units))


def mark_faults(restored: Restored, masked: Masked, question: bool) -> Iterator[Fault]:
    """Marks that were lost, repeated or made up. A question may write a number itself: its value is compared later."""
    lost = [n for n in restored.lost if not question or n in masked.single]
    wrong = [
        f"{what} {', '.join(f'[[{n}]]' for n in numbers[:8])}"
        for what, numbers in (
            ("missing", lost),
            ("repeated", restored.repeated),
            ("unknown", restored.unknown),
        )
        if numbers
    ]
    if wrong:
        yield Fault("marks_wrong", "; ".join(wrong))


def solution_faults(
    question: tuple[str, str], solution: tuple[str, str], direction: Direction
) -> Iterator[Fault]:
    """New numbers, units and names of a solution. question, solution: (source, translation) of each; "" if unknown."""
    source = f"{question[0]}\n{solution[0]}"
    if solution[0]:
        if new := compare(source, solution[1], direction.source, direction.to).new:
            yield Fault("numbers_new", ", ".join(new))
        if units := added_units(source, solution[1], direction.source, direction.to):
            yield Fault("units_changed", ", ".join(units))
    english = direction.source == "en" and bool(solution[0])
    names = shared_names(question[0], solution[0]) if english else []
    changed = changed_names(question[1], solution[1], direction.to, names, source if english else "")
    if changed:
        yield Fault("names_changed", ", ".join(changed))


def calculation_faults(source: str, translation: str) -> Iterator[Fault]:
    """Calculations that the source does not have, and, where the source is unknown, those with two different sides."""
    theirs = calculations(translation)
    if source:
        ours = calculations(source)
        if odd := (Counter(theirs) - Counter(ours)) + (Counter(ours) - Counter(theirs)):
            yield Fault("calculations_differ", ", ".join(f"<<{c}>>" for c in list(odd)[:6]))
    elif wrong := [c for c in theirs if disagree(c)]:
        yield Fault("calculation_wrong", ", ".join(f"<<{c}>>" for c in wrong[:6]))


def gold_faults(source: str, translation: str, layout: Layout) -> Iterator[Fault]:
    """A gold answer that is not the source's."""
    ours, theirs = gold_of(source, layout), gold_of(translation, layout)
    if ours is not None and ours != theirs:
        yield Fault("gold_differs", f"{theirs} instead of {ours}")


def language_share(text: str, language: str) -> float:
    """The share of the letters, without variables, in the language; Chinese, which has no kana, is 0 for Japanese."""
    letters = _letters(_VARIABLE.sub(" ", text))
    if not letters:
        return 1.0
    if language == "en":
        return sum(map(str.isascii, letters)) / len(letters)
    if len(letters) >= _SHORT and not KANA.search(text):
        return 0.0
    return len(_JAPANESE.findall("".join(letters))) / len(letters)


def _letters(text: str) -> list[str]:
    return [c for c in _TEX.sub(" ", text) if c.isalpha() or c == "ー"]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\ufffd" not in text
