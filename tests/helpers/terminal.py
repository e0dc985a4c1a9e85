"""Runs a command on a pseudo terminal, as a user sees it there."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers.recipes import ROOT

ROWS, COLUMNS = 40, 120


def on_terminal(
    recipe: str,
    *arguments: str,
    cwd: Path,
    environment: dict[str, str] | None = None,
    watch: Callable[[str, subprocess.Popen[bytes]], None] = lambda text, process: None,
    seconds: float = 600.0,
) -> tuple[int, str]:
    """The exit code and all output of `python -m recipes.<recipe> ...`, control codes included.

    watch: called with the output so far whenever there is more.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    path = os.pathsep.join((str(cwd), str(ROOT)))
    variables = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    process = subprocess.Popen(
        [sys.executable, "-m", f"recipes.{recipe}", *arguments],
        cwd=cwd, env={**variables, "TERM": "xterm-256color", **(environment or {})},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    output, end = b"", time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            if not select.select([ours], [], [], 0.2)[0]:
                continue
            try:
                more = os.read(ours, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not more:
                break
            output += more
            watch(output.decode(errors="replace"), process)
        return process.wait(timeout=60), output.decode(errors="replace")
    finally:
        process.kill()
        os.close(ours)
