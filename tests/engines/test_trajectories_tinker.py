"""Trajectories of several turns on a Tinker service: each on its own, all at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from environments.base import Environment
from rl.engines.base import SamplingParams
from rl.engines.prices import Prices, Tokens
from rl.engines.tinker.config import TinkerEngineConfig
from rl.engines.tinker.ledger import Ledger
from rl.engines.tinker.sampler import TinkerSampler
from rl.errors import Stopped
from rl.rollouts import Parsed, Problem
from rl.task import Task
from rl.trajectories import sample_trajectories

pytest.importorskip("tinker")

PROBLEMS = [Problem(str(n), "", "", "en", "test") for n in range(3)]
STOP = 0


class Service:
    """Answers with tokens 5, STOP. The first `together` requests are answered when all of them have arrived."""

    def __init__(self, together: int) -> None:
        self.barrier, self.asked, self.lock = threading.Barrier(together), [], threading.Lock()

    def sample(self, prompt, num_samples, sampling_params):
        with self.lock:
            self.asked.append((prompt.to_ints(), sampling_params.max_tokens, sampling_params.seed))
            first = len(self.asked) <= self.barrier.parties
        answer: Future = Future()

        def respond() -> None:
            if first:
                self.barrier.wait(60)
            sequence = SimpleNamespace(tokens=[5, STOP], logprobs=[-1.0, -1.0], stop_reason="stop")
            answer.set_result(SimpleNamespace(sequences=[sequence] * num_samples))

        threading.Thread(target=respond, daemon=True).start()
        return answer


class OneMore(Environment):
    """Answers the first turn."""

    def step(self, parsed):
        self.count("turns")
        return [{"role": "user", "content": "and?"}] if self.counts["turns"] == 1 else None


RENDERER = SimpleNamespace(
    calls=lambda parsed: [],
    prompt=lambda messages: [7, 8],
    continuation=lambda messages: [9],
    cut=lambda completion: completion,
    parse=lambda completion: Parsed("", "", "", "stop"),
)
ENVIRONMENT = SimpleNamespace(
    name="more", tools=[], max_context=None, max_turns=9, single_turn=False, make=lambda find_calls: OneMore()
)
TASK = Task(lambda problem: [{"role": "user", "content": "?"}], RENDERER, ENVIRONMENT)


def sampler_of(service: Service, ledger: Ledger) -> TinkerSampler:
    learner = SimpleNamespace(ledger=ledger, version=0, adapter=None)
    learner.service = SimpleNamespace(sampler=lambda adapter: service)
    return TinkerSampler(TinkerEngineConfig(), learner, passes=1)


def test_all_trajectories_are_under_way_at_once():
    """Six requests are answered only together; each trajectory then goes on with its own history, budget and seed."""
    service, ledger = Service(together=6), Ledger()
    params = SamplingParams(10, 1.0, frozenset({STOP}), seed=1)
    rollouts = sample_trajectories(sampler_of(service, ledger), TASK, PROBLEMS, 2, params)
    assert [rollout.group for rollout in rollouts] == [0, 0, 1, 1, 2, 2]
    assert all(len(rollout.turns) == 2 and rollout.ended == "answered" for rollout in rollouts)
    asked = sorted((prompt, budget) for prompt, budget, _ in service.asked)
    assert asked == [([7, 8], 10)] * 6 + [([7, 8, 5, STOP, 9], 8)] * 6
    assert len({seed for *_, seed in service.asked}) == 12
    assert ledger.tokens == Tokens(prefill=6 * (2 + 5), sample=6 * (2 + 2))


def test_requests_of_all_trajectories_count_towards_the_price_limit():
    """Each of six first requests can cost 2 + 10 tokens: 60 allow five at a time."""
    ledger = Ledger(Prices(prefill=1, sample=1, train=1), max_usd=65e-6)
    params = SamplingParams(10, 1.0, frozenset({STOP}), seed=1)
    with pytest.raises(Stopped, match=r"engine\.max_usd"):
        sample_trajectories(sampler_of(Service(together=5), ledger), TASK, PROBLEMS, 2, params)
