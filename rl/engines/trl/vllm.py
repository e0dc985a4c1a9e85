"""Sampling with vLLM through TRL: the server's settings, and its responses as completions."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from rl import progress
from rl.engines.base import SamplingParams
from rl.errors import UserError
from rl.rollouts import Completion, cut_at

LOGPROBS_MODE = "processed_logprobs"  # after the temperature: of the distribution sampled from


def server_command(source: str, url: str) -> str:
    """The command that starts a server TRL can sample from and send weights to (TRL 1.16, `VLLMClient`)."""
    port = urllib.parse.urlsplit(url).port or 8000
    return (
        f"VLLM_SERVER_DEV_MODE=1 vllm serve {source} --port {port} --logprobs-mode {LOGPROBS_MODE}"
        """ --weight-transfer-config '{"backend": "nccl"}'"""
    )


def require_server(url: str, source: str) -> None:
    """Raises UserError unless a vLLM server at `url` returns the log-probabilities it sampled with."""
    command = server_command(source, url)
    try:
        with urllib.request.urlopen(
            f"{url.rstrip('/')}/server_info?config_format=json", timeout=30
        ) as answer:
            mode = json.load(answer)["vllm_config"]["model_config"]["logprobs_mode"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = "VLLM_SERVER_DEV_MODE=1 is not set" if getattr(error, "code", 0) == 404 else str(error)
        raise UserError(
            f"engine.vllm_url={url}: no vLLM server that accepts weights ({reason}); start it with: {command}"
        ) from None
    if mode != LOGPROBS_MODE:
        raise UserError(
            f"engine.vllm_url={url}: the server returns {mode}, not the log-probabilities it sampled with; start it"
            f" with: {command}"
        )


def merged_parameters(generation: Any) -> Iterator[tuple[str, Any]]:
    """Merged weights of a LoRA model for vLLM, by name; replaces `VLLMGeneration._iter_named_params` (TRL 1.16).

    TRL's version merges the adapter into the base weights and unmerges it, which adds rounding error at each sync.
    """
    model = generation.model
    with generation._dist.gather_params(list(model.parameters())):
        for name, parameter in model.named_parameters():
            if model.prefix in name:
                continue
            value, (layer, inside, _) = parameter.data, name.rpartition(".base_layer.")
            if inside and name.endswith("weight"):
                delta = model.get_submodule(layer).get_delta_weight(model.active_adapter)
                value = (value.float() + delta.float()).to(value.dtype)
            name = name.removeprefix("base_model.model.").replace(".base_layer", "")
            yield generation._fix_param_name_to_vllm(name), value


def complete(
    generation: Any, prompts: Sequence[Sequence[int]], n: int, params: SamplingParams
) -> list[list[Completion]]:
    """[P][n] completions of P prompts by a `trl.generation.VLLMGeneration`, on all processes at once.

    Raises UserError for a token without a log-probability, because it cannot be trained on.
    """
    generation.temperature = params.temperature
    generation.max_completion_length = params.max_tokens
    # No seed: vLLM would use the same seed for all completions of a prompt.
    generation.generation_kwargs = {"stop_token_ids": sorted(params.stop_ids), "ignore_eos": True}
    repeated = [list(prompt) for prompt in prompts for _ in range(n)]
    with progress.task("sampling with vLLM"):
        _, sampled, logprobs, _ = generation.generate(prompts=repeated, images=None, num_generations=n)
    if logprobs is None:
        raise UserError(
            "engine.vllm: vLLM returned no log-probabilities; expected one per token; type engine.vllm=off"
        )
    # vLLM gets one budget for all prompts: a prompt's own, smaller one cuts its completions afterwards.
    completions = [
        cut_at(_completion(list(tokens), [token[0] for token in values], params), params.limit(i // n))
        for i, (tokens, values) in enumerate(zip(sampled, logprobs, strict=True))
    ]
    return [completions[i : i + n] for i in range(0, len(completions), n)]


def _completion(tokens: list[int], logprobs: list[float | None], params: SamplingParams) -> Completion:
    values = [math.nan if value is None else value for value in logprobs]  # TRL writes NaN as None
    if len(values) != len(tokens) or (params.temperature > 0 and not all(map(math.isfinite, values))):
        raise UserError(
            "engine.vllm: vLLM returned a token without a finite log-probability, which cannot be trained on; try"
            " engine.vllm=off, or a smaller learning_rate"
        )
    return Completion(tokens, values, "stop" if tokens[-1] in params.stop_ids else "length")
