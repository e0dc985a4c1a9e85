"""Shared fixtures."""

from __future__ import annotations

import pytest

from rl import threads
from tests.helpers.models import random_model

threads.configure()  # before a test imports torch


@pytest.fixture(scope="session")
def tiny_random_model():
    """`random_model`: a function that makes a small random causal model of an architecture, and its tokenizer."""
    return random_model
