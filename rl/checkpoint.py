"""Checkpoints that are either whole or absent: a temporary folder, synced, renamed, its marker written last."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("tanka")

MARKER = "complete.json"


def save(checkpoints: Path, step: int, write: Callable[[Path], None], keep_last: int) -> Path:
    """Writes `checkpoints/step-000020` by calling `write` on a temporary folder; keeps the newest `keep_last`.

    Whatever interrupts it, earlier checkpoints stay as they were.
    """
    final = checkpoints / f"step-{step:06d}"
    temporary = checkpoints / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        write(temporary)
        files = sorted(p for p in temporary.rglob("*") if p.is_file())
        for file in files:
            _sync(file)
        marker = {"step": step, "files": {str(f.relative_to(temporary)): _facts(f) for f in files}}
        (temporary / MARKER).write_text(json.dumps(marker, indent=1), encoding="utf-8")
        _sync(temporary / MARKER)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        _sync(checkpoints)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in _steps(checkpoints)[:-keep_last]:
        shutil.rmtree(old)
    return final


def latest(checkpoints: Path) -> Path | None:
    """The newest complete checkpoint; each broken one that is passed over is named with the reason."""
    for path in reversed(_steps(checkpoints)):
        fault = _fault(path)
        if fault is None:
            return path
        log.warning("checkpoint %s is not complete (%s); taking the one before it", path.name, fault)
    return None


def step_of(path: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(path.name.removeprefix("step-"))


def _steps(checkpoints: Path) -> list[Path]:
    return sorted(p for p in checkpoints.glob("step-*") if p.is_dir())


def _fault(path: Path) -> str | None:
    try:
        marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
        for name, facts in marker["files"].items():
            if not (path / name).is_file():
                return f"{name} is missing"
            if _facts(path / name) != facts:
                return f"{name} differs from what was written"
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return f"{MARKER} cannot be read: {type(error).__name__}"
    return None


def _facts(file: Path) -> dict[str, object]:
    with file.open("rb") as handle:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(handle, "sha256").hexdigest()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
