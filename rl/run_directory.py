"""A run's own folder: what it was asked to do, how far it came, and whether it may go on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from rl import checkpoint
from rl.errors import UserError

State = Literal["running", "finished", "interrupted", "failed"]

# What may differ between a run and its continuation: none of it changes what a step computes.
SAFE_ON_RESUME = {
    "max_steps", "epochs", "save_every", "keep_last", "eval_every", "eval_problems", "samples_per_step",
    "logger", "run_dir", "resume", "plan", "name", "device",
}  # fmt: skip


@dataclass(frozen=True)
class RunDirectory:
    """`path` with config.yaml, overrides.yaml, status.json, checkpoints/ and final/."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def final(self) -> Path:
        return self.path / "final"

    @property
    def run_id(self) -> str:
        """The same at each start of this run."""
        return self.read_status()["run_id"]

    def read_status(self) -> dict[str, Any]:
        """status.json, {} before the first start."""
        file = self.path / "status.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def write_status(self, state: State, step: int, reason: str = "") -> None:
        status = {**self.read_status(), "state": state, "step": step, "reason": reason, "pid": os.getpid()}
        status.setdefault("run_id", f"{self.path.name[-40:]}-{os.urandom(3).hex()}")
        self.write_json("status.json", status)

    def write_json(self, name: str, value: Any) -> None:
        """Replaces a file in one move, so that no reader ever sees half of it."""
        temporary = self.path / f".{name}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.path / name)

    def resume_point(self) -> Path | None:
        """The newest complete checkpoint."""
        return checkpoint.latest(self.checkpoints)


def open_directory(
    wanted: str | None, default: Path, config: Mapping[str, Any], overrides: list[str], resume: bool
) -> RunDirectory:
    """The run's folder, with what it was asked written down.

    Without a wanted folder `default` is used, with a number behind it when it is taken, so that two starts never share
    one. An existing wanted folder is resumed. Raises UserError when it holds a run of another blueprint, or anything
    that is not a run, or when resume is off.
    """
    if wanted is None:
        directory = RunDirectory(_new_folder(default))
    else:
        directory = RunDirectory(Path(wanted).expanduser().absolute())
        _check_resumable(directory, config, resume)
        directory.path.mkdir(parents=True, exist_ok=True)
    _write_yaml(directory.path / "config.yaml", dict(config))
    _write_yaml(directory.path / "overrides.yaml", overrides)
    return directory


def _check_resumable(directory: RunDirectory, config: Mapping[str, Any], resume: bool) -> None:
    path = directory.path
    if not path.exists() or not any(path.iterdir()):
        return
    if not path.is_dir() or not (path / "config.yaml").is_file():
        raise UserError(f"run_dir={path}: holds something that is not a run; give an empty or a new folder")
    if not resume:
        raise UserError(
            f"run_dir={path}: holds a run already; type resume=true to go on, or give another folder"
        )
    before = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
    changes = [
        f"{key}: {_show(old)} -> {_show(new)}"
        for key, old, new in _differences(before, config)
        if key.split(".")[0] not in SAFE_ON_RESUME
    ]
    if changes:
        raise UserError(
            f"run_dir={path}: was started with another blueprint ({'; '.join(changes)}); type the same overrides to go"
            f" on (only {', '.join(sorted(SAFE_ON_RESUME))} may change), or give another run_dir"
        )


def _differences(before: Any, after: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = [*before, *(k for k in after if k not in before)]
        return [
            d
            for k in keys
            for d in _differences(before.get(k), after.get(k), f"{key}.{k}" if key else str(k))
        ]
    return [] if before == after else [(key, before, after)]


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _new_folder(default: Path) -> Path:
    default.parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        path = default if number == 1 else default.with_name(f"{default.name}-{number}")
        try:
            path.mkdir()
            return path.absolute()
        except FileExistsError:
            # Hydra makes the folder of a multirun job itself: an empty one is ours to take.
            if not any(path.iterdir()):
                return path.absolute()
    raise UserError(f"{default}: ten thousand runs of this name in one second; give run_dir=PATH")


def default_folder(recipe: str, name: str) -> Path:
    """`runs/<recipe>/<time>-<name>` below the folder the command was started in."""
    return Path("runs", recipe, f"{time.strftime('%Y%m%d-%H%M%S')}-{name}")


def _write_yaml(file: Path, value: Any) -> None:
    file.write_text(yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=1000), encoding="utf-8")
