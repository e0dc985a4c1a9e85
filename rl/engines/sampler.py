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

from rl import signals
from rl.engines.base import SamplingConfig, SamplingParams
from rl.engines.decode import cache_bytes, prefill
from rl.errors import NotFinite
from rl.rollouts import Completion

# Rows are compacted when this share of them has finished: less often copies too much, more often decodes dead rows.
COMPACT_AT = 0.25
# After so many tokens it is looked which rows are left; 1 elsewhere. A GPU stands still while it answers.
LOOK_EVERY = {"cuda": 16}
# Keeps the target strictly below the CDF's end in float32, whose rounding could otherwise pick a token of probability 0.
MAX_UNIFORM = 1 - 1e-6


@torch.inference_mode()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    n: int,
    params: SamplingParams,
    max_kv_bytes: float,
    skip: int = 0,
    compiled: bool = False,
) -> list[list[Completion]]:
    """[P][n] completions; prompts are batched, longest first, as many at once as their cache fits `max_kv_bytes`.

    `skip` prompts of the same batch come before these and are sampled elsewhere: these get the tokens they would have
    got among all of them. `compiled`: the decode step goes through torch.compile, which takes minutes at first.
    """
    generator = torch.Generator().manual_seed(params.seed)
    uniforms = torch.rand(skip + len(prompts), n, params.max_tokens, generator=generator)[skip:]
    uniforms = uniforms.clamp(max=MAX_UNIFORM)
    order = sorted(range(len(prompts)), key=lambda p: -len(prompts[p]))
    completions: list[list[Completion]] = [[] for _ in prompts]
    while order:
        prompt_bytes = cache_bytes(model, len(prompts[order[0]]), n, params.max_tokens, compiled)
        size = max(1, int(max_kv_bytes // prompt_bytes))
        chunk, order = order[:size], order[size:]
        sampled = _sample_batch(
            model, [prompts[p] for p in chunk], uniforms[chunk].flatten(0, 1), params, compiled
        )
        for i, p in enumerate(chunk):
            completions[p] = sampled[i * n : (i + 1) * n]
    return completions


def _sample_batch(
    model: PreTrainedModel,
    prompts: list[Sequence[int]],
    uniforms: Tensor,
    params: SamplingParams,
    compiled: bool,
) -> list[Completion]:
    """Completions of N rows, N a multiple of P; `uniforms` is [N, T]."""
    rows, budget = uniforms.shape
    n = rows // len(prompts)
    decoder, logits = prefill(model, prompts, n, budget, compiled)
    logits = logits.repeat_interleave(n, 0)
    device = logits.device
    uniforms = uniforms.to(device)

    tokens = torch.zeros(rows, budget, dtype=torch.long, device=device)
    logprobs = torch.zeros(rows, budget, device=device)
    entropies = torch.zeros(rows, budget, device=device) if params.entropies else None
    stop_ids = torch.tensor(sorted(params.stop_ids), device=device)
    active = torch.arange(rows, device=device)  # which row of the result each decoded row is
    alive = torch.ones(rows, dtype=torch.bool, device=device)
    look_every = LOOK_EVERY.get(device.type, 1)

    for t in range(budget):
        signals.check()
        drawn, drawn_logprobs, scaled = draw(logits, uniforms[active, t], params)
        # A finished row writes on until it leaves the batch; what it writes lies behind its stop token.
        tokens[active, t] = drawn
        logprobs[active, t] = drawn_logprobs
        if entropies is not None:
            entropies[active, t] = entropy(scaled)
        alive &= ~torch.isin(drawn, stop_ids)
        if t + 1 == budget:
            break
        if (t + 1) % look_every == 0:
            remaining = int(alive.sum())
            if not remaining:
                break
            if remaining <= (1 - COMPACT_AT) * len(active):
                keep = alive.nonzero().squeeze(-1)
                decoder.keep(keep)
                active, drawn, alive = active[keep], drawn[keep], alive[keep]
        logits = decoder.step(drawn)

    if not logprobs.isfinite().all():
        raise NotFinite(
            "the model's logits are not finite numbers: its weights are damaged, or the last steps were too large; go on"
            " from an earlier checkpoint with a smaller learning_rate"
        )
    return completions_of(tokens, logprobs, entropies, stop_ids)


def completions_of(
    tokens: Tensor, logprobs: Tensor, entropies: Tensor | None, stop_ids: Tensor
) -> list[Completion]:
    """Each row of [N, T] up to its first stop token, that token included."""
    is_stop = torch.isin(tokens, stop_ids)
    stopped = is_stop.any(-1)
    lengths = torch.where(stopped, is_stop.int().argmax(-1) + 1, tokens.shape[1]).tolist()
    rows = [values.tolist() for values in (tokens, logprobs, entropies) if values is not None]
    return [
        Completion(
            rows[0][r][:length],
            rows[1][r][:length],
            "stop" if stop else "length",
            rows[2][r][:length] if entropies is not None else None,
        )
        for r, (length, stop) in enumerate(zip(lengths, stopped.tolist(), strict=True))
    ]


def draw(logits: Tensor, uniforms: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [B], their log-probabilities [B] and the logits they were drawn with [B, V], float32, from logits [B, V].

    Temperature 0 takes the most likely token and reports log-probabilities at temperature 1.
    """
    logits = logits.float()
    if params.temperature not in (0, 1):
        logits = logits / params.temperature
    logits = truncate(logits, params.support)
    largest = logits.amax(-1, keepdim=True)
    # One buffer for exponentials and their running sum, whose last column normalizes both draw and log-probability.
    cumulative = (logits - largest).exp_().cumsum_(-1)
    total = cumulative[:, -1:]
    if params.temperature > 0:
        # Logits that are not numbers would point behind the vocabulary; `sample` tells them by their log-probability.
        drawn = torch.searchsorted(cumulative, uniforms[:, None] * total, right=True)
        drawn = drawn.clamp_(max=logits.shape[-1] - 1)
    else:
        drawn = logits.argmax(-1, keepdim=True)
    logprobs = logits.gather(-1, drawn) - largest - total.log()
    return drawn.squeeze(-1), logprobs.squeeze(-1), logits


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


def entropy(logits: Tensor) -> Tensor:
    """[B] entropy in nats of the distributions of [B, V] logits; tokens of probability 0 add nothing."""
    log_distribution = logits.log_softmax(-1)
    return -(log_distribution.exp() * log_distribution.clamp(min=-1e30)).sum(-1)
