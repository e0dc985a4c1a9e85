"""Trajectories: turns of the model and an environment's answers in between, until each has ended.

A history is only ever appended to, so the learner trains on exactly the tokens that were sampled and shown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from environments.base import Environment
from rl import progress, signals
from rl.engines.base import Sampler, SamplingParams
from rl.errors import Stopped, UserError, one_line
from rl.rollouts import Completion, End, Message, Problem, Rollout, Turn
from rl.seeds import derived_seed
from rl.task import Task

log = logging.getLogger("tanka")

MOST_THREADS = 32  # tools that run at the same time
MOST_REQUESTS = 256  # trajectories that a remote sampler works on at the same time
CHECK_SECONDS = 0.2  # signal-check interval while tools run


@dataclass
class Trajectory:
    """A rollout that is being collected.

    number: in its batch. history: all tokens so far, the prompt of the next turn. read: how many of them belong to
    earlier turns. messages: what the others render. failed: its sampling failed, so it cannot be scored.
    """

    problem: Problem
    group: int
    number: int
    environment: Environment
    history: list[int] = field(default_factory=list)
    read: int = 0
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    sampled: int = 0
    ended: End | None = None
    earned: float | None = None
    failed: bool = False

    def append(self, tokens: Sequence[int], messages: list[Message]) -> None:
        """Shows the model new tokens."""
        self.read, self.messages = len(self.history), messages
        self.history += tokens

    def take(self, completion: Completion, turn: Turn) -> None:
        """Adds the model's turn."""
        self.turns.append(turn)
        self.history += completion.tokens
        self.sampled += len(completion.tokens)

    def rollout(self) -> Rollout:
        assert self.ended is not None
        counts = {name: float(value) for name, value in self.environment.counts.items()}
        return Rollout(self.problem, self.group, self.turns, self.ended, counts, self.earned)


def sample_trajectories(
    sampler: Sampler, task: Task, problems: Sequence[Problem], n: int, params: SamplingParams
) -> list[Rollout]:
    """[P x n] ungraded rollouts, grouped by problem; none for a problem with a rollout whose sampling failed.

    params.max_tokens: the budget of a whole trajectory, in sampled tokens. A sampler gets all live trajectories together,
    turn after turn; a `concurrent` one gets each trajectory on its own.
    """
    find_calls = task.renderer.calls
    trajectories = [
        Trajectory(problem, group, group * n + i, task.environment.make(find_calls))
        for group, problem in enumerate(problems)
        for i in range(n)
    ]

    def ended() -> int:
        return sum(trajectory.ended is not None or trajectory.failed for trajectory in trajectories)

    stop = Event()
    most = MOST_REQUESTS if sampler.concurrent else MOST_THREADS
    sampler.publish()  # before several threads would do so at once
    try:
        counted = progress.task("collecting", len(trajectories), "trajectories", ended)
        with counted, threads(most, stop) as each, sampler.conversations():
            if sampler.concurrent:
                each(lambda one: Walk(sampler, task, params, n, directly, stop).run([one]), trajectories)
            else:
                Walk(sampler, task, params, n, each, stop).run(trajectories)
    finally:
        for trajectory in trajectories:
            trajectory.environment.close()
    if any(trajectory.earned is not None for trajectory in trajectories):
        for trajectory in trajectories:
            if trajectory.ended == "error":
                trajectory.earned = 0.0
    failed = {trajectory.group for trajectory in trajectories if trajectory.failed}
    return [trajectory.rollout() for trajectory in trajectories if trajectory.group not in failed]


Each = Callable[[Callable[[Trajectory], Any], Sequence[Trajectory]], list[Any]]


def directly(function: Callable[[Trajectory], Any], trajectories: Sequence[Trajectory]) -> list[Any]:
    """An `Each` in the caller's own thread."""
    return [function(trajectory) for trajectory in trajectories]


@contextmanager
def threads(most: int, stop: Event) -> Iterator[Each]:
    """An `Each` in threads. After a signal or an exception `stop` is set, and calls that have not begun are dropped."""
    pool = ThreadPoolExecutor(most, "environment")

    def each(function: Callable[[Trajectory], Any], trajectories: Sequence[Trajectory]) -> list[Any]:
        futures = [pool.submit(function, trajectory) for trajectory in trajectories]
        waiting: set[Future[Any]] = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=CHECK_SECONDS)
            signals.check()
            for future in done:
                future.result()
        return [future.result() for future in futures]

    try:
        yield each
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Walk:
    """Takes trajectories from their first turn to their end.

    each: runs a function for several trajectories. stop: set when another of the batch failed, so that none goes on.
    """

    sampler: Sampler
    task: Task
    params: SamplingParams
    n: int
    each: Each
    stop: Event = field(default_factory=Event)

    def run(self, trajectories: Sequence[Trajectory]) -> None:
        self.each(self.start, trajectories)
        live = [one for one in trajectories if one.ended is None]
        number = 1
        while live and not self.stop.is_set():
            self.sample(live, number)
            stepping = [one for one in live if one.ended is None and not one.failed]
            self.each(self.step, stepping)
            live = [one for one in stepping if one.ended is None]
            number += 1
        self.each(self.finish, [one for one in trajectories if one.ended not in (None, "error")])

    def start(self, one: Trajectory) -> None:
        """Renders the question, with what the environment adds to it."""
        try:
            added = one.environment.start(one.problem)
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # the environment may be a user's, and may call exit()
            raise Stopped(
                f"environment={self.name}: start failed on problem {one.problem.id}: {one_line(error)}"
            ) from error
        one.append(self.task.prompt(one.problem, added), [])
        if len(one.history) >= self.task.max_context:
            raise UserError(self.too_long(one, added))

    def too_long(self, one: Trajectory, added: str) -> str:
        """What to say of a prompt that leaves no room for an answer."""
        limit, most = self.task.environment.max_context, self.task.max_context
        what = f"environment.max_context={limit}" if limit == most else "model"
        adds = f", with {len(added):,} characters from the environment" if added else ""
        change = "a larger one, or " if limit == most else ""
        return (
            f"{what}: the prompt of problem {one.problem.id} has {len(one.history)} tokens{adds}, and the context holds"
            f" {most}; type {change}a smaller data.max_prompt_tokens{', or let the environment add less' * bool(added)}"
        )

    def sample(self, live: Sequence[Trajectory], number: int) -> None:
        """Samples the next turn of each live trajectory: with what is left of its budget and of its context."""
        # Members of a group start with the same prompt, which a sampler then reads once.
        members = self.n if number == 1 and self.share_prompts(live) else 1
        asked = live[::members]
        limits = [int(min(self.left(one), self.task.max_context - len(one.history))) for one in asked]
        params = replace(self.params, max_tokens=max(limits), limits=limits)
        if members == 1:
            seeds = [derived_seed(self.params.seed, f"turn {number}", one.number) for one in asked]
            params = replace(params, seeds=seeds)
        sampled = self.sampler.sample([one.history for one in asked], members, params)
        for group, completions in enumerate(sampled):
            for i, one in enumerate(live[group * members : (group + 1) * members]):
                if completions:
                    self.take(one, completions[i])
                else:
                    one.failed = True

    def share_prompts(self, live: Sequence[Trajectory]) -> bool:
        """Whether these are complete groups whose members have the same prompt."""
        groups = [live[start : start + self.n] for start in range(0, len(live), self.n)]
        return not self.sampler.concurrent and all(
            len(group) == self.n
            and all((one.group, one.history) == (group[0].group, group[0].history) for one in group)
            for group in groups
        )

    @property
    def name(self) -> str:
        return self.task.environment.name

    def left(self, one: Trajectory) -> int:
        """What is left of the token budget."""
        return self.params.max_tokens - one.sampled

    def take(self, one: Trajectory, completion: Completion) -> None:
        completion = self.task.renderer.cut(completion)
        new = one.history[one.read :]
        one.take(completion, Turn(new, completion, self.task.renderer.parse(completion), one.messages))
        if completion.stop_reason == "length":
            one.ended = "budget" if self.left(one) == 0 else "context"

    def step(self, one: Trajectory) -> None:
        """Shows the model's turn to the environment, and its answer to the model if there is room for another turn."""
        answer = self.guarded(one, lambda: one.environment.step(one.turns[-1].parsed))
        if one.ended:
            return
        if answer is None:
            one.ended = "answered"
        elif self.left(one) == 0:
            one.ended = "budget"
        elif len(one.turns) >= self.task.environment.max_turns:
            one.ended = "turns"
        else:
            tokens = self.task.renderer.continuation(answer)
            if len(one.history) + len(tokens) >= self.task.max_context:
                one.ended = "context"
            else:
                one.append(tokens, answer)

    def finish(self, one: Trajectory) -> None:
        one.earned = self.guarded(one, one.environment.reward)

    def guarded(self, one: Trajectory, call: Callable[[], Any]) -> Any:
        """What an environment's method returns; None, and the end of the trajectory, if it fails.

        A UserError, such as one for a server that is gone, ends the run.
        """
        try:
            return call()
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # the environment may be a user's, and may call exit()
            log.warning(
                "environment=%s: failed on problem %s: %s", self.name, one.problem.id, one_line(error)
            )
            one.ended = "error"
            return None
