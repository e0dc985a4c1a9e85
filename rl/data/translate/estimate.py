"""What a translation will ask for and cost, from a few of its rows and without a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl.data.translate.client import estimated_tokens
from rl.data.translate.config import Price
from rl.data.translate.rows import SourceRow, Wording

SAMPLED_ROWS = 200


@dataclass(frozen=True)
class Estimate:
    """Of all rows, each asked for once. usd: None if the price is unknown."""

    rows: int
    requests: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None


def estimate(wording: Wording, sampled: Sequence[SourceRow], rows: int, price: Price) -> Estimate:
    """Scales what the sampled rows need to `rows`. An answer is taken to be as long in bytes as what it translates.

    The tokens that a model reasons with are not counted.
    """
    requests = prompt = completion = 0
    for row in sampled:
        for messages in wording.first(row):
            requests += 1
            prompt += sum(estimated_tokens(message["content"]) for message in messages)
        completion += estimated_tokens(row.question) + estimated_tokens(row.answer)
    scale = rows / max(1, len(sampled))
    prompt, completion = round(prompt * scale), round(completion * scale)
    usd = price.usd(prompt, completion) if price.known else None
    return Estimate(rows, round(requests * scale), prompt, completion, usd)
