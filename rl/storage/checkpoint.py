"""Atomic checkpoints: written to a temporary folder, marker file last, then synced and renamed."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

log = logging.getLogger("tanka")

MARKER = "complete.json"


def save(checkpoints: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Writes `checkpoints/step-000020` by calling `write` on a temporary folder; an existing complete one is kept.

    An interruption at any point leaves earlier checkpoints unchanged.
    """
    final = checkpoints / f"step-{step:06d}"
    if final.is_dir() and _fault(final) is None:
        return final

    def write_marked(folder: Path) -> None:
        write(folder)
        facts = {str(f.relative_to(folder)): _facts(f) for f in _files(folder)}
        (folder / MARKER).write_text(json.dumps({"step": step, "files": facts}, indent=1), encoding="utf-8")

    write_folder(final, write_marked)
    return final


def write_folder(final: Path, write: Callable[[Path], None]) -> None:
    """Creates or replaces folder `final`: `write` fills a temporary folder, which is synced and renamed."""
    temporary = final.with_name(f".{final.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        write(temporary)
        for path in [*_files(temporary), temporary]:
            _sync(path)
        _remove(final)
        temporary.rename(final)
        _sync(final.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def prune(checkpoints: Path, newest: Path, keep_last: int, keep: Collection[Path] = ()) -> None:
    """Removes old checkpoints up to `newest`, the one just saved, except the last `keep_last` and those in `keep`.

    Also removes what a crash left half written or half deleted.
    """
    for leftover in checkpoints.glob(".step-*"):
        shutil.rmtree(leftover)
    done = [path for path in steps(checkpoints) if step_of(path) <= step_of(newest)]
    for old in done[:-keep_last]:
        if old not in keep:
            _remove(old)


def latest(checkpoints: Path, last_step: float = math.inf) -> Path | None:
    """The newest complete checkpoint up to `last_step`; logs a warning with the reason for each broken one it skips."""
    for path in reversed([path for path in steps(checkpoints) if step_of(path) <= last_step]):
        fault = _fault(path)
        if fault is None:
            return path
        log.warning("checkpoint %s is incomplete (%s); using the one before it", path.name, fault)
    return None


def steps(checkpoints: Path) -> list[Path]:
    """All checkpoints, complete or not, oldest first."""
    found = (path for path in checkpoints.glob("step-*") if re.fullmatch(r"step-\d+", path.name))
    return sorted((path for path in found if path.is_dir()), key=step_of)


def step_of(path: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(path.name.removeprefix("step-"))


def _fault(path: Path) -> str | None:
    try:
        marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
        for name, facts in marker["files"].items():
            if not (path / name).is_file():
                return f"{name} is missing"
            if _facts(path / name) != facts:
                return f"{name} differs from what was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MARKER} cannot be read: {type(error).__name__}"
    return None


def _facts(file: Path) -> dict[str, object]:
    with file.open("rb") as handle:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(handle, "sha256").hexdigest()}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _remove(folder: Path) -> None:
    """Renames a folder before deleting it, so that it never appears half deleted."""
    if folder.exists():
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        shutil.rmtree(old)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
