"""A test run without the shared data folder says at its end what was left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.helpers.recipes import ROOT


@pytest.mark.parametrize("workers", ["0", "2"])
def test_tests_that_need_the_shared_folder_are_counted(workers, tmp_path):
    arguments = ["-m", "pytest", "-n", workers, "-p", "no:cacheprovider", "tests/unit/test_data_facts.py"]
    environment = {**os.environ, "TANKA_SHARED": str(tmp_path / "missing")}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stdout
    told, total = done.stdout.splitlines()[-2:]
    count = re.fullmatch(
        r"(\d+) tests? skipped: needs the shared data folder beside the checkout \(TANKA_SHARED names another place\)",
        told,
    )
    assert count is not None and f"{count[1]} skipped" in total, done.stdout
