"""What a translation leaves: JSONL and Parquet by split, the rows left out, the changes, counts and hashes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rl import progress
from rl.data.config import DataConfig
from rl.data.translate.checks import Fault
from rl.data.translate.repair import Repaired
from rl.data.translate.rows import Result
from rl.errors import UserError
from rl.storage.disk import made_folder
from rl.storage.jsonl import write_row

WORK = "work"  # the folder of what resuming needs; it is not pushed
JOB = "job.json"
REJECTED, CHANGES, REPORT = "rejected.jsonl", "changes.jsonl", "report.json"
_BATCH = 1000  # rows written to Parquet at once


@dataclass
class Counts:
    """Rows of one split. source_rejected: rows of the source that no training could use, by reason.

    rejected: by the first reason. asked_again, changes: how often, by reason.
    """

    read: int = 0
    kept: int = 0
    source_rejected: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    asked_again: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """E.g. ``20 rows, 18 kept, 2 left out: 1 refusal, 1 numbers lost``."""
        text = f"{self.read:,} rows, {self.kept:,} kept"
        left_out = self.source_rejected + self.rejected
        if left_out:
            text += f", {left_out.total():,} left out: {in_words(left_out)}"
        if self.asked_again:
            text += f"; asked again: {in_words(self.asked_again)}"
        return f"{text}; repaired: {in_words(self.changes)}" if self.changes else text

    def to_json(self) -> dict[str, Any]:
        return {
            name: dict(value) if isinstance(value, Counter) else value
            for name, value in self.__dict__.items()
        }


def in_words(counter: Counter[str]) -> str:
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in counter.most_common())


class SplitWriter:
    """Writes `<split>.jsonl` and `<split>.parquet`, row by row, to temporary files that `close` puts in place."""

    def __init__(self, folder: Path, split: str) -> None:
        self.folder, self.split = folder, split
        self._jsonl = _text(folder / f".{split}.jsonl.tmp")
        self._parquet: Any = None
        self._rows: list[dict[str, str]] = []

    def write(self, row: dict[str, str]) -> None:
        write_row(self._jsonl, row)
        self._rows.append(row)
        if len(self._rows) == _BATCH:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._jsonl.close()
        (self.folder / f".{self.split}.jsonl.tmp").replace(self.folder / f"{self.split}.jsonl")
        parquet = self.folder / f"{self.split}.parquet"
        if self._parquet is None:
            parquet.unlink(missing_ok=True)  # of an earlier start that kept a row
        else:
            self._parquet.close()
            (self.folder / f".{self.split}.parquet.tmp").replace(parquet)

    def _flush(self) -> None:
        import pyarrow
        import pyarrow.parquet

        if self._rows:
            table = pyarrow.Table.from_pylist(self._rows)
            if self._parquet is None:
                path = self.folder / f".{self.split}.parquet.tmp"
                self._parquet = pyarrow.parquet.ParquetWriter(path, table.schema)
            self._parquet.write_table(table)
            self._rows = []


def column_names(data: DataConfig) -> tuple[str, str]:
    """The columns of the written set: those of the data set, without the path to a value inside a cell."""
    question, answer = (name.rpartition(".")[2] for name in (data.question, data.answer))
    return ("question", "answer") if question == answer else (question, answer)


def out_row(
    data: DataConfig, identity: str, texts: tuple[str, str], original: tuple[str, str], language: str
) -> dict[str, str]:
    """A row as it is written. texts, original: question and answer; an unknown original is left out."""
    question, answer = column_names(data)
    row = {"id": identity, question: texts[0], answer: texts[1]}
    if any(original):
        row |= {f"original_{question}": original[0], f"original_{answer}": original[1]}
    return {name: _valid(text) for name, text in row.items()} | {"language": language}


def _valid(text: str) -> str:
    """The text without lone surrogates, which neither UTF-8 nor Parquet can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def write_results(
    folder: Path,
    data: DataConfig,
    to: str,
    results: Iterable[Result],
    counts: Mapping[str, Counts],
    task: progress.Task,
) -> None:
    """Writes the translated splits and the rows left out; completes the counts."""
    writers = {split: SplitWriter(folder, split) for split in counts}
    with _text(folder / REJECTED) as rejected:
        for result in results:
            task.done += 1
            source = result.source
            count, original = counts[source.split], (source.question, source.answer)
            count.asked_again.update(result.asked_again)
            if result.kept:
                count.kept += 1
                count.changes.update(result.changes)
                row = out_row(data, source.id, (result.question, result.answer), original, to)
                writers[source.split].write(row)
            else:
                count.rejected[result.faults[0].reason] += 1
                row = out_row(data, source.id, (result.question, result.answer), original, to)
                write_row(rejected, {**row, "reasons": _reasons(result.faults)})
    for writer in writers.values():
        writer.close()


def write_repaired(
    folder: Path,
    data: DataConfig,
    to: str,
    split: str,
    rows: Iterable[tuple[str, Repaired, tuple[str, str], tuple[str, str]]],
    counts: Counts,
) -> None:
    """Writes a repaired split, its changes and the rows left out. rows: id, repaired row, texts before, originals."""
    writer = SplitWriter(folder, split)
    with _text(folder / REJECTED, "a") as rejected, _text(folder / CHANGES, "a") as changes:
        for identity, row, before, original in rows:
            counts.read += 1
            if row.faults:
                counts.rejected[row.faults[0].reason] += 1
                left_out = out_row(data, identity, before, original, to)
                write_row(rejected, {**left_out, "reasons": _reasons(row.faults)})
                continue
            counts.kept += 1
            counts.changes.update(change.what for change in row.changes)
            writer.write(out_row(data, identity, (row.question, row.answer), original, to))
            for change in row.changes:
                write_row(changes, {"id": identity, **change.__dict__})
    writer.close()


def _text(path: Path, mode: str = "w") -> IO[str]:
    return path.open(mode, encoding="utf-8", errors="backslashreplace", newline="\n")


def _reasons(faults: Sequence[Fault]) -> list[str]:
    return [str(fault) for fault in faults]


def write_report(folder: Path, facts: Mapping[str, Any], counts: Mapping[str, Counts]) -> dict[str, Any]:
    """Writes report.json: the facts, the counts and a hash of each written split; returns it."""
    files = {path.name: sha256(path) for split in counts if (path := folder / f"{split}.jsonl").is_file()}
    report = {**facts, "splits": {s: c.to_json() for s, c in counts.items()}, "sha256": files}
    text = json.dumps(report, ensure_ascii=False, indent=1)
    (folder / REPORT).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    return report


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_own(folder: Path, job: Mapping[str, Any]) -> None:
    """Marks `folder` as the place of this job, or checks that it is.

    Raises UserError if it holds something else, or a translation with other choices that would change the answers.
    """
    path = folder / WORK / JOB
    if path.is_file():
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            before = {}
        before = before if isinstance(before, dict) else {}
        changed = [name for name in job if before.get(name) != job[name]]
        if changed:
            said = "; ".join(f"{name}: {_short(before.get(name))} -> {_short(job[name])}" for name in changed)
            raise UserError(
                f"out={folder}: was started with other choices ({said}); type the same ones to go on, or another out"
            )
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"out={folder}: is a file; type an empty or a new folder")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(
            f"out={folder}: holds something other than a translation; type an empty or a new folder"
        )
    made_folder("out", path.parent.parent)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(job, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
