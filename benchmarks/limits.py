"""How far an update and sampling are from the hardware's limit: `python -m benchmarks.limits`, after learner and sampling.

The limit of a job is the longer of two times: its multiply-adds at the rate of a large matrix product, and the bytes that it
must read at the rate of a large read, both measured here. Counted are linear layers, the head and attention; a decoding
step reads all weights once, and the keys and values of its rows. Prints a table with the times in benchmarks/results/cpu.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig

from benchmarks.harness import RESULTS
from benchmarks.learner import COMPLETION_TOKENS, GROUP, PROMPT_TOKENS, PROMPTS, ROWS, SHAPE

TRIES = 7


@dataclass(frozen=True)
class Job:
    """benchmark, contender: whose measured seconds it is compared with."""

    name: str
    benchmark: str
    contender: str
    dtype: torch.dtype
    multiply_adds: float
    bytes: float

    def measured(self) -> float:
        """Seconds, the median in the results."""
        result = json.loads((RESULTS / "cpu" / f"{self.benchmark}.json").read_text())
        figures = result["contenders"][self.contender]["figures"]
        return figures["seconds"]["median"]


@dataclass(frozen=True)
class Shape:
    """linear, head: weights of the linear layers and of the head. attended: multiply-adds for each earlier token."""

    linear: float
    head: float
    attended: float
    cached: float  # numbers that a token leaves in the cache

    @staticmethod
    def of(config: Any) -> Shape:
        hidden, layers = config.hidden_size, config.num_hidden_layers
        size = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
        queries, keys = size * config.num_attention_heads, size * config.num_key_value_heads
        layer = 2 * hidden * (queries + keys) + 3 * hidden * config.intermediate_size
        return Shape(layers * layer, hidden * config.vocab_size, layers * 2 * queries, layers * 2 * keys)


def main() -> None:
    rates = {dtype: matrix_rate(dtype) for dtype in (torch.float32, torch.bfloat16)}
    read = read_rate()
    print(", ".join(f"{name(dtype)} {rate / 1e9:.0f} G multiply-adds/s" for dtype, rate in rates.items()))
    print(f"reading {read / 1e9:.1f} GB/s\n")
    print(
        "| job | multiply-adds | bytes read | limit | measured | limit / measured |\n|---|---|---|---|---|---|"
    )
    for job in jobs():
        computed, moved = job.multiply_adds / rates[job.dtype], job.bytes / read
        limit, measured = max(computed, moved), job.measured()
        read_in = f"{job.bytes / 1e9:,.2g} GB ({moved:.2g} s)" if job.bytes else "not counted"
        print(
            f"| {job.name}, {name(job.dtype)} | {job.multiply_adds / 1e9:,.0f} G ({computed:.3g} s) | {read_in} |"
            f" {limit:.3g} s | {measured:.3g} s | {limit / measured:.2f} |"
        )


def jobs() -> list[Job]:
    large = Shape.of(AutoConfig.for_model("llama", **SHAPE))
    tiny = Shape.of(AutoConfig.from_pretrained("assets/tiny"))
    return [
        Job("update, 135M", "learner", "ours_float32", torch.float32, update_of(large), 0.0),
        Job("update, 135M", "learner", "ours", torch.bfloat16, update_of(large), 0.0),
        decoding("sampling, 135M", "sampling_135m", large, torch.bfloat16, (4 * 8, 64, 128)),
        decoding("sampling, embedded", "sampling_forced", tiny, torch.float32, (16 * 8, 70, 64)),
    ]


def update_of(shape: Shape) -> float:
    """Multiply-adds of the benchmark's update: forward and twice as much backward; a prompt is read once for its group."""
    read = PROMPTS * PROMPT_TOKENS + ROWS * COMPLETION_TOKENS
    completion = ROWS * COMPLETION_TOKENS
    attended = completion * (PROMPT_TOKENS + COMPLETION_TOKENS / 2) + PROMPTS * GROUP * PROMPT_TOKENS**2 / 2
    return 3 * (shape.linear * read + shape.head * completion + shape.attended * attended)


def decoding(title: str, benchmark: str, shape: Shape, dtype: torch.dtype, size: tuple[int, int, int]) -> Job:
    """Decoding of `tokens` tokens in each row; keys and values are float32."""
    rows, prompt, tokens = size
    context = prompt + tokens / 2
    computed = rows * tokens * (shape.linear + shape.head + shape.attended * context)
    weights = dtype.itemsize * (shape.linear + shape.head)
    moved = tokens * (weights + 4 * rows * shape.cached * context)
    return Job(title, benchmark, "ours", dtype, computed, moved)


def matrix_rate(dtype: torch.dtype) -> float:
    """Multiply-adds per second of a product of 2,048 x 2,048 matrices."""
    a, b = torch.randn(2048, 2048).to(dtype), torch.randn(2048, 2048).to(dtype)
    return 2048**3 / seconds_of(lambda: a @ b)


def read_rate() -> float:
    """Bytes per second of the sum of 1 GiB."""
    data = torch.zeros(2**28)
    return data.numel() * 4 / seconds_of(lambda: data.sum())


def seconds_of(work: Callable[[], object]) -> float:
    """The median of some runs."""
    times = []
    for _ in range(TRIES + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    main()
