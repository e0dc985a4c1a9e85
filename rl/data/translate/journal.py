"""Every answer of the server on disk as soon as it arrives, so that no start pays for it again."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rl.errors import UserError

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Reply:
    """One answer. finish: the server's reason for its end, e.g. stop or length. model: who answered."""

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int


@dataclass
class Spent:
    """Tokens of the answers that arrived, over all starts."""

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def add(self, reply: Reply) -> None:
        self.answers += 1
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens


class Journal:
    """The answers in `answers.jsonl`, found by their request; only their places stay in memory.

    Locked while it is open, so that two commands never share it. spent: by model. Raises UserError.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = locked(folder)
        self._file = (folder / "answers.jsonl").open("a+b")
        self._places: dict[bytes, int] = {}
        self.spent: dict[str, Spent] = {}
        self._read()

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        self._lock.close()

    def get(self, key: bytes) -> Reply | None:
        """The answer to a request; None if it was never answered."""
        place = self._places.get(key)
        if place is None:
            return None
        self._file.seek(place)
        row = json.loads(self._file.readline())
        return _reply(row)

    def put(self, key: bytes, model: str, reply: Reply) -> None:
        """Writes the answer; from then on it survives the process."""
        row = {"key": key.hex(), "model": model, **reply.__dict__}
        line = json.dumps(row).encode() + b"\n"
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(line)
        self._file.flush()
        self._places[key] = place
        self.spent.setdefault(model, Spent()).add(reply)

    def _read(self) -> None:
        """Finds the answers; a last line that a crash cut is removed."""
        self._file.seek(0)
        end = 0
        for line in self._file:
            try:
                row = json.loads(line) if line.endswith(b"\n") else {}
                key, reply, model = bytes.fromhex(row["key"]), _reply(row), str(row["model"])
            except (ValueError, KeyError, TypeError):
                if line.endswith(b"\n"):
                    end += len(line)
                    continue
                break
            self._places[key] = end
            self.spent.setdefault(model, Spent()).add(reply)
            end += len(line)
        self._file.truncate(end)


def request_key(model: str, messages: Messages, attempt: int) -> bytes:
    """What identifies a request: the same text asked of the same model for the same time."""
    text = json.dumps([model, messages, attempt], ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def _reply(row: dict[str, Any]) -> Reply:
    return Reply(
        str(row["text"]), str(row["finish"]), int(row["prompt_tokens"]), int(row["completion_tokens"])
    )


def locked(folder: Path) -> IO[str]:
    """The lock of a folder `work`, held until it is closed. Raises UserError if another process has it."""
    lock = (folder / ".lock").open("a+", encoding="utf-8")
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise UserError(
            f"out={folder.parent}: another process ({lock.read().strip()}) is writing into it; wait for it, or type"
            " another out"
        ) from None
    lock.truncate(0)
    lock.write(f"pid {os.getpid()}")
    lock.flush()
    return lock
