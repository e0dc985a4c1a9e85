"""Collecting trajectories: what each turn is asked with, what ends a trajectory, and which samplers get what."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from environments.base import Environment, EnvironmentConfig
from rl import progress
from rl.collecting import roll_out
from rl.engines.base import Sampler, SamplingParams
from rl.errors import Stopped, UserError
from rl.evaluation.measures import within
from rl.rollouts import Completion, Parsed, Problem, Rollout
from rl.task import Task

STOP = 0
PROBLEMS = [Problem(str(n), "q" * (n + 1), "", "en", "test") for n in range(2)]


class Scripted(Sampler):
    """Writes tokens 1, 2, ... of a length that `lengths` gives for (trajectory's turn), then STOP; notes what it got."""

    def __init__(
        self, *lengths: int, concurrent: bool = False, fails: Callable[[list[int]], bool] = lambda _: False
    ):
        self.lengths, self.concurrent, self.fails = lengths, concurrent, fails
        self.asked: list[tuple[list[list[int]], int, SamplingParams]] = []

    def sample(self, prompts, n, params, arrived=None):
        self.asked.append(([list(prompt) for prompt in prompts], n, params))
        return [
            [] if self.fails(list(prompt)) else [self.completion(prompt, params.limit(p)) for _ in range(n)]
            for p, prompt in enumerate(prompts)
        ]

    def completion(self, prompt, limit) -> Completion:
        turn = sum(token == STOP for token in prompt)
        tokens = [*range(1, self.lengths[turn]), STOP]
        stopped = len(tokens) <= limit
        return Completion(tokens[:limit], [-1.0] * len(tokens[:limit]), "stop" if stopped else "length")


RENDERER = SimpleNamespace(
    stop_ids=frozenset({STOP}),
    calls=lambda parsed: [],
    prompt=lambda messages: [100] * len(messages[-1]["content"]),
    continuation=lambda messages: [200] * sum(len(message["content"]) for message in messages),
    cut=lambda completion: completion,
    parse=lambda completion: Parsed("", "", str(len(completion.tokens)), "stop"),
)


class Echo(Environment):
    """Answers the first `answers` turns with `text`, or calls it."""

    closed = 0

    def __init__(self, config: EchoConfig) -> None:
        super().__init__()
        self.answers, self.text, self.config = config.answers, config.text, config

    def start(self, problem):
        if problem.id == self.config.silent:
            self.answers = 0
        return self.config.added

    def step(self, parsed):
        self.count("tool_calls")
        if callable(self.text):
            self.text()
        return [{"role": "tool", "content": self.text}] if self.counts["tool_calls"] <= self.answers else None

    def reward(self):
        return self.config.earned

    def close(self):
        Echo.closed += 1


@dataclass(frozen=True, kw_only=True)
class EchoConfig(EnvironmentConfig):
    name: str = "echo"
    answers: int = 1
    text: object = "abc"
    added: str = ""
    earned: float | None = None
    silent: str = ""  # the id of a problem without answers

    def make(self, find_calls):
        return Echo(self)


def collected(
    sampler: Sampler, budget: int = 100, n: int = 1, context: int | None = None, **options
) -> list[Rollout]:
    task = Task(
        lambda problem: [{"role": "user", "content": problem.question}],
        RENDERER,
        EchoConfig(**options),
        context,
    )
    params = SamplingParams(budget, 1.0, frozenset({STOP}), seed=3)
    before = Echo.closed
    try:
        return roll_out(sampler, task, PROBLEMS, n, params)
    finally:
        assert Echo.closed == before + n * len(PROBLEMS)


def test_a_history_is_appended_to_and_each_turn_gets_what_is_left():
    """Prompts of 1 and 2 tokens; turns of 4 and 3 sampled tokens around 3 of the environment."""
    sampler = Scripted(4, 3)
    rollouts = collected(sampler, budget=9)
    first, second = sampler.asked
    assert first[0] == [[100], [100, 100]] and list(first[2].limits) == [9, 9]
    assert second[0] == [[100, 1, 2, 3, STOP, 200, 200, 200], [100, 100, 1, 2, 3, STOP, 200, 200, 200]]
    assert list(second[2].limits) == [5, 5] and second[2].max_tokens == 5
    turns = rollouts[1].turns
    assert [turn.prompt_tokens for turn in turns] == [[100, 100], [200] * 3]
    assert [turn.completion.tokens for turn in turns] == [[1, 2, 3, STOP], [1, 2, STOP]]
    assert turns[0].messages == [] and turns[1].messages == [{"role": "tool", "content": "abc"}]
    assert rollouts[1].parsed is turns[1].parsed and rollouts[1].ended == "answered"
    assert rollouts[1].counts == {"tool_calls": 2.0} and rollouts[1].earned is None


@pytest.mark.parametrize(
    ("options", "lengths", "budget", "context", "ended", "turns"),
    [
        ({}, (4, 3), 6, None, "budget", 2),  # 4 tokens, then 2 of 3
        ({}, (4, 3), 4, None, "budget", 1),  # nothing left for a second turn
        ({"answers": 0}, (4,), 4, None, "answered", 1),  # answered with its last token
        ({"answers": 9, "max_turns": 2}, (4, 3), 99, None, "turns", 2),
        ({}, (4, 3), 99, 9, "context", 1),  # a prompt of 2, 4 sampled, 3 shown: no room for one more
        ({}, (4, 3), 99, 10, "context", 2),  # room for one
        ({"max_context": 5}, (4, 3), 99, 10, "context", 1),  # the smaller of the two
    ],
)
def test_what_ends_a_trajectory(options, lengths, budget, context, ended, turns):
    last = collected(Scripted(*lengths), budget=budget, context=context, **options)[1]
    assert (last.ended, len(last.turns), last.truncated) == (ended, turns, ended == "budget")


def test_members_of_a_group_share_their_first_prompt_and_have_their_own_random_numbers_after_it():
    sampler = Scripted(4, 3)
    collected(sampler, n=3)
    first, second = sampler.asked
    assert (len(first[0]), first[1], first[2].seeds) == (2, 3, ())
    assert (len(second[0]), second[1], len(set(second[2].seeds))) == (6, 1, 6)


def test_a_trajectorys_random_numbers_do_not_depend_on_the_others():
    """The second problem's seed is the same whether or not the first trajectory is still alive."""
    both, alone = Scripted(4, 3), Scripted(4, 3)
    collected(both)
    collected(alone, silent="0")
    assert alone.asked[1][2].seeds == both.asked[1][2].seeds[1:] and len(alone.asked[1][2].seeds) == 1


def test_text_of_the_environment_ends_the_question():
    sampler = Scripted(4)
    collected(sampler, answers=0, added="++")
    assert sampler.asked[0][0] == [[100] * 3, [100] * 4]


def test_an_environment_that_fails_ends_its_trajectory_only(caplog):
    def fail() -> None:
        raise KeyError("lost")

    rollouts = collected(Scripted(4), text=fail, earned=0.5)
    assert [(r.ended, r.earned) for r in rollouts] == [("error", None)] * 2
    assert "environment=echo: failed on problem 0: KeyError: 'lost'" in caplog.text


def test_a_server_that_is_gone_ends_the_run():
    def gone() -> None:
        raise Stopped("the server is down")

    with pytest.raises(Stopped, match="the server is down"):
        collected(Scripted(4), text=gone)


def test_a_prompt_that_fills_the_context_is_an_error():
    with pytest.raises(UserError) as limited:
        collected(Scripted(4), max_context=2)
    expected = "environment.max_context=2: the prompt of problem 1 has 2 tokens, and the context holds 2; type a larger one"
    assert expected in str(limited.value)


def test_a_text_of_the_environment_that_fills_the_models_context_is_named():
    with pytest.raises(UserError) as limited:
        collected(Scripted(4), context=11, added="x" * 9)
    assert "model: the prompt of problem 1 has 11 tokens, with 9 characters from the environment" in str(
        limited.value
    )
    assert "let the environment add less" in str(limited.value) and "a larger one" not in str(limited.value)


def test_an_environment_that_calls_exit_ends_its_trajectory_only(caplog):
    def leave():
        raise SystemExit(3)

    rollouts = collected(Scripted(4, 3), text=leave)
    assert [rollout.ended for rollout in rollouts] == ["error", "error"]
    assert "SystemExit: 3" in caplog.text


def test_a_concurrent_sampler_gets_each_trajectory_alone():
    sampler = Scripted(4, 3, concurrent=True)
    rollouts = collected(sampler, n=2, earned=1.0)
    assert sorted(len(prompts) for prompts, *_ in sampler.asked) == [1] * 8
    assert len({params.seeds[0] for *_, params in sampler.asked}) == 8
    assert [(r.group, r.ended, r.earned) for r in rollouts] == [(g, "answered", 1.0) for g in (0, 0, 1, 1)]


def test_a_group_with_a_failed_trajectory_is_dropped():
    lost = threading.Lock()  # taken once: one of the first problem's two trajectories

    def fails(prompt: list[int]) -> bool:
        return len(prompt) == 8 and lost.acquire(blocking=False)

    rollouts = collected(Scripted(4, 3, concurrent=True, fails=fails), n=2)
    assert [r.group for r in rollouts] == [1, 1]
    with pytest.raises(Stopped, match="no completions for any of the 2 problems"):
        collected(Scripted(4, concurrent=True, fails=lambda _: True))


@pytest.mark.parametrize("budget", range(1, 15))
def test_a_budget_read_off_is_that_budget_sampled(budget):
    """Turns of 4, 3 and 5 tokens, then an answer, or the most turns: prefixes say what a smaller budget would give."""
    for options in ({"answers": 2}, {"answers": 9, "max_turns": 3}, {"answers": 9, "max_context": 17}):
        wide = collected(Scripted(4, 3, 5), budget=14, **options)
        sampled = collected(Scripted(4, 3, 5), budget=budget, **options)
        for read, own in zip(within(wide, budget, RENDERER), sampled, strict=True):
            assert (read.turns, read.ended) == (own.turns, own.ended)


def test_what_an_unfinished_trajectory_would_have_earned_is_nothing():
    wide = collected(Scripted(4, 3), earned=0.7)
    assert [r.earned for r in within(wide, 7, RENDERER)] == [0.7, 0.7]
    assert [r.earned for r in within(wide, 6, RENDERER)] == [0.0, 0.0]


def test_progress_counts_the_trajectories_that_have_ended():
    seen = []

    class Watched(Scripted):
        def sample(self, *arguments):
            seen.append(progress.state().text.partition(",")[0])
            return super().sample(*arguments)

    collected(Watched(2, 2), silent="0")  # problem 0 ends with its first turn
    assert seen == ["collecting 0/2 trajectories", "collecting 1/2 trajectories"]
