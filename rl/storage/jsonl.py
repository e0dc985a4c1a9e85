"""The run directory's JSONL files: strict JSON, one object a line, each with its step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any


def read_jsonl(path: Path, last_step: float = math.inf) -> list[dict[str, Any]]:
    """The file's objects up to `last_step`, without broken lines (after a crash, or edited by hand). [] when missing."""
    rows = []
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as lines:  # a crash may cut a character in two
            for line in lines:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict) and isinstance(row.get("step"), int) and row["step"] <= last_step:
                    rows.append(row)
    return rows


def continue_jsonl(path: Path, last_step: int) -> IO[str]:
    """Opens a JSONL file for appending, after atomically removing the lines behind `last_step`."""
    rows = read_jsonl(path, last_step)
    kept = path.with_suffix(".jsonl.tmp")
    with _open_text(kept, "w") as file:
        for row in rows:
            write_row(file, row)
        file.flush()
        os.fsync(file.fileno())
    kept.replace(path)
    return _open_text(path, "a")


def _open_text(path: Path, mode: str) -> IO[str]:
    # A lone surrogate in a model's text becomes "\udXXX", which is also its JSON escape.
    return path.open(mode, encoding="utf-8", errors="backslashreplace", newline="\n")


def write_row(file: IO[str], row: Mapping[str, Any]) -> None:
    file.write(json.dumps(_strict(row), ensure_ascii=False, allow_nan=False) + "\n")


def _strict(value: Any) -> Any:
    """`value` with every non-finite float, which JSON cannot express, as None."""
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
