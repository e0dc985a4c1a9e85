"""A run's own folder: what it was asked to do, how far it came, and whether it may go on."""

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

LENGTH = frozenset(("max_steps", "epochs"))

NAME_BYTES = 100  # of a run's name in its folder's; file systems allow 255 in all


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
        """The same at each start of this run."""
        return self.read_status().get("run_id", self.path.name)

    @property
    def step(self) -> int:
        """The last step that status.json knows of; 0 when it knows of none."""
        step = self.read_status().get("step")
        return step if isinstance(step, int) else 0

    def read_status(self) -> dict[str, Any]:
        """status.json; {} before the first start, and when a crash of the machine left it unreadable."""
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
        """Writes down the blueprint and what was typed for it."""
        self.write_yaml("config.yaml", dict(config))
        self.write_yaml("overrides.yaml", overrides)

    def write_json(self, name: str, value: Any) -> None:
        self._replace(name, json.dumps(value, ensure_ascii=False, indent=1) + "\n")

    def write_yaml(self, name: str, value: Any) -> None:
        self._replace(name, yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=1000))

    def _replace(self, name: str, text: str) -> None:
        """Writes a file in one move, so that no reader and no crash ever sees half of it."""
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
    """The run's folder, locked, with what a new run was asked written down.

    What is asked of an older run is written by `RunDirectory.write_asked` once its data and weights are what they were.

    Without a wanted folder `default` is used, with a number behind it when it is taken, so that two starts never share
    one. An existing wanted folder is resumed. Raises UserError when it holds a run of another blueprint (keys in
    `resumable` aside), or anything that is not a run, or when resume is off, or when another process works in it.
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
    # Another process of a launch may look only now whether the run is finished.
    if directory.read_status():
        directory.write_status("running", directory.step)
    if not (path / "config.yaml").is_file():
        directory.write_asked(config, overrides)
    return directory


def finished_run(
    wanted: str | Path, config: Mapping[str, Any], resumable: Collection[str]
) -> RunDirectory | None:
    """The folder, when it holds this very run, of this length, already finished, with its weights; else None."""
    directory = RunDirectory(_wanted_folder(wanted))
    if not (directory.path / "config.yaml").is_file() or directory.read_status().get("state") != "finished":
        return None
    if not any(directory.final.glob("*")):
        return None
    # What was moved is opened, and thereby compared.
    return None if _changes(directory, config, set(resumable) - LENGTH) else directory


def _locked(path: Path) -> IO[str]:
    """The lock on a run: it ends with the process, however that ends, and no child of it inherits it (POSIX)."""
    try:
        lock = (path / ".lock").open("a+", encoding="utf-8")
    except IsADirectoryError:
        raise UserError(f"run_dir={path}: .lock is a folder; expected a file: take it away") from None
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise UserError(
            f"run_dir={path}: another process ({lock.read().strip()}) trains in it; wait for it, or give another run_dir"
        ) from None
    lock.truncate(0)
    lock.write(f"pid {os.getpid()} on {os.uname().nodename}")
    lock.flush()
    return lock


def _wanted_folder(wanted: str | Path) -> Path:
    """The absolute path of a folder, there or not. Raises UserError when none can be there."""
    if not str(wanted).strip():
        raise UserError(
            "run_dir='': no folder has this name; give run_dir=PATH, or run_dir=null for a new one"
        )
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
        raise UserError(f"run_dir={path}: is a file; expected a folder, or a new one's path")
    # Our own first files begin with a dot: a start that was killed at once leaves nothing else.
    holds = path.exists() and any(not child.name.startswith(".") for child in path.iterdir())
    if holds and not any((path / name).is_file() for name in ("config.yaml", "status.json")):
        raise UserError(f"run_dir={path}: holds something that is not a run; give an empty or a new folder")
    for name in ("checkpoints", "final"):
        if (path / name).exists() and not (path / name).is_dir():
            raise UserError(f"run_dir={path}: {name} is a file; expected a folder: take the file away")


def _check_resumable(
    directory: RunDirectory, config: Mapping[str, Any], resume: bool, resumable: Collection[str]
) -> None:
    path = directory.path
    if not (path / "config.yaml").is_file():
        return
    if not resume:
        raise UserError(
            f"run_dir={path}: holds a run already; type resume=true to go on, or give another folder"
        )
    # What lies at PLACES may have been moved: it is compared by its contents.
    if changes := _changes(directory, config, {*resumable, *PLACES}):
        raise UserError(
            f"run_dir={path}: was started with another blueprint ({'; '.join(changes)}); type the same overrides to go"
            " on, or give another run_dir (docs/resume.md says what may change)"
        )


def _changes(directory: RunDirectory, config: Mapping[str, Any], safe: Collection[str]) -> list[str]:
    """What differs from the blueprint that the run was started with, as text, safe keys and what is below them aside."""
    try:
        before = yaml.safe_load((directory.path / "config.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError):
        before = None
    if not isinstance(before, Mapping):
        raise UserError(
            f"run_dir={directory.path}: config.yaml is broken, so nothing says which blueprint the run was started with;"
            " put it back, or delete it to go on with this command's, or give another run_dir"
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
    raise UserError(f"{default}: ten thousand runs of this name in one second; give run_dir=PATH")


def default_folder(recipe: str, name: str) -> Path:
    """`runs/<recipe>/<time>-<name>` below the folder the command was started in."""
    return Path("runs", recipe, f"{time.strftime('%Y%m%d-%H%M%S')}-{folder_name(name, NAME_BYTES)}")


def folder_name(text: str, limit: int) -> str:
    """`text` as one folder's name: nothing that a file system takes for a path, at most `limit` bytes."""
    plain = "".join(c if c.isprintable() and c not in "/\\" else "_" for c in text)
    return plain.encode()[:limit].decode(errors="ignore")
