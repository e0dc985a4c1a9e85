"""Which of its checkpoints Molt continues from."""

from __future__ import annotations

import re
from pathlib import Path

TAG = re.compile(r"global_step(\d{1,12})", re.ASCII)


def checkpoint_step(state: Path) -> int:
    """The step of the checkpoint in `state` that Molt would resume from; 0: none.

    As Molt does: the one that `latest` names, or, if that is missing or incomplete, the newest complete one.
    """
    folder = state / "_actor"
    try:
        named = (folder / "latest").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        named = ""
    if TAG.fullmatch(named) and _is_whole(folder / named):
        return _step(folder / named)
    whole = [path for path in folder.glob("global_step*") if TAG.fullmatch(path.name) and _is_whole(path)]
    return _step(max(whole, key=lambda path: path.stat().st_mtime)) if whole else 0


def _is_whole(path: Path) -> bool:
    return (path / "model").is_dir() and (
        path / "extra_state.pt"
    ).is_file()  # Molt writes extra_state.pt last


def _step(path: Path) -> int:
    return int(path.name.removeprefix("global_step"))
