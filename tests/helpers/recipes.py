"""Where the project and the shared data are, and how a user's command is run."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.helpers import forked

ROOT = Path(__file__).parents[2]
READ_AT_IMPORT = ("HF_", "OMP_", "PYTHON")  # variables that Python or a library reads once
NEEDS_SHARED = "needs the shared data folder beside the checkout (TANKA_SHARED names another place)"


def shared_dir() -> Path:
    """The folder of real rows and golden cases beside the checkout; without it the test is skipped."""
    path = Path(os.environ.get("TANKA_SHARED", ROOT.parent / "shared"))
    if not path.is_dir():
        pytest.skip(NEEDS_SHARED)
    return path


def run_recipe(
    recipe: str,
    *arguments: str,
    cwd: Path,
    path: Path | None = None,
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """`python -m recipes.<recipe> ...` as a user without network runs it; `path` goes first on the Python path.

    Forked from a server that has the libraries already (see `start` of forked.py), unless a variable changes how they
    are imported.
    """
    changed = {name for name, value in (environment or {}).items() if os.environ.get(name) != value}
    if any(name.startswith(READ_AT_IMPORT) for name in changed):
        return run_afresh(recipe, *arguments, cwd=cwd, path=path, environment=environment)
    with tempfile.TemporaryDirectory() as output:
        done = forked.start(
            recipe, *arguments, cwd=cwd, path=path, environment=environment, output=Path(output)
        )
        return subprocess.CompletedProcess([recipe, *arguments], done.wait(1100), done.out, done.err)


def run_afresh(
    recipe: str,
    *arguments: str,
    cwd: Path,
    path: Path | None = None,
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """`run_recipe` in a new Python, which takes seconds of imports."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(p) for p in (path, ROOT) if p),
        **forked.OFFLINE,
        **(environment or {}),
    }
    return subprocess.run(
        [sys.executable, "-m", f"recipes.{recipe}", *arguments],
        cwd=cwd, env=variables, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=1100,
    )  # fmt: skip


rl_basic = functools.partial(run_recipe, "rl_basic")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]
