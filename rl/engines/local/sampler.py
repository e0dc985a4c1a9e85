"""Sampling from a Hugging Face causal model: one prefill per prompt, and finished rows leave the batch.

Each (rollout, position) has its own uniform number, drawn from the seed in advance; the token is the inverse CDF at
that number. So tokens depend only on the seed, the weights and the prompt, not on how rows are batched.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl import progress, signals
from rl.engines.base import Arrived, SamplingConfig, SamplingParams
from rl.engines.local.decode import cache_bytes, decoder_for
from rl.engines.local.histories import Histories, Known
from rl.engines.local.prefill import Prefill, prefill
from rl.errors import NotFinite
from rl.rollouts import Completion

# Compact when this share of rows has finished: a smaller share copies too often, a larger one decodes dead rows.
COMPACT_AT = 0.25
# Check for finished rows every N tokens (default 1); the check synchronises with the GPU.
LOOK_EVERY = {"cuda": 16}
# Keeps the target strictly below the CDF's end; float32 rounding could otherwise pick a token of probability 0.
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
    arrived: Arrived | None = None,
    histories: Histories | None = None,
) -> list[list[Completion]]:
    """[P][n] completions; samples as many prompts at once as fit in `max_kv_bytes` of cache, longest first.

    skip: how many prompts of the same batch come before these, on other processes; makes tokens the same as in one
    process. compiled: use torch.compile for the decode step, which takes minutes at first. arrived: called with rows
    as they leave the batch. histories: what the turn before left of these conversations; receives what this one leaves.
    """
    if params.seeds:
        uniforms = uniforms_from(params.seeds, n, params.max_tokens)
    else:
        uniforms = uniforms_of(skip + len(prompts), n, params.max_tokens, params.seed)[skip:]
    limits = torch.tensor([params.limit(p) for p in range(len(prompts)) for _ in range(n)])
    drawn = Drawn(uniforms.flatten(0, 1).to(model.device), limits.to(model.device), params)
    waiting = sorted(range(len(prompts)), key=lambda p: -len(prompts[p]))
    known = histories.recall(prompts) if histories else [Known() for _ in prompts]
    with progress.task("sampling", len(prompts) * n, "rollouts") as task:
        while waiting:
            _sample_batch(
                model, prompts, known, waiting, n, drawn, max_kv_bytes, compiled, arrived, histories, task
            )
    completions = drawn.completions(torch.arange(len(prompts) * n))
    return [completions[p * n : (p + 1) * n] for p in range(len(prompts))]


def uniforms_of(prompts: int, n: int, max_tokens: int, seed: int) -> Tensor:
    """[P, n, T] uniform numbers in [0, 1), independent of later prompts and, per token, of the budget."""
    seeds = torch.randint(2**62, (prompts,), generator=torch.Generator().manual_seed(seed)).tolist()
    return uniforms_from(seeds, n, max_tokens)


def uniforms_from(seeds: Sequence[int], n: int, max_tokens: int) -> Tensor:
    """[P, n, T] uniform numbers in [0, 1) of P prompts with a seed each."""
    drawn = [torch.rand(max_tokens, n, generator=torch.Generator().manual_seed(own)) for own in seeds]
    return torch.stack(drawn).transpose(1, 2).clamp(max=MAX_UNIFORM)


def _sample_batch(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    known: list[Known],
    waiting: list[int],
    n: int,
    drawn: Drawn,
    max_kv_bytes: float,
    compiled: bool,
    arrived: Arrived | None,
    histories: Histories | None,
    task: progress.Task,
) -> None:
    """Takes prompts from the front of `waiting` while the cache has room, and samples their completions."""
    budget, width = drawn.params.max_tokens, len(prompts[waiting[0]])

    def held(prompts: int, rows: int) -> int:
        return cache_bytes(model, prompts, rows, width, budget, compiled)

    def take(count: int) -> tuple[Prefill, Tensor]:
        """Prefills the next `count` prompts; returns that and the indices of their rows in the result."""
        taken = waiting[:count]
        del waiting[:count]
        rows = torch.tensor(taken, device=model.device)[:, None] * n + torch.arange(n, device=model.device)
        read = prefill(model, [prompts[p] for p in taken], [known[p] for p in taken])
        for p in taken:
            known[p] = Known()  # frees its states
        return read, rows.flatten()

    def remember(gone: Tensor) -> None:
        """Leaves the states of finished rows to their next turn; a row that was cut has none."""
        if histories is None:
            return
        places = gone.nonzero().flatten().tolist()
        for place, completion in zip(places, drawn.completions(rows[gone]), strict=True):
            if completion.stop_reason == "stop":
                prompt, fed = prompts[int(rows[place]) // n], completion.tokens[:-1]
                states = (
                    decoder.read(place, len(prompt), int(born[place]), len(fed)) if decoder.admits else None
                )
                histories.keep([*prompt, *fed], states)

    size = max(1, int(max_kv_bytes // held(1, n)))
    first, rows = take(size)
    logits = first.logits.repeat_interleave(n, 0)
    decoder = decoder_for(model, first, n, budget, compiled)
    age = torch.zeros_like(rows)  # tokens sampled per row
    born = torch.zeros_like(rows)  # steps taken before the row was admitted
    alive = torch.ones_like(rows, dtype=torch.bool)
    ends = [budget]  # step at which each admitted group of rows reaches its budget, in order
    look_every = LOOK_EVERY.get(model.device.type, 1)

    for t in itertools.count(1):
        signals.check()
        tokens = drawn.draw(logits, rows, age)
        age = age + 1
        alive &= ~drawn.is_stop(tokens) & (age < drawn.limits[rows])
        look = t % look_every == 0 or t == ends[0]
        if look:
            remaining = int(alive.sum())
            finished = task.total - n * len(waiting) - remaining
            task.tokens += (remaining + finished - task.done) * look_every
            position = t - (ends[0] + ends[-1]) / 2 + budget  # of the remaining rows, on average
            task.done, task.share = finished, (finished + remaining * position / budget) / task.total
            if not remaining:
                remember(~alive)
                break
            if t == ends[0] or remaining <= (1 - COMPACT_AT) * len(rows):
                keep = alive.nonzero().squeeze(-1)
                if arrived:
                    tell(arrived, drawn, rows[~alive], n)
                remember(~alive)
                decoder.keep(keep)
                rows, age, born, alive, tokens = (each[keep] for each in (rows, age, born, alive, tokens))
            if t == ends[0]:
                del ends[0]
        logits = decoder.step(tokens)
        if look and waiting and decoder.admits:
            room = int((max_kv_bytes - held(len((rows // n).unique()), len(rows))) // held(1, n))
            if room >= max(1, COMPACT_AT * size):
                more, more_rows = take(room)
                decoder.admit(more)
                logits = torch.cat((logits, more.logits.repeat_interleave(n, 0)))
                rows, age = torch.cat((rows, more_rows)), torch.cat((age, torch.zeros_like(more_rows)))
                born = torch.cat((born, torch.full_like(more_rows, t)))
                alive = torch.cat((alive, torch.ones_like(more_rows, dtype=torch.bool)))
                ends.append(t + budget)


def tell(arrived: Arrived, drawn: Drawn, rows: Tensor, n: int) -> None:
    """Calls `arrived` with the completions of the finished rows [B], prompt by prompt."""
    own = zip(rows.tolist(), drawn.completions(rows), strict=True)
    for p, group in itertools.groupby(own, key=lambda row: row[0] // n):
        arrived(p, [completion for _, completion in group])


class Drawn:
    """The tokens of all N rows by position, with their log-probabilities and entropies."""

    def __init__(self, uniforms: Tensor, limits: Tensor, params: SamplingParams) -> None:
        """uniforms: [N, T], one for each token that may be drawn. limits: [N] the rows' budgets, at most T."""
        self.uniforms, self.limits, self.params = uniforms, limits, params
        self.tokens = torch.zeros_like(uniforms, dtype=torch.long)
        self.logprobs = torch.zeros_like(uniforms)
        self.entropies = torch.zeros_like(uniforms) if params.entropies else None
        self.stop_ids = torch.tensor(sorted(params.stop_ids), device=uniforms.device)

    def draw(self, logits: Tensor, rows: Tensor, age: Tensor) -> Tensor:
        """Draws and records the next token [B] of the given rows, at position `age`, from logits [B, V].

        A finished row keeps drawing until it leaves the batch; `completions` drops the tokens after its end.
        """
        tokens, logprobs, scaled = draw(logits, self.uniforms[rows, age], self.params)
        self.tokens[rows, age] = tokens
        self.logprobs[rows, age] = logprobs
        if self.entropies is not None:
            self.entropies[rows, age] = entropy(scaled)
        return tokens

    def is_stop(self, tokens: Tensor) -> Tensor:
        return torch.isin(tokens, self.stop_ids)

    def completions(self, rows: Tensor) -> list[Completion]:
        """The given rows, each up to its budget or first stop token. Raises NotFinite if a logit was NaN."""
        logprobs = self.logprobs[rows]
        if not logprobs.isfinite().all():
            raise NotFinite(
                "the model's logits are not finite: its weights are damaged, or the last steps were too large; resume"
                " from an earlier checkpoint with a smaller learning_rate"
            )
        tokens = self.tokens[rows]
        limits = self.limits[rows]
        ends = self.is_stop(tokens) & (torch.arange(tokens.shape[1], device=tokens.device) < limits[:, None])
        stopped = ends.any(-1)
        lengths = torch.where(stopped, ends.int().argmax(-1) + 1, limits).tolist()
        entropies = [None] * len(rows) if self.entropies is None else self.entropies[rows].tolist()
        fields = zip(tokens.tolist(), logprobs.tolist(), entropies, lengths, stopped.tolist(), strict=True)
        return [
            Completion(
                own[:length],
                own_logprobs[:length],
                "stop" if stop else "length",
                own_entropies and own_entropies[:length],
            )
            for own, own_logprobs, own_entropies, length, stop in fields
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
    # One buffer for exponentials and their running sum; its last column normalises both draw and log-probability.
    cumulative = (logits - largest).exp_().cumsum_(-1)
    total = cumulative[:, -1:]
    if params.temperature > 0:
        # NaN logits would give an index past the vocabulary; `completions` detects them by their log-probability.
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
