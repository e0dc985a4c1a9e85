"""Shared fixtures, and a last line about skipped tests."""

from __future__ import annotations

import pytest

from rl import threads
from tests.helpers.models import random_model
from tests.helpers.recipes import NEEDS_SHARED

threads.configure()  # before a test imports torch


@pytest.fixture(scope="session")
def tiny_random_model():
    """`random_model`: a function that makes a small random causal model of an architecture, and its tokenizer."""
    return random_model


@pytest.hookimpl(wrapper=True, tryfirst=True)  # the outermost wrapper writes last, after the failures
def pytest_terminal_summary(terminalreporter):
    """Says how many tests were skipped because the shared data folder is missing."""
    result = yield
    reasons = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    count = sum(isinstance(reason, tuple) and reason[-1].endswith(NEEDS_SHARED) for reason in reasons)
    if count:
        terminalreporter.write_line(f"{count} test{'s' * (count > 1)} skipped: {NEEDS_SHARED}")
    return result
