"""Rows of a data set, read lazily: JSONL by line offsets, other formats through `datasets` (memory-mapped Arrow).

JSONL needs only the standard library, so a broken file is reported before anything heavy is imported.
"""

from __future__ import annotations

import codecs
import json
import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from rl import progress
from rl.data.config import DataConfig
from rl.errors import UserError, first_line
from rl.models.hub import hub
from rl.storage.file_kinds import advice, lfs_pointer, pointer_advice

Row = dict[str, Any]
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
EVERY_ROW: Mapping[str, str] = {}
_SPLIT_KEYS = "name yours with data.train_split= and data.test_split= (null: no test split)"


class Rows(Protocol):
    """Rows by number, read on access; `label` is their file, folder or Hub id."""

    label: str

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Row: ...

    def __iter__(self) -> Iterator[Row]: ...

    def place(self, number: int) -> str:
        """The row's place in `label`, for messages; e.g. ``line 12``."""
        ...


class JsonLines:
    """The rows of a JSONL file that match `where`; only offsets and line numbers stay in memory.

    Blank lines and a byte order mark are skipped. Raises UserError with file and line for a line that is not
    UTF-8 or not one JSON object.
    """

    def __init__(self, path: Path, where: Mapping[str, str] = EVERY_ROW) -> None:
        self.label = str(path)
        self._path = path
        self._offsets = array("q")
        self._lines = array("q")
        offset = 0
        with path.open("rb") as file, progress.reading(file):
            for line_number, line in enumerate(file, start=1):
                if not line.isspace() and (not where or _agrees(self._parse(line, line_number), where)):
                    self._offsets.append(offset)
                    self._lines.append(line_number)
                offset += len(line)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, number: int) -> Row:
        with self._path.open("rb") as file:
            return self._read(file, number)

    def __iter__(self) -> Iterator[Row]:
        with self._path.open("rb") as file:
            for number in range(len(self)):
                yield self._read(file, number)

    def place(self, number: int) -> str:
        return f"line {self._lines[number]}"

    def _read(self, file: BinaryIO, number: int) -> Row:
        file.seek(self._offsets[number])
        return self._parse(file.readline(), self._lines[number])

    def _parse(self, line: bytes, line_number: int) -> Row:
        try:
            row = json.loads(line.removeprefix(codecs.BOM_UTF8).decode())
        except (ValueError, RecursionError) as error:
            if said := advice(self.label, line):
                raise UserError(said) from None
            raise UserError(
                f"{self.label}, line {line_number}: not JSON ({first_line(error)});"
                " expected one JSON object a line"
            ) from None
        if not isinstance(row, dict):
            raise UserError(
                f"{self.label}, line {line_number}: JSON, but a {type(row).__name__};"
                " expected one JSON object a line"
            )
        return row


class ArrowRows:
    """The rows of a `datasets.Dataset` that match `where`, memory-mapped.

    Only `columns` are decoded if the data set has all of them, else every column.
    """

    def __init__(
        self, dataset: Any, label: str, columns: set[str], where: Mapping[str, str] = EVERY_ROW
    ) -> None:
        for column in where.keys() & set(dataset.column_names):
            dataset = dataset.filter(
                lambda cells, value: [str(cell) == value for cell in cells],
                input_columns=[column],
                fn_kwargs={"value": where[column]},
                batched=True,
            )
        columns = {c if c in dataset.column_names else c.partition(".")[0] for c in columns}
        wanted = [column for column in dataset.column_names if column in columns]
        self._dataset = dataset.select_columns(wanted) if columns <= set(wanted) else dataset
        self.label = label

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> Row:
        return self._dataset[number]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._dataset)

    def place(self, number: int) -> str:
        return f"row {number}"


class NestedRows:
    """Rows with dotted columns: ``prompt.0.content`` is the value at that path inside the cell ``prompt``."""

    def __init__(self, rows: Rows, columns: Iterable[str]) -> None:
        self.label = rows.label
        self._rows = rows
        self._columns = [column for column in columns if "." in column]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Row:
        return self._reached(self._rows[number])

    def __iter__(self) -> Iterator[Row]:
        return map(self._reached, self._rows)

    def place(self, number: int) -> str:
        return self._rows.place(number)

    def _reached(self, row: Row) -> Row:
        """The row with its dotted columns added; a path that does not exist is left out."""
        reached = {}
        for column in self._columns:
            cell: Any = row
            try:
                for part in column.split("."):
                    cell = cell[int(part) if isinstance(cell, list) else part]
            except (KeyError, IndexError, TypeError, ValueError):
                continue
            reached[column] = cell
        return reached | row


def open_rows(config: DataConfig, split: str) -> Rows:
    """The rows of a split of the configured data set, from `config.path` or else from the Hub.

    Raises UserError for a missing path, an unknown file type or split, or an unreachable Hub.
    """
    if config.path:
        return open_local(config, config.path, split, "data.path", config.where or EVERY_ROW)
    if config.id:
        return _from_hub(config, config.id, split)
    raise UserError(
        f"data={config.name}: names no data to read; type data.path=FILE.jsonl, or data.id=ORGANIZATION/NAME"
    )


def open_local(
    config: DataConfig, path: str, split: str, key: str, where: Mapping[str, str] = EVERY_ROW
) -> Rows:
    """The rows of a local file, or of a split in a local folder; `key` is the config key to name in an error.

    Rows that have a column of `where` with another value are left out.
    """
    file = Path(path).expanduser().absolute()
    if not file.exists():
        raise UserError(f"{key}={path}: no such file or folder: {file}")
    files = [file]
    columns = _columns(config)
    if file.is_dir():
        if (file / "dataset_dict.json").exists() or (file / "state.json").exists():
            dataset = _saved_dataset(file, split, key)
            return _with_nested(ArrowRows(dataset, str(file), columns, where), columns)
        files = _files_of_split(file, split, key)
    if files[0].suffix in JSON_SUFFIXES:
        return _with_nested(JsonLines(files[0], where), columns)
    if files[0].suffix == ".parquet":
        return _with_nested(ArrowRows(_parquet_dataset(files), str(file), columns, where), columns)
    raise UserError(f"{key}={path}: unknown file type; expected .jsonl, .parquet, or a folder")


def _files_of_split(folder: Path, split: str, key: str) -> list[Path]:
    """`<split>.jsonl`, `<split>.parquet`, or the shards `<split>-*.parquet`."""
    found = [file for file in sorted(folder.iterdir()) if file.suffix in (*JSON_SUFFIXES, ".parquet")]
    exact = [file for file in found if file.stem == split][:1]
    shards = [file for file in found if file.stem.startswith(f"{split}-") and file.suffix == ".parquet"]
    if not (exact or shards):
        names = ", ".join(file.name for file in found) or "no .jsonl or .parquet file"
        raise UserError(f"{key}={folder}: no split {split!r}; it holds {names}; {_SPLIT_KEYS}")
    return exact or shards


def _parquet_dataset(files: list[Path]) -> Any:
    from datasets import Dataset, disable_progress_bars
    from datasets.exceptions import DatasetsError
    from datasets.utils.logging import set_verbosity

    disable_progress_bars()  # for converting and filtering; download bars stay
    set_verbosity(logging.CRITICAL)  # it logs what it raises
    try:
        return Dataset.from_parquet([str(file) for file in files])
    except (OSError, ValueError, DatasetsError) as error:
        if pointer := next(filter(None, map(lfs_pointer, files)), None):
            raise UserError(pointer_advice(pointer)) from None
        raise UserError(f"{files[0]}: cannot be read as Parquet ({first_line(error)})") from None


def _saved_dataset(folder: Path, split: str, key: str) -> Any:
    from datasets import DatasetDict, load_from_disk

    saved = load_from_disk(str(folder))
    if not isinstance(saved, DatasetDict):
        return saved
    if split not in saved:
        raise UserError(f"{key}={folder}: no split {split!r}; it holds {', '.join(saved)}; {_SPLIT_KEYS}")
    return saved[split]


def _from_hub(config: DataConfig, name: str, split: str) -> Rows:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        with hub("dataset", name):
            dataset = load_dataset(name, config.config, split=split, revision=config.revision)
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(
            f"data.id={name}: cannot load its split {split!r} from the Hub ({first_line(error)});"
            " without network, type data.path=FILE.jsonl"
        ) from None
    for column in config.where or {}:
        if column not in dataset.column_names:
            raise UserError(
                f"data.where.{column}: {name} has no such column; it has {', '.join(dataset.column_names)}"
            )
    columns = _columns(config)
    return _with_nested(ArrowRows(dataset, name, columns, config.where or EVERY_ROW), columns)


def _with_nested(rows: Rows, columns: set[str]) -> Rows:
    return NestedRows(rows, columns) if any("." in column for column in columns) else rows


def _columns(config: DataConfig) -> set[str]:
    source = config.source
    return {
        column
        for column in (
            config.question,
            config.answer,
            source.question,
            source.answer,
            source.id,
            *config.columns,
        )
        if column
    }


def _agrees(row: Row, where: Mapping[str, str]) -> bool:
    return all(str(row.get(column, value)) == value for column, value in where.items())
