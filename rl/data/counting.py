"""How many problems a data set has, for a plan: reads rows that are on this machine, never the Hub."""

from __future__ import annotations

from rl.data.config import DataConfig
from rl.data.problems import ProblemSet, load, open_test
from rl.data.sources import open_rows

COUNTED_ROWS = 20_000  # train rows that a plan reads


def load_for_plan(config: DataConfig, seed: int) -> ProblemSet | None:
    """The loaded set, for a plan to count; None when that needs the Hub or more than COUNTED_ROWS rows."""
    if config.generator:
        return load(config, seed) if config.planned_rows(config.train_size or 0) <= COUNTED_ROWS else None
    if config.id and not config.path:
        return None
    rows = open_rows(config, config.first_split)
    return load(config, seed) if config.planned_rows(len(rows)) <= COUNTED_ROWS else None


def count_test_rows(config: DataConfig) -> int | None:
    """The number of rows in the test split, for a plan; None when that needs the Hub."""
    if config.generator:
        return config.test_size or 0
    if config.id and not config.path:
        return config.rows if config.train_split is None else None
    rows = open_test(config)
    return 0 if rows is None else len(rows)
