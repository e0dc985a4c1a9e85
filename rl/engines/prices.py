"""Service prices, from the dated table in rl/engines/prices.yaml, and counts of paid tokens."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from rl.errors import UserError

MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Prices:
    """USD per million tokens. prefill: prompt tokens read; sample: tokens sampled; train: tokens trained."""

    prefill: float
    sample: float
    train: float

    def __post_init__(self) -> None:
        for name, price in asdict(self).items():
            if not 0 <= price < math.inf:
                raise UserError(f"engine.prices.{name}={price}: expected USD per million tokens; e.g. 0.5")


@dataclass(frozen=True)
class Tokens:
    """Tokens paid for. prefill counts the prompt once per completion, although a service may read it once per group.

    train: prompt and completion tokens of every row in every training or scoring pass.
    """

    prefill: int = 0
    sample: int = 0
    train: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.prefill + other.prefill, self.sample + other.sample, self.train + other.train)

    def __mul__(self, times: int) -> Tokens:
        return Tokens(self.prefill * times, self.sample * times, self.train * times)

    def usd(self, prices: Prices) -> float:
        """Their price in USD."""
        cost = self.prefill * prices.prefill + self.sample * prices.sample + self.train * prices.train
        return cost / MILLION


def batch_tokens(prompt_lengths: int, completion_lengths: int, training_passes: int) -> Tokens:
    """Tokens of a batch. prompt_lengths, completion_lengths: totals over its rows."""
    return Tokens(prompt_lengths, completion_lengths, (prompt_lengths + completion_lengths) * training_passes)


def published_prices(model: str) -> Prices | None:
    """The table's prices for a Hub id; None for a model not in the table."""
    prices = _table()["models"].get(model)
    return None if prices is None else Prices(**prices)


def price_date() -> str:
    """The date since which the table's prices apply, and their source."""
    table = _table()
    return f"{table['date']}, {table['source']}"


@functools.cache
def _table() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("prices.yaml").read_text(encoding="utf-8"))
