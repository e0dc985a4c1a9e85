"""The rows to translate, or to repair, split by split."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rl.data.checks import SplitReport
from rl.data.problems import open_test
from rl.data.reading import RowReader, SourceRows
from rl.data.sources import EVERY_ROW, Rows, open_local, open_rows
from rl.data.translate.checks import KANA
from rl.data.translate.choices import Choices
from rl.data.translate.rows import SourceRow
from rl.errors import UserError


@dataclass(frozen=True)
class Split:
    """Usable rows of one split of the source. report: the others, by reason."""

    name: str
    reader: RowReader
    numbers: array[int]
    report: SplitReport

    def rows(self, choices: Choices) -> Iterator[SourceRow]:
        """The rows in order; each is read when it is needed."""
        for number in self.numbers:
            question, answer = self.reader.texts(number)
            language = choices.source_language if choices.data.language == "both" else choices.data.language
            yield SourceRow(self.reader.problem_id(number), self.name, question, answer, language)


def open_splits(choices: Choices) -> list[Split]:
    """The chosen splits that the source has. Raises UserError for a source that cannot be read or has no usable row."""
    splits = []
    for name in choices.splits:
        train = choices.data.train_split
        rows = (
            open_test(choices.data) if name != "train" else open_rows(choices.data, train) if train else None
        )
        if rows is not None:
            splits.append(_scanned(choices, name, rows))
    if not any(split.numbers for split in splits):
        seen = "; ".join(f"{split.name}: {split.report.summary()}" for split in splits) or "no rows"
        raise UserError(
            f"data={choices.data.name}: has no row to translate ({seen}); expected a question and an answer in each"
        )
    return splits


def _scanned(choices: Choices, name: str, rows: Rows) -> Split:
    data = choices.data
    reader, report, numbers = RowReader(data, name, rows), SplitReport(), array("q")
    read = data.planned_rows(len(rows)) if name == "train" else len(rows)
    for usable in reader.scan(report, read, data.limit):
        question = reader.texts(usable.number)[0] if data.language == "both" else ""
        if question and (choices.to == "ja") == bool(KANA.search(question)):
            report.kept -= 1
            report.reject("translated_already", f"{rows.place(usable.number)}: {question[:60]}")
        else:
            numbers.append(usable.number)
    return Split(name, reader, numbers, report)


def open_repaired(choices: Choices) -> dict[str, tuple[RowReader, range]]:
    """The rows of the set to repair, by split, with the numbers of its rows."""
    given, data = str(choices.repair), choices.data
    path = Path(given).expanduser()
    where = data.where or EVERY_ROW
    source = SourceRows(data, data.source.path) if data.source.path else None
    found: dict[str, tuple[RowReader, range]] = {}
    for name in choices.splits:
        split = data.train_split if name == "train" else data.test_split
        if given == data.id and not path.exists():
            rows = open_rows(data, str(split)) if split else None
        elif path.is_dir():
            rows = (
                open_local(data, given, str(split), "repair", where) if split and _has(path, split) else None
            )
        else:
            rows = open_local(data, given, str(split), "repair", where) if name == choices.splits[0] else None
        if rows is not None:
            count = len(rows) if data.limit is None else min(len(rows), data.limit)
            found[name] = RowReader(data, name, rows, source if name == "train" else None), range(count)
    if not any(numbers for _, numbers in found.values()):
        raise UserError(f"repair={given}: has no rows; expected {data.question} and {data.answer} in each")
    return found


def _has(folder: Path, split: str) -> bool:
    """Whether a folder may have the split: its files are looked at, a saved data set is opened."""
    saved = (folder / "dataset_dict.json").exists() or (folder / "state.json").exists()
    return (
        saved
        or split == "train"
        or any(f.stem == split or f.stem.startswith(f"{split}-") for f in folder.iterdir())
    )
