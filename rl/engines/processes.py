"""Programs that an engine starts: each in a process group of its own that ends with this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1


def start(
    argv: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | int, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a program in a process group of its own; what it prints goes to `output`. Raises OSError.

    environment: variables added to this process's. On Linux the program gets SIGTERM when this process dies, even by
    SIGKILL, if it was started from the main thread.
    """
    return subprocess.Popen(
        argv,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches this process, which then ends the program in order
        preexec_fn=_end_with_parent,
    )


def _end_with_parent() -> None:
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end(process: subprocess.Popen[bytes], grace: float) -> None:
    """Ends the program and every process of its group: SIGTERM, then after `grace` seconds SIGKILL."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + patience
        while group_lives(process) and time.monotonic() < deadline:
            time.sleep(0.05)
    process.wait()


def group_lives(process: subprocess.Popen[bytes]) -> bool:
    """Whether any process of the group is left, the program's own included."""
    process.poll()  # otherwise an ended program stays in its group
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
