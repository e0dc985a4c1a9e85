"""A run's folder: its blueprint, its progress, and whether it may be resumed."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import yaml

from rl.errors import UserError
from rl.places import PLACES
from rl.storage.disk import DISK_ERRORS, no_folder

State = Literal["running", "finished", "interrupted", "failed"]

LENGTH = frozenset(("max_steps", "max_sampled_tokens", "epochs"))

NAME_BYTES = 100  # of the run's name inside the folder name; file systems allow 255 in all


@dataclass(frozen=True)
class RunDirectory:
    """`path` with config.yaml, overrides.yaml, status.json, checkpoints/ and final/; locked while `lock` is open.

    was_finished: status.json said `finished` when this start opened the folder.
    """

    path: Path
    lock: IO[str] | None = field(default=None, repr=False, compare=False)
    was_finished: bool = field(default=False, compare=False)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def final(self) -> Path:
        return self.path / "final"

    @property
    def run_id(self) -> str:
        """The run's id, the same at each start."""
        return self.read_status().get("run_id", self.path.name)

    @property
    def step(self) -> int:
        """The last step in status.json; 0 when there is none."""
        step = self.read_status().get("step")
        return step if isinstance(step, int) else 0

    def read_status(self) -> dict[str, Any]:
        """status.json; {} before the first start, or when a machine crash left it unreadable."""
        return self.read_json("status.json")

    def read_json(self, name: str) -> dict[str, Any]:
        """The object in a file of the run; {} when there is none."""
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def write_status(self, state: State, step: int, reason: str = "") -> None:
        status = {**self.read_status(), "state": state, "step": step, "reason": reason, "pid": os.getpid()}
        status.setdefault("run_id", f"{self.path.name[-40:]}-{os.urandom(3).hex()}")
        self.write_json("status.json", status)

    def write_asked(self, config: Mapping[str, Any], overrides: list[str]) -> None:
        """Writes the blueprint and the overrides that were typed."""
        self.write_yaml("config.yaml", dict(config))
        self.write_yaml("overrides.yaml", overrides)

    def write_json(self, name: str, value: Any) -> None:
        self._replace(name, json.dumps(value, ensure_ascii=False, indent=1) + "\n")

    def write_yaml(self, name: str, value: Any) -> None:
        self._replace(name, yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=1000))

    def _replace(self, name: str, text: str) -> None:
        """Writes a file atomically: no reader and no crash ever sees half of it."""
        temporary = self.path / f".{name}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / name)


def open_directory(
    wanted: str | Path | None,
    default: Path,
    config: Mapping[str, Any],
    overrides: list[str],
    resume: bool,
    resumable: Collection[str],
) -> RunDirectory:
    """The run's folder, locked. A new run's blueprint and overrides are written at once.

    For a resumed run the caller writes them with `RunDirectory.write_asked`, after checking its data and weights.

    wanted: the folder to create, or to resume if it exists; None: `default`, with a number appended if it is taken, so
    that two starts never share a folder. Raises UserError when the folder holds a run of another blueprint (keys in
    `resumable` may differ) or anything that is not a run, when resume is off, or when another process uses it.
    """
    path = _new_folder(default) if wanted is None else _wanted_folder(wanted)
    _check_is_run(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise
        raise no_folder(path, error) from None
    lock = _locked(path)
    was_finished = RunDirectory(path).read_status().get("state") == "finished"
    directory = RunDirectory(path, lock, was_finished)
    _check_resumable(directory, config, resume, resumable)
    # Another process of the same launch may check only now whether the run is finished.
    if directory.read_status():
        directory.write_status("running", directory.step)
    if not (path / "config.yaml").is_file():
        directory.write_asked(config, overrides)
    return directory


def finished_run(
    wanted: str | Path, config: Mapping[str, Any], resumable: Collection[str]
) -> RunDirectory | None:
    """The folder, if it holds this same run, of this length, finished and with its weights; else None."""
    directory = RunDirectory(_wanted_folder(wanted))
    if not (directory.path / "config.yaml").is_file() or directory.read_status().get("state") != "finished":
        return None
    if not any(directory.final.glob("*")):
        return None
    # A place that moved counts as a change here: the run is then opened, which compares its contents.
    return None if _changes(directory, config, set(resumable) - LENGTH) else directory


def _locked(path: Path) -> IO[str]:
    """The lock on a run. It is released when the process ends in any way, and child processes do not inherit it (POSIX)."""
    try:
        lock = (path / ".lock").open("a+", encoding="utf-8")
    except IsADirectoryError:
        raise UserError(f"run_dir={path}: .lock is a folder; expected a file; remove the folder") from None
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise UserError(
            f"run_dir={path}: another process ({lock.read().strip()}) is training in it; wait for it, or give another run_dir"
        ) from None
    lock.truncate(0)
    lock.write(f"pid {os.getpid()} on {os.uname().nodename}")
    lock.flush()
    return lock


def _wanted_folder(wanted: str | Path) -> Path:
    """The absolute path of a folder, existing or not. Raises UserError for an impossible path."""
    if not str(wanted).strip():
        raise UserError("run_dir='': is empty; give run_dir=PATH, or run_dir=null for a new folder")
    try:
        path = Path(wanted).expanduser().absolute()
        path.stat()
    except FileNotFoundError as error:
        if path.is_symlink():
            raise no_folder(f"{path} -> {path.readlink()}", error) from None
    except (OSError, RuntimeError, ValueError) as error:
        raise no_folder(wanted, error) from None
    return path


def _check_is_run(path: Path) -> None:
    if path.is_file():
        raise UserError(f"run_dir={path}: is a file; expected a run's folder or a new path")
    # Our first files begin with a dot: a start that was killed at once leaves only these.
    holds = path.exists() and any(not child.name.startswith(".") for child in path.iterdir())
    if holds and not any((path / name).is_file() for name in ("config.yaml", "status.json")):
        raise UserError(f"run_dir={path}: holds something that is not a run; give an empty or a new folder")
    for name in ("checkpoints", "final"):
        if (path / name).exists() and not (path / name).is_dir():
            raise UserError(f"run_dir={path}: {name} is a file; expected a folder; remove the file")


def _check_resumable(
    directory: RunDirectory, config: Mapping[str, Any], resume: bool, resumable: Collection[str]
) -> None:
    path = directory.path
    if not (path / "config.yaml").is_file():
        return
    if not resume:
        raise UserError(
            f"run_dir={path}: already holds a run; type resume=true to continue it, or give another folder"
        )
    # The files at PLACES may have been moved: they are compared by content later.
    if changes := _changes(directory, config, {*resumable, *PLACES}):
        raise UserError(
            f"run_dir={path}: was started with another blueprint ({'; '.join(changes)}); type the same overrides to"
            " continue, or give another run_dir (docs/resume.md says what may change)"
        )


def _changes(directory: RunDirectory, config: Mapping[str, Any], safe: Collection[str]) -> list[str]:
    """The differences from the run's first blueprint, as text, without `safe` keys and the keys below them."""
    try:
        before = yaml.safe_load((directory.path / "config.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError):
        before = None
    if not isinstance(before, Mapping):
        raise UserError(
            f"run_dir={directory.path}: config.yaml is broken, so the run's blueprint is unknown; restore the"
            " file, delete it to continue with this command's blueprint, or give another run_dir"
        )
    return [
        f"{key}: {_show(old)} -> {_show(new)}"
        for key, old, new in _differences(before, config)
        if not any(key == name or key.startswith(f"{name}.") for name in safe)
    ]


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
            continue
    raise UserError(f"{default}: 10,000 folders of this name exist already; give run_dir=PATH")


def default_folder(recipe: str, name: str) -> Path:
    """`runs/<recipe>/<time>-<name>` below the folder the command was started in."""
    return Path("runs", recipe, f"{time.strftime('%Y%m%d-%H%M%S')}-{folder_name(name, NAME_BYTES)}")


def folder_name(text: str, limit: int) -> str:
    """`text` as a folder name: no path separators or control characters, at most `limit` bytes."""
    plain = "".join(c if c.isprintable() and c not in "/\\" else "_" for c in text)
    return plain.encode()[:limit].decode(errors="ignore")
