"""Running helpers in the environment of molt-rl, which TANKA_TEST_MOLT names: `make test-molt`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

HELPERS = Path(__file__).parent


def molt_python() -> str:
    """The Python of that environment; without one the test is skipped."""
    if found := os.environ.get("TANKA_TEST_MOLT"):
        return found
    pytest.skip("needs molt-rl: make test-molt")


def in_molt(script: str, request: object = None) -> Any:
    """What a helper that Molt's Python runs prints, as JSON."""
    done = subprocess.run(
        [molt_python(), HELPERS / script],
        input=json.dumps(request),
        text=True,
        capture_output=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout if script == "record.py" else done.stdout.splitlines()[-1])
