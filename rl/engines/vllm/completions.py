"""What is sent to vLLM's /inference/v1/generate for one prompt, and the checked completions in the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rl.engines.base import SamplingParams
from rl.rollouts import Completion

PATH = "/inference/v1/generate"
SEEDS = 2**31


class Unusable(Exception):
    """An answer that cannot be trained on. The message says what it lacks."""


def request_of(prompt: Sequence[int], n: int, params: SamplingParams, p: int) -> dict[str, Any]:
    """The request for n completions of the p-th prompt, without the model's name.

    vLLM draws a prompt's i-th completion with seed + i, so that seeds within a batch must be n apart.
    """
    seed = params.seeds[p] if params.seeds else params.seed + p * n
    support = params.support
    return {
        "token_ids": list(prompt),
        "sampling_params": {
            "n": n,
            "max_tokens": params.limit(p),
            "temperature": params.temperature,
            "top_p": support.top_p,
            "top_k": support.top_k,
            "min_p": support.min_p,
            "repetition_penalty": 1.0,  # a checkpoint's generation config may have another
            "seed": seed % SEEDS,
            "logprobs": 0,  # those of the sampled tokens
            "stop_token_ids": sorted(params.stop_ids),
            "ignore_eos": True,
            "detokenize": False,
        },
    }


def completions_of(answer: Any, request: Mapping[str, Any]) -> list[Completion]:
    """The n completions of an answer, in the order of their seeds. Raises Unusable for anything less."""
    asked = request["sampling_params"]
    try:
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        found = [_completion(choice, asked) for choice in choices]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unusable(f"an answer without {error}") from None
    if len(found) != asked["n"]:
        raise Unusable(f"{asked['n']} completions were requested, {len(found)} came")
    return found


def _completion(choice: Mapping[str, Any], asked: Mapping[str, Any]) -> Completion:
    tokens, finish = [int(token) for token in choice["token_ids"]], choice["finish_reason"]
    if finish not in ("stop", "length"):
        raise Unusable(f"a completion ended with {finish!r}")
    content = (choice["logprobs"] or {}).get("content") or []
    if not tokens or [each["token_id"] for each in content] != tokens:
        raise Unusable(f"{len(tokens)} tokens came with {len(content)} log-probabilities")
    logprobs = [float(each["logprob"]) for each in content]
    if asked["temperature"] == 0:
        logprobs = [value if math.isfinite(value) else 0.0 for value in logprobs]
    if not all(math.isfinite(value) and value < 1e-3 for value in logprobs):
        raise Unusable("a log-probability that is not finite, or above 0")
    if finish == "stop" and tokens[-1] not in asked["stop_token_ids"]:
        raise Unusable(f"a completion stopped at token {tokens[-1]}, which is no stop token")
    if (finish == "length" and len(tokens) < asked["max_tokens"]) or len(tokens) > asked["max_tokens"]:
        raise Unusable(f"a completion of {len(tokens)} tokens for a budget of {asked['max_tokens']}")
    return Completion(tokens, logprobs, finish)
