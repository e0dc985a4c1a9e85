"""Repairs of a translated row that exists: its gold line, its calculations, and what a translator wrote around them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

from rewards.grading.exact import as_text
from rewards.grading.golds import GoldError, Layout, canonical_gold
from rl.data.checks import is_refusal
from rl.data.translate import answers
from rl.data.translate.answers import CALCULATION, split_answer
from rl.data.translate.checks import (
    Direction,
    Fault,
    calculation_faults,
    gold_faults,
    question_faults,
    solution_faults,
    text_faults,
)

_THOUGHT = re.compile(r"\A\s*(?:<think(?:ing)?>)?(?:(?!</?think).)*</think(?:ing)?>\s*", re.DOTALL)
_HARMONY = re.compile(r"\A.*<\|channel\|>final<\|message\|>|<\|(?:return|end)\|>\s*\Z", re.DOTALL)
_FENCE = re.compile(r"\A\s*```[\w-]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_LABEL = re.compile(r"\A\s*(?:Translation|翻訳|日本語訳|和訳)\s*[:：]\s*", re.IGNORECASE)
_RESULT = re.compile(r"\s*[$€£¥]?\s*(-?\d[\d,]*(?:\.\d+)?)")


@dataclass(frozen=True)
class Change:
    """One repair of a row. what: its kind, as counted in the report."""

    what: str
    before: str
    after: str


@dataclass
class Repaired:
    """A row after its repairs. faults: why it is left out; none: it is kept."""

    question: str
    answer: str
    changes: list[Change] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def tidy(text: str) -> tuple[str, list[Change]]:
    """A model's answer without its closed reasoning block, code fence and label, and what was removed."""
    changes = []
    for what, pattern in (
        ("thinking_removed", _THOUGHT),
        ("thinking_removed", _HARMONY),
        ("fence_removed", _FENCE),
        ("label_removed", _LABEL),
    ):
        after = pattern.sub(r"\1" if pattern is _FENCE else "", text)
        if after != text:
            changes.append(Change(what, text, after))
            text = after
    return text.strip(), changes


def repair_row(
    question: str, answer: str, source: tuple[str, str], layout: Layout, direction: Direction
) -> Repaired:
    """Repairs a translated row and checks the result. source: the original question and answer; "" where unknown."""
    original, original_answer = source
    row = Repaired(question, answer)
    row.question, changes = tidy(question)
    row.changes += changes
    if layout != "plain":
        row.answer, changes = tidy(answer)
        row.changes += changes
    if not any(map(str.isalnum, row.question)):
        row.faults.append(Fault("empty"))
        return row
    if is_refusal(row.question) or is_refusal(row.answer):
        row.faults.append(Fault("refusal"))
        return row
    if layout == "marker":
        _repair_calculations(row, original_answer)
        _repair_marker(row, original_answer)
    elif layout == "boxed" and not row.faults:
        row.faults += _unreadable(row.answer, layout)
    row.faults += _checked(row, original, original_answer, layout, direction)
    return row


def _checked(
    row: Repaired, original: str, original_answer: str, layout: Layout, direction: Direction
) -> Iterator[Fault]:
    solution = split_answer(row.answer, layout).solution
    body = split_answer(original_answer, layout).solution
    yield from text_faults(original, row.question, direction)
    if original:
        yield from question_faults(original, row.question, direction)
    if solution:
        yield from text_faults(body, solution, direction)
        yield from calculation_faults(body, solution)
        yield from solution_faults((original, row.question), (body, solution), direction)
    elif body:
        yield Fault("empty", "solution")
    if original_answer and not row.faults:
        yield from gold_faults(original_answer, row.answer, layout)


def _repair_marker(row: Repaired, original_answer: str) -> None:
    """Makes the last line ``#### gold``, once, from the row itself or else from the original."""
    before = split_answer(row.answer, "marker")
    expected = answers.gold_of(original_answer, "marker") if original_answer else None
    try:
        gold = canonical_gold(row.answer, "marker")
    except GoldError as error:
        values = re.findall(r"[#＃]{4,}\s*([^#＃]*)", row.answer)
        says = [answers.gold_of(f"#### {value}", "marker") for value in values]
        if expected is None or (error.reason != "missing_marker" and expected not in says):
            row.faults.append(Fault(error.reason))
            return
        gold = expected
    line = f"#### {gold}"
    if before.last != line:
        row.changes.append(Change(_kind(before.last), before.last, line))
    row.answer = answers.join_answer(before.solution.rstrip(), line)


def _kind(last: str) -> str:
    """Which repair a gold line needs."""
    if not last:
        return "marker_from_source"
    if len(re.findall(r"[#＃]{4,}", last)) > 1:
        return "marker_doubled"
    if "\n" in last.strip():
        return "text_after_marker"
    return "marker_tidied"


def _repair_calculations(row: Repaired, original_answer: str) -> None:
    """Puts the original's ``<<a=b>>`` back where one was changed, and mends a result that its own row contradicts."""
    found = [*CALCULATION.finditer(row.answer)]
    ours = [match[1] for match in CALCULATION.finditer(original_answer)]
    replaced: dict[int, str] = {}
    if len(found) == len(ours):
        theirs = [answers.tidy_calculation(match[1]) for match in found]
        wanted = [answers.tidy_calculation(content) for content in ours]
        odd = [i for i, (one, other) in enumerate(zip(theirs, wanted, strict=True)) if one != other]
        in_order = sorted(theirs) != sorted(wanted)  # the same ones in another order are no fault
        if in_order and all(_is_spoiled(theirs[i], wanted[i]) for i in odd):
            replaced = {i: ours[i] for i in odd}
    elif not ours:
        for i, match in enumerate(found):
            result = _RESULT.match(row.answer, match.end())
            left = match[1].rpartition("=")[0]
            value = answers.value_of(answers.tidy_calculation(left)) if left else None
            if answers.disagree(answers.tidy_calculation(match[1])) and result and value is not None:
                said = answers.value_of(result[1].replace(",", ""))
                if said is not None and answers.close(value, said):
                    replaced[i] = f"{left}={result[1]}" if said == value else f"{left}={as_text(value)}"
    for i in sorted(replaced, reverse=True):
        match = found[i]
        row.changes.append(Change("calculation_restored", match[0], f"<<{replaced[i]}>>"))
        row.answer = f"{row.answer[: match.start()]}<<{replaced[i]}>>{row.answer[match.end() :]}"


def _is_spoiled(calculation: str, original: str) -> bool:
    """Whether one is the other with a slip: it contradicts itself, or one of its sides is the original's."""
    left, _, right = unicodedata.normalize("NFKC", calculation).rpartition("=")
    ours_left, _, ours_right = original.rpartition("=")
    return answers.disagree(calculation) or left == ours_left or right == ours_right


def _unreadable(answer: str, layout: Layout) -> Iterator[Fault]:
    try:
        canonical_gold(answer, layout)
    except GoldError as error:
        yield Fault(error.reason)
