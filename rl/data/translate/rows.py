"""One row on its way: question and solution are asked for apart, checked, asked for again, and put together."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rewards.grading.golds import Layout
from rl.data.checks import normalized
from rl.data.translate import answers, checks, repair
from rl.data.translate.checks import LANGUAGES, Direction, Fault
from rl.data.translate.client import Client, Unusable
from rl.data.translate.config import Judge, Limits, Prompts
from rl.data.translate.journal import Messages, Reply
from rl.data.translate.marks import Masked, Restored, mask, restore

SHOWN_CHARS = 4000  # of a bad answer, in the request that asks again
# Lengths of a translation, as letters over letters of the source, that raise no doubt.
USUAL_RATIOS = {"ja": (0.25, 0.9), "en": (1.2, 4.0)}


@dataclass(frozen=True)
class SourceRow:
    """A row to translate. id: the split and the row's number, e.g. ``train-12``."""

    id: str
    split: str
    question: str
    answer: str
    language: str


@dataclass
class Result:
    """A translated row, or the reasons why it is left out.

    asked_again: the reason of each repetition. changes: what was removed from answers. doubts: why a person should look
    at the row; doubt is their sum.
    """

    source: SourceRow
    question: str = ""
    answer: str = ""
    faults: list[Fault] = field(default_factory=list)
    asked_again: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    doubts: dict[str, float] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        return not self.faults

    @property
    def doubt(self) -> float:
        return round(sum(self.doubts.values()), 3)


@dataclass(frozen=True)
class Wording:
    """The requests of a row. layout: of the answer field. to: the target language."""

    prompts: Prompts
    layout: Layout
    to: str

    def first(self, row: SourceRow) -> list[Messages]:
        """The first request for each part, for a plan; the solution's shows the untranslated question twice."""
        asked = [self.request("question", mask(row.question, self.layout, shown=True), row, "")]
        if body := answers.split_answer(row.answer, self.layout).solution:
            asked.append(self.request("solution", mask(body, self.layout, shown=False), row, row.question))
        return asked

    def request(self, part: str, masked: Masked, row: SourceRow, question_translation: str) -> Messages:
        """The request for a part, without what was answered before."""
        language = LANGUAGES[self.to]
        system = self.prompts.system.format(language=language)
        user = getattr(self.prompts, part).format(
            text=masked.text,
            question=row.question,
            question_translation=question_translation,
            language=language,
        )
        style = self.prompts.style.get(self.to, "")
        return [
            {"role": "system", "content": f"{system.strip()}\n{style.strip()}".strip()},
            {"role": "user", "content": user.strip()},
        ]

    def again(self, request: Messages, said: str, faults: Sequence[Fault]) -> Messages:
        """The request after a bad answer, with the reasons why it is bad."""
        reasons = "\n".join(f"- {fault.advice(self.to)}" for fault in faults)
        user = self.prompts.again.format(reasons=reasons, language=LANGUAGES[self.to])
        return [
            *request,
            {"role": "assistant", "content": said[:SHOWN_CHARS].encode("utf-8", "replace").decode()},
            {"role": "user", "content": user.strip()},
        ]


class Translator:
    """Translates rows through a client."""

    def __init__(self, client: Client, wording: Wording, limits: Limits, judge: Judge, attempts: int) -> None:
        self._client = client
        self._wording = wording
        self._layout = wording.layout
        self._to = wording.to
        self._limits = limits
        self._judge = judge
        self._attempts = attempts

    async def translate(self, row: SourceRow) -> Result:
        """The row's result. Raises Overspent, and UserError when the server cannot be used."""
        result = Result(row)
        direction = self._limits.direction(row.language, self._to)
        asked = Part(mask(row.question, self._layout, shown=True), row.question, is_question=True)
        result.question = await self._part(
            asked, self._wording.request("question", asked.masked, row, ""), direction, result
        )
        body = answers.split_answer(row.answer, self._layout)
        last, solution = answers.single_marker(body.last, self._layout), ""
        if last != body.last:
            result.changes.append("marker_doubled")
        if body.solution and not result.faults:
            asked = Part(
                mask(body.solution, self._layout, shown=False),
                body.solution,
                False,
                (row.question, result.question),
            )
            messages = self._wording.request("solution", asked.masked, row, result.question)
            solution = await self._part(asked, messages, direction, result)
        result.answer = answers.join_answer(solution, last)
        if result.kept:
            result.faults += checks.gold_faults(row.answer, result.answer, self._layout)
        if result.kept:
            result.doubts |= doubts(result, direction)
            if self._judge.model:
                result.doubts |= await self._second_opinion(result)
        return result

    async def _part(self, part: Part, messages: Messages, direction: Direction, result: Result) -> str:
        """The translation of one part; after `attempts` bad answers its faults are in the result."""
        request, text = messages, ""
        faults: list[Fault] = []
        for attempt in range(1, self._attempts + 1):
            try:
                reply = await self._client.ask(request, attempt)
            except Unusable as error:
                faults, said = [Fault("no_answer", str(error)[:200])], "(no answer)"
            else:
                restored, changes = part.read(reply, direction)
                faults, text, said = part.faults(restored, reply, direction), restored.text, reply.text
                if not faults:
                    result.changes += changes
                    return text
            if attempt < self._attempts:
                result.asked_again.append(faults[0].reason)
            request = self._wording.again(messages, said, faults)
        result.faults += faults
        return text

    async def _second_opinion(self, result: Result) -> dict[str, float]:
        """The judge's doubt about a row: 0 for none. A judge that cannot be understood counts as half a doubt."""
        row, back = result.source, self._judge.kind == "back_translation"
        language = LANGUAGES[row.language if back else self._to]
        request = (self._wording.prompts.back_translation if back else self._wording.prompts.yes_no).format(
            question=row.question,
            answer=row.answer,
            question_translation=result.question,
            answer_translation=result.answer,
            language=language,
        )
        try:
            reply = await self._client.ask(
                [{"role": "user", "content": request.strip()}], model=self._judge.model
            )
        except Unusable:
            return {"judge": 0.5}
        said, _ = repair.tidy(reply.text)
        if back:
            ours, theirs = (normalized(text).decode("utf-8", "replace") for text in (row.question, said))
            unlike = 1 - difflib.SequenceMatcher(None, ours, theirs, autojunk=False).ratio()
            return {"judge": round(2 * unlike, 3)} if unlike > 0.3 else {}
        verdict = re.match(r"\W*(yes|no|はい|いいえ)\b", said, re.IGNORECASE)
        if verdict is None:
            return {"judge": 0.5}
        return {"judge": 2.0} if verdict[1].lower() in ("no", "いいえ") else {}


@dataclass(frozen=True)
class Part:
    """A question or a solution to translate. question: (source, translation) of the question, for the names of a solution."""

    masked: Masked
    source: str
    is_question: bool
    question: tuple[str, str] = ("", "")

    def read(self, reply: Reply, direction: Direction) -> tuple[Restored, list[str]]:
        """The answer with the source's numbers and formulas in it, and what was removed."""
        said, changes = repair.tidy(reply.text)
        whats = [change.what for change in changes]
        if not self.is_question and (bare := answers.without_markers(said)) != said:
            said, whats = bare, [*whats, "marker_removed"]
        return restore(said, self.masked, direction.to), whats

    def faults(self, restored: Restored, reply: Reply, direction: Direction) -> list[Fault]:
        """Every fault of the answer; the first is the one that is counted."""
        if reply.finish == "length":
            return [Fault("cut")]
        said, _ = repair.tidy(reply.text)
        found = [*checks.text_faults(self.masked.text, answers.without_markers(said), direction)]
        if any(fault.reason in ("empty", "refusal", "broken_text") for fault in found):
            return found
        found += checks.mark_faults(restored, self.masked, self.is_question)
        if self.is_question:
            found += checks.question_faults(self.source, restored.text, direction)
        else:
            found += checks.solution_faults(self.question, (self.source, restored.text), direction)
            found += checks.calculation_faults(self.source, restored.text)
        return found


def doubts(result: Result, direction: Direction) -> dict[str, float]:
    """Why a person should look at a kept row, each with its weight."""
    found = {}
    if result.asked_again:
        found["asked again"] = 0.5 * len(result.asked_again)
    if result.changes:
        found["tidied"] = 0.25
    low, high = USUAL_RATIOS[direction.to]
    for name, source, text in _pairs(result):
        ratio = sum(map(str.isalpha, text)) / max(1, sum(map(str.isalpha, source)))
        if not low <= ratio <= high and len(source) > 60:
            found[f"length of the {name}"] = round(
                min(2.0, abs(ratio - (low if ratio < low else high)) + 0.5), 3
            )
        share = checks.language_share(text, direction.to)
        if share < 0.85:
            found[f"language of the {name}"] = round(2 * (0.85 - share) + 0.25, 3)
    return found


def _pairs(result: Result) -> Iterator[tuple[str, str, str]]:
    yield "question", result.source.question, result.question
    if "\n" in result.answer:
        yield "solution", result.source.answer, result.answer
