"""The values that flow through one step: problem, completion, turn, rollout, training row.

Shapes in docstrings: N rollouts, P problems, G rollouts per problem (the group), T tokens of a completion or response.
This module imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Message = dict[str, str]  # {"role": "system" | "user" | "assistant" | "tool", "content": text}
StopReason = Literal["stop", "length"]
Ended = Literal["stop", "eos", "length"]  # a completion
End = Literal["answered", "budget", "turns", "context", "error"]  # a rollout


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
    unfinished: the reasoning was opened and not closed.
    """

    thinking: str
    text: str
    raw: str
    ended: Ended
    prefilled: bool = False
    unfinished: bool = False


@dataclass(frozen=True)
class Turn:
    """One completion of a rollout, and what the model was shown before it.

    prompt_tokens: what is new since the turn before: the rendered question, or the environment's messages and the header
    of this turn. messages: the environment's messages that `prompt_tokens` renders; [] in the first turn.
    forced: `prompt_tokens` is the close tag of a reasoning that reached `thinking_tokens`; `parsed` is then of both turns
    together, with that tag.
    """

    prompt_tokens: list[int]
    completion: Completion
    parsed: Parsed
    messages: list[Message] = field(default_factory=list)
    forced: bool = False


@dataclass
class Rollout:
    """One attempt at one problem: one turn, or several with an environment's messages or a forced close tag in between.

    `group` numbers the problem within its batch (0..P-1); its G members share a problem. `ended`: the model `answered`;
    the token `budget`, the most `turns` or the `context` was used up; or the environment failed (`error`).
    `counts`: the environment's counters. `earned`: the environment's own reward, if it has one.
    Later stages fill in the rest: `rewards` holds each reward by name before weighting; `reward` is the weighted sum.
    `version`: how many steps the policy that sampled it had been trained; matters when an engine samples ahead.
    """

    problem: Problem
    group: int
    turns: list[Turn]
    ended: End
    counts: dict[str, float] = field(default_factory=dict)
    earned: float | None = None
    verdict: Any = None  # rewards.grading.Verdict, set by rewards.RewardSet.score
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0
    version: int = 0
    vote: int | None = None  # the answer it votes for in maj@k, set by rewards.RewardSet.vote

    @property
    def completion(self) -> Completion:
        """The sampled tokens of all turns as one completion, without what the model was shown in between."""
        if len(self.turns) == 1:
            return self.turns[0].completion
        parts = [turn.completion for turn in self.turns]
        entropies = [value for part in parts for value in part.entropies or ()]
        return Completion(
            [token for part in parts for token in part.tokens],
            [value for part in parts for value in part.logprobs],
            parts[-1].stop_reason,
            None if parts[0].entropies is None else entropies,
        )

    @property
    def length(self) -> int:
        """T_n: the sampled tokens of all turns; thinking, answer and stop tokens alike."""
        return sum(len(turn.completion.tokens) for turn in self.turns)

    @property
    def context(self) -> int:
        """All tokens that the model read or wrote."""
        return self.length + sum(len(turn.prompt_tokens) for turn in self.turns)

    @property
    def truncated(self) -> bool:
        """Whether the token budget cut it."""
        return self.ended == "budget"

    @property
    def forced(self) -> bool:
        """Whether its reasoning was closed by force, at `thinking_tokens`."""
        return self.turns[-1].forced

    @property
    def parsed(self) -> Parsed:
        """What is graded and shown as the answer: the last turn, after a forced close tag with its reasoning."""
        return self.turns[-1].parsed

    @property
    def prompt_tokens(self) -> list[int]:
        """The rendered question."""
        return self.turns[0].prompt_tokens


def conversation(rollout: Rollout) -> list[dict[str, Any]]:
    """The model's turns and the environment's messages between them, as samples.jsonl has them."""
    messages: list[dict[str, Any]] = []
    for turn in rollout.turns:
        messages += [{"role": message["role"], "text": message["content"]} for message in turn.messages]
        own = {"thinking": turn.parsed.thinking, "text": turn.parsed.text}
        messages.append({"role": "assistant", **own, "tokens": len(turn.completion.tokens)})
    return messages


@dataclass(frozen=True)
class TrainingRow:
    """One rollout as the learner sees it: everything after the question is its response of T tokens.

    prompt_tokens, response_tokens [T]: joined as ids, never re-encoded. mask [T]: True at sampled tokens, False at what
    the environment wrote and at a forced close tag: attention reads those tokens, but the loss does not.
    behavior_logprobs [T]: the sampler's log-probabilities; 0 where `mask` is False.
    coefficients [T]: each token's weight in the loss; all normalisation lives here (see rl/losses/base.py).
    kl_weight: weight of the KL penalty at each token; 0 without one. reference_logprobs [T]: the reference policy's
    log-probabilities, where there is a KL penalty.
    """

    prompt_tokens: Sequence[int]
    response_tokens: Sequence[int]
    mask: Sequence[bool]
    behavior_logprobs: Sequence[float]
    coefficients: Sequence[float]
    kl_weight: float = 0.0
    reference_logprobs: Sequence[float] = ()

    @property
    def length(self) -> int:
        """Tokens of prompt and response together."""
        return len(self.prompt_tokens) + len(self.response_tokens)


def training_row(rollout: Rollout, coefficients: Sequence[float], kl_weight: float = 0.0) -> TrainingRow:
    """The rollout as a row. coefficients: one for each sampled token."""
    tokens: list[int] = []
    mask: list[bool] = []
    for number, turn in enumerate(rollout.turns):
        shown = turn.prompt_tokens if number else []  # the first turn's prompt is the row's
        tokens += [*shown, *turn.completion.tokens]
        mask += [False] * len(shown) + [True] * len(turn.completion.tokens)
    return TrainingRow(
        rollout.prompt_tokens,
        tokens,
        mask,
        scattered(rollout.completion.logprobs, mask),
        scattered(coefficients, mask),
        kl_weight,
    )


def scattered(values: Sequence[float], mask: Sequence[bool]) -> list[float]:
    """[T] the values of the sampled tokens at their places, 0 where `mask` is False."""
    own = iter(values)
    return [next(own) if sampled else 0.0 for sampled in mask]


def cut_at(completion: Completion, budget: int) -> Completion:
    """The first `budget` tokens; a completion that is not longer is unchanged."""
    if len(completion.tokens) <= budget:
        return completion
    entropies = completion.entropies
    return replace(
        completion,
        tokens=completion.tokens[:budget],
        logprobs=completion.logprobs[:budget],
        stop_reason="length",
        entropies=None if entropies is None else entropies[:budget],
    )
