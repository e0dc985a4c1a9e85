"""What is sent to vLLM's /inference/v1/generate for one prompt, and the checked completions in the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rl.engines.base import SamplingParams
from rl.engines.vllm.wire import brief
from rl.rollouts import Completion

PATH = "/inference/v1/generate"
SEEDS = 2**31
LOWEST = -100.0  # no sampled token is as improbable as e^-100; vLLM writes -9999 where it has no value


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


def completions_of(answer: Any, request: Mapping[str, Any], vocabulary: float = math.inf) -> list[Completion]:
    """The n completions of an answer, in the order of their seeds. Raises Unusable for anything less.

    vocabulary: the model's number of token ids.
    """
    asked = request["sampling_params"]
    try:
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        found = [_completion(choice, asked, vocabulary) for choice in choices]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Unusable(f"an answer in another form ({type(error).__name__}: {brief(error)})") from None
    if (numbers := [choice["index"] for choice in choices]) != list(range(asked["n"])):
        raise Unusable(
            f"{asked['n']} completions were requested, {len(found)} came, numbered {brief(numbers)}"
        )
    return found


def _completion(choice: Mapping[str, Any], asked: Mapping[str, Any], vocabulary: float) -> Completion:
    tokens, finish = list(choice["token_ids"]), choice["finish_reason"]
    if finish not in ("stop", "length"):
        raise Unusable(f"a completion ended with {brief(repr(finish))}")
    if wrong := [token for token in tokens if type(token) is not int or not 0 <= token < vocabulary]:
        raise Unusable(f"{brief(repr(wrong[0]))} is no token id of the model ({vocabulary} ids)")
    content = (choice["logprobs"] or {}).get("content") or []
    if not tokens or [each["token_id"] for each in content] != tokens:
        raise Unusable(f"{len(tokens)} tokens came with {len(content)} log-probabilities")
    logprobs = [_logprob(each["logprob"]) for each in content]
    valid = [LOWEST < value < 1e-3 for value in logprobs]  # so that NaN is not
    if asked["temperature"] == 0:
        logprobs = [value if fits else 0.0 for value, fits in zip(logprobs, valid, strict=True)]
    elif not all(valid):
        raise Unusable(f"a log-probability that is not finite, above 0 or below {LOWEST:g}")
    stops = set(asked["stop_token_ids"])
    if finish == "stop" and tokens[-1] not in stops:
        raise Unusable(f"a completion stopped at token {tokens[-1]}, which is no stop token")
    if not stops.isdisjoint(tokens[:-1]):
        raise Unusable("a completion goes on after a stop token")
    if (finish == "length" and len(tokens) < asked["max_tokens"]) or len(tokens) > asked["max_tokens"]:
        raise Unusable(f"a completion of {len(tokens)} tokens for a budget of {asked['max_tokens']}")
    return Completion(tokens, logprobs, finish)


def _logprob(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unusable(f"{brief(repr(value))} is no log-probability")
    return float(value)
