"""Sampling from a Hugging Face causal model: one prefill a distinct prompt, finished rows leave the batch.

Each (rollout, position) has its own uniform number, drawn ahead from the seed, and a token is the inverse of the
distribution's CDF at that number. So the tokens depend on the seed, the weights and the prompt only: not on how rows
are batched, compacted or chunked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl.engines.base import SamplingConfig, SamplingParams
from rl.engines.cache import bytes_per_token, preallocated_cache, select_rows
from rl.errors import NotFinite
from rl.rollouts import Completion

# Rows are compacted when this share of them has finished: less often copies too much, more often decodes dead rows.
COMPACT_AT = 0.25
# Keeps the target strictly below the CDF's end in float32, whose rounding could otherwise pick a token of probability 0.
MAX_UNIFORM = 1 - 1e-6


@torch.inference_mode()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    n: int,
    params: SamplingParams,
    max_kv_bytes: float,
) -> list[list[Completion]]:
    """[P][n] completions; prompts are batched, longest first, as many at once as their cache fits `max_kv_bytes`."""
    generator = torch.Generator().manual_seed(params.seed)
    uniforms = torch.rand(len(prompts), n, params.max_tokens, generator=generator).clamp_(max=MAX_UNIFORM)
    order = sorted(range(len(prompts)), key=lambda p: -len(prompts[p]))
    token_bytes = bytes_per_token(model.config, model.dtype)
    completions: list[list[Completion]] = [[] for _ in prompts]
    while order:
        row_bytes = (len(prompts[order[0]]) + params.max_tokens) * token_bytes
        size = max(1, int(max_kv_bytes // (row_bytes * n)))
        chunk, order = order[:size], order[size:]
        sampled = _sample_batch(model, [prompts[p] for p in chunk], uniforms[chunk].flatten(0, 1), params)
        for i, p in enumerate(chunk):
            completions[p] = sampled[i * n : (i + 1) * n]
    return completions


def _sample_batch(
    model: PreTrainedModel, prompts: list[Sequence[int]], uniforms: Tensor, params: SamplingParams
) -> list[Completion]:
    """Completions of N rows, N a multiple of P; `uniforms` is [N, T]."""
    device = model.device
    rows, budget = uniforms.shape
    width = max(map(len, prompts))
    # Prompts are padded on the left, so that every row writes the same cache column at the same time.
    input_ids = torch.zeros(len(prompts), width, dtype=torch.long)
    visible = torch.zeros(len(prompts), width + budget, dtype=torch.bool)
    for p, prompt in enumerate(prompts):
        input_ids[p, width - len(prompt) :] = torch.tensor(prompt)
        visible[p, width - len(prompt) :] = True
    input_ids, visible, uniforms = input_ids.to(device), visible.to(device), uniforms.to(device)

    cache = preallocated_cache(model.config, width + budget)
    position = visible[:, :width].long().cumsum(-1).sub(1).clamp(min=0)
    logits = model(
        input_ids=input_ids,
        attention_mask=visible[:, :width].long(),
        position_ids=position,
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    spread = torch.arange(len(prompts), device=device).repeat_interleave(rows // len(prompts))
    if len(prompts) != rows:
        select_rows(cache, spread)
    logits, visible, position = logits[spread], visible[spread], position[spread, -1:]

    tokens = torch.zeros(rows, budget, dtype=torch.long, device=device)
    logprobs = torch.zeros(rows, budget, device=device)
    entropies = torch.zeros(rows, budget, device=device) if params.entropies else None
    lengths = torch.full((rows,), budget, device=device)
    stopped = torch.zeros(rows, dtype=torch.bool, device=device)
    stop_ids = torch.tensor(sorted(params.stop_ids), device=device)
    active = torch.arange(rows, device=device)  # which row of the result each decoded row is
    alive = torch.ones(rows, dtype=torch.bool, device=device)

    for t in range(budget):
        drawn, drawn_logprobs, log_distribution = draw(logits, uniforms[active, t], params)
        tokens[active, t] = drawn
        logprobs[active, t] = drawn_logprobs
        if entropies is not None:
            entropies[active, t] = entropy(log_distribution)
        ends = torch.isin(drawn, stop_ids) & alive
        finished = active[ends]
        lengths[finished] = t + 1
        stopped[finished] = True
        alive &= ~ends
        if t + 1 == budget or not (remaining := int(alive.sum())):
            break
        if remaining <= (1 - COMPACT_AT) * len(active):
            keep = alive.nonzero().squeeze(-1)
            select_rows(cache, keep)
            active, drawn, visible, position = active[keep], drawn[keep], visible[keep], position[keep]
            alive = torch.ones(remaining, dtype=torch.bool, device=device)
        position = position + 1
        logits = model(
            input_ids=drawn[:, None],
            attention_mask=_decode_mask(model, visible[:, : width + t + 1]),
            position_ids=position,
            cache=cache,
            use_cache=True,
        ).logits[:, -1]

    if not logprobs.isfinite().all():
        raise NotFinite(
            "the model's logits are not finite numbers: its weights are damaged, or the last steps were too large; go on"
            " from an earlier checkpoint with a smaller learning_rate"
        )
    lengths_list, stopped_list = lengths.tolist(), stopped.tolist()
    tokens_list, logprobs_list = tokens.tolist(), logprobs.tolist()
    entropies_list = entropies.tolist() if entropies is not None else None
    return [
        Completion(
            tokens_list[r][:length],
            logprobs_list[r][:length],
            "stop" if stopped_list[r] else "length",
            entropies_list[r][:length] if entropies_list is not None else None,
        )
        for r, length in enumerate(lengths_list)
    ]


def _decode_mask(model: PreTrainedModel, visible: Tensor) -> Tensor:
    """The mask of one new token over [B, L] cache columns.

    A ready four-dimensional mask spares the model rebuilding one at every token. It has this form for sdpa only, and
    sliding-window layers need one of their own: other models get the plain mask and build theirs.
    """
    layer_types = getattr(model.config.get_text_config(), "layer_types", None) or []
    if model.config._attn_implementation != "sdpa" or any(kind != "full_attention" for kind in layer_types):
        return visible.long()
    return visible[:, None, None, :]


def draw(logits: Tensor, uniforms: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [B], their log-probabilities [B] and all log-probabilities [B, V], float32, from logits [B, V].

    Temperature 0 takes the most likely token and reports log-probabilities at temperature 1.
    """
    logits = logits.float()
    if params.temperature > 0:
        logits = logits / params.temperature
    log_distribution = truncate(logits, params.support).log_softmax(-1)
    if params.temperature > 0:
        cumulative = log_distribution.exp().cumsum(-1)
        target = uniforms[:, None] * cumulative[:, -1:]
        # Logits that are not numbers would point behind the vocabulary; `sample` tells them by their log-probability.
        drawn = torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)
    else:
        drawn = log_distribution.argmax(-1)
    return drawn, log_distribution.gather(-1, drawn[:, None]).squeeze(-1), log_distribution


def truncate(logits: Tensor, support: SamplingConfig) -> Tensor:
    """Logits with the tokens outside top-k, top-p and min-p at -inf, in that order, as transformers orders them."""
    if not support.truncated:
        return logits
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    no_ids: Any = torch.empty(len(logits), 0, dtype=torch.long, device=logits.device)
    if support.top_k:
        logits = TopKLogitsWarper(support.top_k)(no_ids, logits)
    if support.top_p < 1:
        logits = TopPLogitsWarper(support.top_p)(no_ids, logits)
    if support.min_p > 0:
        logits = MinPLogitsWarper(support.min_p)(no_ids, logits)
    return logits


def entropy(log_distribution: Tensor) -> Tensor:
    """[B] entropy in nats of [B, V] log-probabilities; tokens of probability 0 add nothing."""
    return -(log_distribution.exp() * log_distribution.clamp(min=-1e30)).sum(-1)
