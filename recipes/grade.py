"""Grades the completions in a file: `python -m recipes.grade file=IN.jsonl out=OUT.jsonl`."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, get_args

from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from rewards.grading import AnswerFormat, AnswerRegion, Grader, Sample, Verdict, parse_text
from rewards.grading.golds import GoldError, canonical_gold, canonical_raw_gold
from rl import progress
from rl.errors import UserError
from rl.schema import build
from rl.storage.disk import disk_errors
from rl.storage.file_kinds import advice, likely_encoding
from rl.storage.jsonl import write_row

MAX_CHARS = 10_000_000  # of one completion given as repeated parts


@dataclass(frozen=True)
class GradeConfig:
    """file, out: JSONL paths. raw_gold: `gold` is a whole data-set field. answer_region: where a box counts."""

    file: str
    out: str
    raw_gold: bool
    answer_region: AnswerRegion


@dataclass(frozen=True)
class Row:
    """One completion to grade. gold: None if the gold cannot be read."""

    id: Any
    completion: str
    gold: str | None
    answer_format: AnswerFormat = "boxed"
    prefilled_think: bool = False


@recipe("grade", GradeConfig)
def main(composed: Composed) -> None:
    """Grades each row, writes the verdicts, and prints how often each reason occurs."""
    import rich

    config: GradeConfig = build(GradeConfig, composed.tree)
    rows = read_rows(Path(config.file).expanduser(), config.raw_gold)
    with replacing(config.out, source=Path(config.file).expanduser()) as file:
        results = grade_rows(rows, config.answer_region)
        for result in progress.counted(results, "writing verdicts", len(results), "rows"):
            write_row(file, result)
    rich.print(verdict_table(results))
    print(f"{len(results)} rows: {Path(config.out).expanduser()}")


@contextmanager
def replacing(given: str, source: Path) -> Iterator[IO[str]]:
    """A temporary file that replaces `given` when the block succeeds; after an error `given` is unchanged.

    Raises UserError at once when `given` cannot be written or is `source`.
    """
    out = Path(os.path.realpath(Path(given).expanduser()))  # writes to a link's target, not over the link
    if not out.parent.is_dir():
        raise UserError(f"out={given}: no such folder: {out.parent}; expected a path in an existing folder")
    exists = os.path.exists(out)  # noqa: PTH110 - Path.exists() raises if the name is too long
    if not given or (exists and not out.is_file()):
        raise UserError(f"out={given}: not a file; expected a file's path; e.g. out=verdicts.jsonl")
    if exists and out.samefile(source):
        raise UserError(f"out={given}: is the input file; type another path; e.g. out=verdicts.jsonl")
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        file = temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise UserError(
            f"out={given}: cannot be written ({error.strerror}); type a path in a writable folder; e.g. out=verdicts.jsonl"
        ) from None
    try:
        with disk_errors(f"out={given}", out.parent):
            with file:
                yield file
            temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)


def read_rows(path: Path, raw_gold: bool) -> list[Row]:
    """The rows of a JSONL file. Raises UserError naming the first invalid line."""
    if not path.is_file():
        raise UserError(f"file={path}: no such file; expected JSONL with id, completion and gold")
    rows = []
    with path.open("rb") as lines, progress.reading(lines):
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    rows.append(read_row(json.loads(_decoded(line)), number, raw_gold))
                except (ValueError, RecursionError) as error:
                    said = advice(path, line) or f"{path}, line {number}: {error}"
                    raise UserError(said) from None
    if not rows:
        raise UserError(f"file={path}: is empty; expected JSONL with id, completion and gold, one row a line")
    return rows


def _decoded(line: bytes) -> str:
    """The line as UTF-8 text, with broken characters replaced. Raises ValueError for a line in another encoding."""
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        if likely_encoding(line):
            raise
        return line.decode("utf-8-sig", errors="replace")


def read_row(fields: Any, number: int, raw_gold: bool) -> Row:
    """One row of the input. Raises ValueError saying what is wrong with it."""
    if not isinstance(fields, Mapping):
        raise ValueError("expected an object with id, completion and gold")
    completion = fields.get("completion")
    if completion is None and isinstance(fields.get("completion_parts"), list):
        completion = _joined(fields["completion_parts"])
    if isinstance(completion, list):
        completion = _said(completion)
    gold = fields.get("gold")
    if isinstance(gold, list):
        raise ValueError(
            "gold is a list; expected one text or number; if several answers are right, give one row for each"
        )
    if isinstance(gold, float) and not math.isfinite(gold):
        raise ValueError(f"gold={gold}: expected a finite number, or a text")
    if isinstance(gold, (int, float)) and not isinstance(gold, bool):
        gold = str(gold)
    if not isinstance(completion, str) or not isinstance(gold, str):
        raise ValueError(
            f"expected completion and gold as text; the row has {', '.join(fields) or 'no fields'}"
        )
    answer_format: Any = fields.get("format_spec") or "boxed"
    if answer_format not in get_args(AnswerFormat):
        raise ValueError(f"format_spec={answer_format}: expected one of {', '.join(get_args(AnswerFormat))}")
    prefilled_think = fields.get("prefilled_think") or False
    if not isinstance(prefilled_think, bool):
        raise ValueError(f"prefilled_think={prefilled_think}: expected true or false")
    try:
        raw = raw_gold or "expect_gold" in fields
        gold = canonical_raw_gold(gold) if raw else canonical_gold(gold, "plain")
    except GoldError:
        gold = None
    return Row(fields.get("id", number), completion, gold, answer_format, prefilled_think)


def _said(messages: list[Any]) -> str:
    """The last assistant message of a completion given as chat messages, as TRL logs it."""
    for message in messages:
        match message:
            case {"role": str(), "content": str()}:
                continue
        raise ValueError(
            f"completion holds {message!r:.60}; expected a text, or messages with role and content as text"
        )
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    if not said:
        raise ValueError("completion holds no assistant message; expected a text, or messages with one")
    return said[-1]


def _joined(parts: list[Any]) -> str:
    """A completion given as [text, times] pairs."""
    for part in parts:
        match part:
            case [str(), int() as times] if times >= 0:
                continue
        raise ValueError(f"completion_parts holds {part!r:.60}; expected pairs [text, times]")
    if sum(len(text) * times for text, times in parts) > MAX_CHARS:
        raise ValueError(f"completion_parts make more than {MAX_CHARS:,} characters")
    return "".join(text * times for text, times in parts)


def grade_rows(rows: Sequence[Row], answer_region: AnswerRegion) -> list[dict[str, Any]]:
    """One result per row, in order: id, gold, extracted, correct, format, reason, seconds."""
    verdicts: dict[int, Verdict] = {}
    with Grader(answer_region=answer_region) as grader:
        grader.self_test()
        for grader.answer_format in get_args(AnswerFormat):
            chosen = [i for i, row in enumerate(rows) if row.answer_format == grader.answer_format]
            parsed = [parse_text(rows[i].completion, rows[i].prefilled_think) for i in chosen]
            samples = [Sample(p, rows[i].gold or "") for p, i in zip(parsed, chosen, strict=True)]
            verdicts |= zip(chosen, grader.grade(samples), strict=True)
    return [result_of(row, verdicts[i]) for i, row in enumerate(rows)]


def result_of(row: Row, verdict: Verdict) -> dict[str, Any]:
    result = {
        "id": row.id,
        **asdict(verdict),
        "correct": int(bool(verdict.correct)),
        "format": int(verdict.format),
    }
    if row.gold is None:
        result |= {"gold": None, "correct": 0, "reason": "gold_rejected"}
    return {key: result[key] for key in ("id", "gold", "extracted", "correct", "format", "reason", "seconds")}


def printable(text: str) -> str:
    """A model's text for the terminal, with control characters and lone surrogates escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def verdict_table(results: Sequence[Mapping[str, Any]]) -> Any:
    """How often each reason occurs, with its first example."""
    from rich.table import Table
    from rich.text import Text

    table = Table("verdict", "rows", "share", "for example", title="verdicts", title_justify="left")
    for reason, count in Counter(result["reason"] for result in results).most_common():
        example = next(result for result in results if result["reason"] == reason)
        answer = "-" if example["extracted"] is None else example["extracted"][:40]
        said = printable(f"{example['id']}: {answer} against {str(example['gold'])[:40]}")
        table.add_row(reason, str(count), f"{count / len(results):.1%}", Text(said))
    return table


if __name__ == "__main__":
    main()
