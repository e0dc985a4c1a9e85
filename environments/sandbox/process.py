"""Runs code in a separate process (child.py) and returns what it prints. What holds where: docs/environments.md."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rl.errors import Stopped

MOST_BYTES = 2**20  # of output; a process that prints more is ended
GRACE = 5.0  # seconds in which the child must end itself after its time
CANNOT_START, OUT_OF_TIME = 70, 71  # the child's exit codes, as in child.py
_CHILD = str(Path(__file__).with_name("child.py"))
# More calls at once would only use up each other's time: the limit on seconds counts from a call's own start.
_SLOTS = threading.BoundedSemaphore(max(2, os.cpu_count() or 1))


@dataclass(frozen=True)
class Limits:
    """seconds: processor and wall time of one call. memory: bytes of address space, each process. characters: of output."""

    seconds: float = 10.0
    memory: int = 2**30
    characters: int = 2048


@dataclass(frozen=True)
class Outcome:
    """text: what the code printed, standard error included, cut at the limit.

    ended: `ok` (exit code 0), `raised` (an exception or another exit code), `time`, `output` (printed without end) or
    `killed` (by a signal, e.g. for memory).
    """

    text: str
    ended: Literal["ok", "raised", "time", "output", "killed"]


def run_code(code: str, limits: Limits) -> Outcome:
    """Runs Python code. Waits for a free slot first; may be called from many threads.

    Raises Stopped when the separate process cannot be started.
    """
    with _SLOTS:
        returncode, output = _run(code, limits)
    text = output[: 4 * limits.characters].decode("utf-8", errors="replace")[: limits.characters]
    if returncode == CANNOT_START:
        raise Stopped(f"environment=python: the separate process cannot be locked in: {text}")
    if len(output) > MOST_BYTES:
        return Outcome(text, "output")
    if returncode in (OUT_OF_TIME, 128 + signal.SIGXCPU) or returncode < 0:
        return Outcome(text, "time")
    ended = "ok" if returncode == 0 else "killed" if returncode > 128 else "raised"
    return Outcome(text, ended)  # type: ignore[arg-type]


@functools.cache
def protections() -> dict[str, bool]:
    """Which protections this system has, by name: processes, network, files, calls, user."""
    returncode, output = _run(None, Limits(seconds=60.0))
    if returncode:
        raise Stopped(
            f"environment=python: the separate process cannot be locked in: {output.decode(errors='replace')}"
        )
    found: dict[str, bool] = json.loads(output)
    return found


def _run(code: str | None, limits: Limits) -> tuple[int, bytes]:
    """The child's exit code (negative: it had to be killed) and what was printed, at most MOST_BYTES and a little."""
    folder = tempfile.mkdtemp(prefix="tanka-python-")
    job = {
        "code": code,
        "folder": folder,
        "seconds": limits.seconds,
        "memory": limits.memory,
        "readable": _readable(),
    }
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": folder, "OMP_NUM_THREADS": "1",
                   "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    try:
        with subprocess.Popen(
            [sys.executable, "-I", "-B", "-u", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        ) as child:
            assert child.stdin is not None and child.stdout is not None
            try:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(json.dumps(job).encode() + b"\n")
                    child.stdin.flush()
                output = _read(child, time.monotonic() + limits.seconds + GRACE)
                child.stdin.close()  # the child ends its worker, if it still runs
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(GRACE)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        return child.returncode, output
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(child: subprocess.Popen[bytes], deadline: float) -> bytes:
    """What the child prints, until it ends, prints too much, or the deadline passes."""
    assert child.stdout is not None
    output = b""
    while len(output) <= MOST_BYTES and time.monotonic() < deadline:
        if select.select([child.stdout], [], [], 0.1)[0]:
            piece = os.read(child.stdout.fileno(), 65536)
            if not piece:
                break
            output += piece
        elif child.poll() is not None:  # its end of the pipe may be held open where orphans cannot be found
            break
    return output


@functools.cache
def _readable() -> list[str]:
    """Where Python and its packages are: all that the code may read outside its folder."""
    places = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
    system = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/zero",
              "/dev/urandom")  # fmt: skip
    return sorted({os.path.realpath(place) for place in (*places, *system) if Path(place).exists()})
