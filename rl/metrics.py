"""Every logged metric and its definition. Trackers such as W&B use the same names.

The correctness metrics (`frac_all_good`, `by_group/*`, `tokens_per_correct`, `correct_given_finished`, `grade/*`) are
absent when no reward grades answers.

| name | definition |
|---|---|
| `reward_total` | mean weighted reward sum of the N rollouts |
| `reward_<name>` | mean of that reward before weighting (`reward_correct`, `reward_format`, ...) |
| `reward_length` | mean of what the length rule added to the sum (`length=kimi`, ...) |
| `frac_all_good` | share of rollouts that keep the format AND are correct |
| `by_group/frac_all_good`, `frac_mixed`, `frac_all_bad` | share of groups whose members are all good, some, none |
| `entropy` | minus the mean log-probability of the sampled tokens, nats: a Monte Carlo estimate |
| `entropy_exact` | mean entropy of the whole distributions sampled from, nats; not with engine=tinker, engine=vllm or engine.vllm |
| `learning_rate` | the rate of this step |
| `frac_truncated` | share of completions cut at the budget, as the sampler reports it |
| `budget` | the token budget in force: `max_tokens`, or what `budget=tighten` or `thinkprune` allows at this step |
| `sampled_discarded` | completion tokens that `refill`, or `engine.collect=arrival` as too old, threw away; all other metrics are of the groups that were kept |
| `tokens/mean`, `p50`, `p90`, `max` | completion lengths, the stop token included |
| `tokens/thinking` | mean tokens of the reasoning, estimated from its share of the completion's characters |
| `sampled_tokens` | completion tokens that the run's training steps have sampled so far |
| `thinking/forced` | share of rollouts whose reasoning was closed by force (`thinking_tokens`) |
| `tokens_per_correct` | completion tokens spent for each correct answer (null: none was correct) |
| `correct_given_finished` | accuracy among completions that were not cut (null: all were cut) |
| `thinking_ja_share` | share of the thinking's letters that are kana or kanji |
| `boxed_in_thinking` | share of completions whose reasoning, finished or not, contains a closed `\\boxed{...}` |
| `grade/<reason>` | share of rollouts with that verdict (`no_box`, `unparsable`, `wrong`, `timeout`, `error`, ...) |
| `trust/admitted`, `kl_mean`, `kl_max` | share of rows inside the trust region; mean Bernoulli KL of a row, nats |
| `ratio/mean`, `max`, `min` | learner's over sampler's probability of the sampled tokens, before the step; with `loss.correction` over the learner's own before the batch's first update |
| `mismatch/mean`, `max`, `min` | learner's over sampler's probability before the batch's first update (loss.correction) |
| `correction/kept` | share of the tokens with a coefficient that the correction leaves one (null: there was none) |
| `clipped/low`, `clipped/high` | share of the tokens whose ratio the lower or upper clip bound limits (loss=dapo) |
| `kl_reference` | mean KL of a token to the model before training, nats (loss.kl_beta above 0) |
| `loss`, `grad_norm` | the SUM surrogate, with its KL penalty; the gradient's norm before clipping |
| `skipped` | 1 when the step moved no weights (no signal, or NaN or infinity), else 0 |
| `nonfinite` | 1 when the step's reward, loss or gradient was not finite, else 0 |
| `env/turns` | mean turns of a rollout; this and the next rows: with an environment other than `single_turn` |
| `env/tool_calls`, `env/tool_errors` | mean calls of a rollout, and those answered with an error; `env/tool_errors_<kind>` |
| `env/ended/<reason>` | share of rollouts that ended because the model `answered`, or by `budget`, `turns`, `context`, `error` |
| `tokens/context` | mean tokens that the model read or wrote: prompt, sampled tokens, and the environment's messages |
| `tokens/prefilled_over_needed` | prompt tokens computed over those not computed before: 1 when no history is computed again (engine=local) |
| `lag/mean`, `lag/max` | updates between the policy that began a rollout and the one that learns from it (a sampler that is elsewhere) |
| `lag/long` | `lag/mean` of the rollouts longer than `tokens/p50`: above `lag/mean`, long answers train later (null: none is longer); this and the next rows: with engine.collect=arrival |
| `lag/in_flight` | rollouts that were being sampled, or had finished and wait for a later step, when the step was logged |
| `lag/dropped` | rollouts that arrived for the step more than `engine.max_lag` updates old, and were thrown away |
| `tokens/dropped` | their mean length: above `tokens/mean`, long answers are lost (null: none was dropped) |
| `tokens/in_flight` | tokens of the finished rollouts that wait for a later step |
| `publish/mismatch`, `publish/mismatch_max` | mean and largest abs(log rho) of the first tokens of each version that was published at the step, the worst server's (engine=vllm; absent where the weights had not changed) |
| `publish/seconds` | of handing over weights and verifying them (engine=vllm) |
| `servers/live`, `servers/asked_again` | servers in use at the end of the step; requests that failed and were asked again (engine=vllm) |
| `dropped_groups` | problems of the step whose sampling failed (engine=tinker) |
| `cost/*_tokens`, `cost/usd` | tokens paid for since the run began, and their price where known (engine=tinker) |
| `eval/<name>` | the metric on test problems, where due |
| `eval/budget/<b>/accuracy`, `reward`, `truncated`, `tokens` | with `eval_max_tokens`: the same completions, cut at b tokens |
| `eval/target/<t>/accuracy`, `tokens`, `deviation` | with `length.eval_targets`: every prompt states t; mean of abs(t - tokens) |
| `tokens_per_second` | completion tokens per second of sampling; of the whole step with `engine.max_lag` above 0, which samples meanwhile |
| `time/*` | seconds of each stage |

An evaluation on test problems logs the first two groups as `eval/*`, or with `eval_data` as `eval/math_500/*` and so on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import get_args

from rewards.thinking_language import script_share
from rl.boxes import holds_box
from rl.engines.base import UpdateStats
from rl.rollouts import End, Rollout

REASONS = ("correct", "wrong", "no_box", "unclosed_box", "unparsable", "timeout", "error", "truncated")


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of N scored rollouts; NaN for a mean over nothing."""
    lengths = [r.length for r in rollouts]
    completions = [r.completion for r in rollouts]
    logprobs = [value for c in completions for value in c.logprobs]
    entropies = [value for c in completions for value in c.entropies or ()]
    return {
        "reward_total": fmean(r.reward for r in rollouts),
        **{f"reward_{name}": fmean(r.rewards[name] for r in rollouts) for name in rollouts[0].rewards},
        "entropy": -fmean(logprobs),
        **({"entropy_exact": fmean(entropies)} if entropies else {}),
        "frac_truncated": fmean(r.truncated for r in rollouts),
        "tokens/mean": fmean(lengths),
        "tokens/p50": median(lengths),
        "tokens/p90": percentile(lengths, 0.9),
        "tokens/max": max(lengths),
        "tokens/thinking": fmean(thinking_tokens(r) for r in rollouts),
        "thinking_ja_share": fmean(script_share(r.parsed.thinking, "ja") for r in rollouts),
        "boxed_in_thinking": fmean(holds_box(r.parsed.thinking) for r in rollouts),
        **grading_metrics(rollouts),
    }


def grading_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The correctness metrics; {} when no reward grades answers."""
    if rollouts[0].verdict.correct is None:
        return {}
    correct = [r.verdict.correct for r in rollouts]
    good = [r.verdict.correct and r.verdict.format for r in rollouts]
    finished = [r.verdict.correct for r in rollouts if not r.truncated]
    reasons = Counter(r.verdict.reason for r in rollouts)
    tokens = sum(r.length for r in rollouts)
    return {
        "frac_all_good": fmean(good),
        **group_metrics([r.group for r in rollouts], good),
        "tokens_per_correct": tokens / sum(correct) if any(correct) else math.nan,
        "correct_given_finished": fmean(finished) if finished else math.nan,
        **{f"grade/{reason}": reasons[reason] / len(rollouts) for reason in REASONS},
    }


def environment_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of N rollouts in an environment of several turns; its counters are means over the rollouts."""
    ends = Counter(r.ended for r in rollouts)
    names = dict.fromkeys(
        ["tool_calls", "tool_errors", *sorted({name for r in rollouts for name in r.counts})]
    )
    return {
        "env/turns": fmean(len(r.turns) for r in rollouts),
        **{f"env/{name}": fmean(r.counts.get(name, 0.0) for r in rollouts) for name in names},
        **{f"env/ended/{end}": ends[end] / len(rollouts) for end in get_args(End)},
        "tokens/context": fmean(r.context for r in rollouts),
    }


def thinking_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of N rollouts whose reasoning has a budget of its own."""
    return {"thinking/forced": fmean(r.forced for r in rollouts)}


def group_metrics(groups: Sequence[int], good: Sequence[bool]) -> dict[str, float]:
    """Shares of groups whose members are all good, partly good, all bad. Only mixed groups teach a group loss."""
    outcomes: dict[int, set[bool]] = {}
    for group, is_good in zip(groups, good, strict=True):
        outcomes.setdefault(group, set()).add(bool(is_good))
    counts = Counter(frozenset(members) for members in outcomes.values())
    return {
        "by_group/frac_all_good": counts[frozenset({True})] / len(outcomes),
        "by_group/frac_mixed": counts[frozenset({True, False})] / len(outcomes),
        "by_group/frac_all_bad": counts[frozenset({False})] / len(outcomes),
    }


def evaluated_sets(names: Iterable[str]) -> dict[str, str]:
    """The evaluation sets in the names of logged metrics, each with the prefix of its metrics.

    {"": "eval/"} without `eval_data`, else {"math_500": "eval/math_500/", ...}.
    """
    whole = (name for name in names if name.startswith("eval/") and name.endswith("/reward_total"))
    prefixes = [name.removesuffix("reward_total") for name in whole]
    return {prefix.removeprefix("eval/").rstrip("/"): prefix for prefix in prefixes}


def update_metrics(stats: UpdateStats, learning_rate: float) -> dict[str, float]:
    """Metrics of one optimiser update."""
    return {
        "learning_rate": learning_rate,
        "loss": stats.loss,
        "grad_norm": stats.grad_norm,
        "skipped": float(not stats.stepped),
        "trust/admitted": fmean(stats.admitted),
        "trust/kl_mean": fmean(stats.sequence_kl),
        "trust/kl_max": max(stats.sequence_kl),
        "ratio/mean": stats.ratio_mean,
        "ratio/max": stats.ratio_max,
        "ratio/min": stats.ratio_min,
        **stats.metrics,
    }


def lag_metrics(rollouts: Sequence[Rollout], step: int) -> dict[str, float]:
    """How many updates old the policy was that sampled the rollouts of `step`."""
    lags = [step - 1 - r.version for r in rollouts]
    return {"lag/mean": fmean(lags), "lag/max": max(lags)}


def arrival_metrics(
    rollouts: Sequence[Rollout],
    step: int,
    dropped: Sequence[Rollout],
    waiting: Sequence[Rollout],
    in_flight: int,
) -> dict[str, float]:
    """Metrics of a step whose rollouts were trained as they arrived. waiting: finished, for a later step."""
    middle = median(r.length for r in rollouts)
    return {
        "lag/long": mean_of(step - 1 - r.version for r in rollouts if r.length > middle),
        "lag/in_flight": in_flight,
        "lag/dropped": len(dropped),
        "tokens/dropped": mean_of(r.length for r in dropped),
        "tokens/in_flight": sum(r.length for r in waiting),
    }


def mean_of(values: Iterable[float]) -> float:
    """The mean; NaN of nothing."""
    known = list(values)
    return fmean(known) if known else math.nan


def thinking_tokens(rollout: Rollout) -> float:
    """The reasoning's tokens in all turns, estimated from its share of each completion's characters.

    A reasoning that was closed by force is a turn of its own.
    """
    if rollout.forced:
        return float(len(rollout.turns[0].completion.tokens))
    return sum(
        len(turn.completion.tokens) * len(turn.parsed.thinking) / len(turn.parsed.raw)
        for turn in rollout.turns
        if turn.parsed.raw
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]
