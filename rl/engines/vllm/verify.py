"""Whether servers sample from the weights that were published: their first completions, scored by the learner.

Weights that never reach the sampler, or states of older weights in a cache, leave a run that seems to train. The
log-probabilities show it: the same weights give the same ones, up to the rounding of the number formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl.engines.base import SamplingConfig, SamplingParams
from rl.engines.vllm.completions import request_of
from rl.rollouts import Completion, TrainingRow

PROMPTS, COMPLETIONS, TOKENS = 2, 2, 16  # sampled from each new version
# (mean, max) of |log rho| by the coarser number format of server and learner. Same formats differ by other kernels:
# float32 on a CPU 1e-5; bfloat16 about 0.01. Anything else is 8 bits or fewer.
LIMITS = {"float32": (1e-3, 0.03), "float16": (0.02, 0.5), "bfloat16": (0.05, 2.0)}
COARSE = (0.2, 5.0)


@dataclass(frozen=True)
class Mismatch:
    """|log rho| over the sampled tokens. formats: of server and learner, for messages."""

    mean: float
    max: float
    tokens: int
    formats: tuple[str, str]

    def excess(self, limit: float | None) -> str:
        """What exceeds the limits; "" when nothing does. limit: of the mean, in place of the formats' own."""
        mean, most = LIMITS.get(self.coarser, COARSE)
        if limit is not None:
            mean, most = limit, max(most, 40 * limit)
        if self.mean <= mean and self.max <= most:  # so that NaN exceeds
            return ""
        server, learner = self.formats
        return (
            f"the log-probabilities of {self.tokens} sampled tokens differ from the learner's by {self.mean:.2g} in the mean and"
            f" {self.max:.2g} at most, where {server} on the server and {learner} in the learner explain {mean:g} and {most:g}"
        )

    @property
    def coarser(self) -> str:
        """The format that rounds more."""
        order = ["float32", "float16", "bfloat16"]
        return max(self.formats, key=lambda name: order.index(name) if name in order else len(order))


def first_requests(
    prompts: Sequence[Sequence[int]], params: SamplingParams, temperature: float
) -> list[dict[str, Any]]:
    """Requests for a few short completions at the training temperature, of the first of `prompts`."""
    short = replace(
        params,
        max_tokens=min(TOKENS, *(params.limit(p) for p in range(len(prompts)))),
        temperature=temperature,
        support=SamplingConfig(),
        limits=(),
        seeds=(),
    )
    return [request_of(prompt, COMPLETIONS, short, p) for p, prompt in enumerate(prompts[:PROMPTS])]


def rows_of(
    requests: Sequence[Mapping[str, Any]], sampled: Sequence[Sequence[Completion]]
) -> list[TrainingRow]:
    """The completions as rows that the learner can score."""
    return [
        TrainingRow(
            request["token_ids"],
            completion.tokens,
            [True] * len(completion.tokens),
            completion.logprobs,
            [0.0] * len(completion.tokens),
        )
        for request, completions in zip(requests, sampled, strict=True)
        for completion in completions
    ]


def mismatch_of(
    rows: Sequence[TrainingRow], scores: Sequence[Sequence[float]], formats: tuple[str, str]
) -> Mismatch:
    """The rows' own log-probabilities against the learner's [N][T] scores of them."""
    differences = [
        abs(score - logprob)
        for row, values in zip(rows, scores, strict=True)
        for score, logprob in zip(values, row.behavior_logprobs, strict=True)
    ]
    mean = sum(differences) / len(differences)
    return Mismatch(mean, max(differences), len(differences), formats)
