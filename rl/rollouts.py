"""The values that flow through one step: problem, completion, rollout, training row.

Shapes in docstrings: N rollouts, P problems, G completions per problem (the group), T completion tokens.
This module imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}
StopReason = Literal["stop", "length"]
Ended = Literal["stop", "eos", "length"]


@dataclass(frozen=True)
class Problem:
    """One question with its gold answer.

    `id` is unique in its data set; `answer` is canonical (a plain number such as ``-1234.5``, or LaTeX);
    `language` is ``en`` or ``ja``; `source` names the data set; `steps` counts the gold solution's steps (0: unknown).
    `extra` holds the row's `data.columns` by name, for rewards.
    """

    id: str
    question: str
    answer: str
    language: str
    source: str
    steps: int = 0
    extra: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Completion:
    """What the sampler produced for one prompt.

    tokens: [T] sampled ids, the stop token included.
    logprobs: [T] log-probability (nats, float32) of each token under the distribution it was drawn from.
    stop_reason: ``stop`` (a stop token was sampled) or ``length`` (cut at the token budget).
    entropies: [T] entropy (nats) of the distribution each token was drawn from, if the loss needs it.
    """

    tokens: list[int]
    logprobs: list[float]
    stop_reason: StopReason
    entropies: list[float] | None = None


@dataclass(frozen=True)
class Parsed:
    """A completion split at the model's own think tokens.

    thinking: the reasoning, tags removed ("" when there is none).
    text: what follows the reasoning ("" while the reasoning is unfinished), stop token removed.
    raw: the whole completion as text, think tags visible, stop token removed.
    ended: ``stop`` (the turn's end token), ``eos`` (the model's end-of-text token), ``length`` (cut by the budget).
    prefilled: the prompt ended with the opening think tag, so `raw` starts inside the reasoning.
    """

    thinking: str
    text: str
    raw: str
    ended: Ended
    prefilled: bool = False


@dataclass
class Rollout:
    """One completion of one problem. Later stages fill in the verdict, rewards and vote.

    `group` numbers the problem within its batch (0..P-1); its G members share a prompt.
    `rewards` holds each reward by name before weighting; `reward` is the weighted sum. `version`: how many steps the
    policy that sampled it had been trained; matters when an engine samples ahead.
    """

    problem: Problem
    group: int
    prompt_tokens: list[int]
    completion: Completion
    parsed: Parsed
    verdict: Any = None  # rewards.grading.Verdict, set by rewards.RewardSet.score
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0
    version: int = 0
    vote: int | None = None  # the answer it votes for in maj@k, set by rewards.RewardSet.vote


@dataclass(frozen=True)
class TrainingRow:
    """One rollout as the learner sees it.

    prompt_tokens, completion_tokens [T]: joined as ids, never re-encoded.
    behavior_logprobs [T]: the sampler's log-probabilities.
    coefficients [T]: each token's weight in the loss; all normalisation lives here (see rl/losses/base.py).
    kl_weight: weight of the KL penalty at each token; 0 without one. reference_logprobs [T]: the reference policy's
    log-probabilities, where there is a KL penalty.
    """

    prompt_tokens: Sequence[int]
    completion_tokens: Sequence[int]
    behavior_logprobs: Sequence[float]
    coefficients: Sequence[float]
    kl_weight: float = 0.0
    reference_logprobs: Sequence[float] = ()
