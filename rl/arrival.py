"""`engine.collect=arrival`: rollouts are always being sampled, and the learner takes the next batch of finished ones.

The asynchronous pipeline of FlashREINFORCE. Groups (a problem with its completions) are numbered by the order of the
problems; threads sample them, and a batch is the first groups that finished, whatever their numbers. A group that is too old
when it is taken is dropped and counted. Which groups were trained or dropped is in arrivals.jsonl: a resumed run asks for all
others again, so that nothing is trained twice, and nothing is skipped without a count.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rl import progress, signals
from rl.engines.base import Arrived, PendingCompletions, Sampler, SamplingParams
from rl.errors import Stopped
from rl.metrics import arrival_metrics
from rl.rollouts import Completion, Problem, Rollout
from rl.storage.jsonl import continue_jsonl, read_jsonl, write_row

log = logging.getLogger("tanka")

CHECK_SECONDS = 0.2  # signal-check interval while waiting for rollouts
CLOSE_SECONDS = 5.0  # how long an ending run waits for calls that are still sampling


@dataclass(frozen=True)
class Group:
    """A problem's finished rollouts; [] if their sampling failed.

    number: the problem's place in the order of the problems. version: how many steps were trained when its sampling began.
    budget: the token budget of its rollouts.
    """

    number: int
    version: int
    budget: int
    rollouts: list[Rollout]


# The G rollouts of a group, from its number and problem, and their token budget.
SampleGroup = Callable[[int, Problem], tuple[list[Rollout], int]]


class Arrivals:
    """The groups that are being sampled, and those that wait to be trained.

    path: of arrivals.jsonl; lines after step `done` are removed. problem: the problem of a number. size: groups of a batch.
    going: groups that are sampled at the same time. Room: at most `max_lag + 1` batches are sampled, waiting or being
    trained, so that a group is too old only if others overtook it; and no more groups than the run still needs.
    """

    def __init__(
        self,
        path: Path,
        done: int,
        problem: Callable[[int], Problem],
        sample: SampleGroup,
        *,
        size: int,
        group_size: int,
        going: int,
        max_lag: int,
        total_steps: int,
    ) -> None:
        self.problem, self.sample = problem, sample
        self.size, self.group_size, self.max_lag, self.total_steps = size, group_size, max_lag, total_steps
        self.file = continue_jsonl(path, done)
        settled = settled_groups(path, done)
        self.numbers = (number for number in itertools.count() if number not in settled)
        self.version = done
        self.open = 0  # groups that were asked for and are neither trained nor dropped yet
        self.finished: deque[Group] = deque()
        self.taken: list[Group] = []  # these three: of the current step
        self.dropped: list[Group] = []
        self.failed: list[Group] = []
        self.error: BaseException | None = None
        self.closed = threading.Event()
        self.changed = threading.Condition()  # guards everything above
        self.threads = [
            threading.Thread(target=self._work, name=f"arrival {i}", daemon=True) for i in range(going)
        ]

    def take(self, step: int) -> tuple[list[Rollout], int]:
        """[P x G] rollouts of the first P groups that finished, grouped by problem, and the largest of their token budgets.

        Called after the weights of step - 1 were published. Raises what a thread raised; Stopped when as many groups as a
        batch has failed in a row.
        """
        self._begin(step)
        failed_in_a_row = 0
        with progress.task("collecting", self.size * self.group_size, "rollouts") as task:
            while len(self.taken) < self.size:
                group = self._arrived()
                failed_in_a_row = 0 if group.rollouts else failed_in_a_row + 1
                if failed_in_a_row == self.size:
                    raise Stopped(
                        f"no completions for {self.size} problems in a row; see the log for the reasons"
                    )
                if group.rollouts and self.version - group.version <= self.max_lag:
                    self.taken.append(group)
                    task.done += len(group.rollouts)
                    task.tokens += sum(rollout.length for rollout in group.rollouts)
                else:
                    self._give_up(group)
        return batch_of(self.taken), max(group.budget for group in self.taken)

    def record(self, step: int) -> None:
        """Writes which groups a trained step used up."""
        kinds = {"trained": self.taken, "dropped": self.dropped, "failed": self.failed}
        write_row(self.file, {"step": step, **{k: [g.number for g in groups] for k, groups in kinds.items()}})
        self.file.flush()

    @property
    def discarded(self) -> list[Rollout]:
        """Rollouts that were too old for the current step."""
        return [rollout for group in self.dropped for rollout in group.rollouts]

    def metrics(self, rollouts: Sequence[Rollout], step: int) -> dict[str, float]:
        """What rl/metrics.py says of a step that was collected by arrival."""
        with self.changed:
            waiting = [rollout for group in self.finished for rollout in group.rollouts]
            in_flight = (self.open - len(self.taken)) * self.group_size
        return arrival_metrics(rollouts, step, self.discarded, waiting, in_flight)

    def close(self) -> None:
        """Ends the threads; a call that goes on for longer than CLOSE_SECONDS is left behind."""
        with self.changed:
            self.closed.set()
            self.changed.notify_all()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        self.file.close()

    def _begin(self, step: int) -> None:
        """The groups of the step before are trained: that makes room for new ones, from the weights just published."""
        with self.changed:
            self.version = step - 1
            self.open -= len(self.taken)
            self.taken, self.dropped, self.failed = [], [], []
            self.changed.notify_all()
        for thread in self.threads:
            if thread.ident is None:
                thread.start()

    def _arrived(self) -> Group:
        """The next finished group."""
        with self.changed:
            while True:
                signals.check()
                if self.error:
                    signals.check()  # a signal that a thread saw first is raised once, here
                    raise self.error
                if self.finished:
                    return self.finished.popleft()
                self.changed.wait(CHECK_SECONDS)

    def _give_up(self, group: Group) -> None:
        """Counts a group that cannot be trained, and makes room for another."""
        with self.changed:
            (self.dropped if group.rollouts else self.failed).append(group)
            self.open -= 1
            self.changed.notify_all()

    def _work(self) -> None:
        """A thread: samples one group after another."""
        try:
            while group := self._next():
                with self.changed:
                    self.finished.append(group)
                    self.changed.notify_all()
        except BaseException as error:  # the training thread raises it
            with self.changed:
                self.error = self.error or error
                self.changed.notify_all()

    def _next(self) -> Group | None:
        """Samples the next group as soon as there is room; None when the run ends."""
        with self.changed:
            self.changed.wait_for(lambda: self._ends() or self.open < self._room())
            if self._ends():
                return None
            self.open += 1
            number, version = next(self.numbers), self.version
            problem = self.problem(number)  # inside the lock: data is read by one thread at a time
        rollouts, budget = self.sample(number, problem)
        return Group(number, version, budget, rollouts)

    def _ends(self) -> bool:
        return self.closed.is_set() or self.error is not None

    def _room(self) -> int:
        """The most groups that may be open."""
        return min(self.max_lag + 1, self.total_steps - self.version) * self.size


class ThreadsSampler(Sampler):
    """An engine's sampler as the threads use it: they never publish weights, and begin no call once `closed` is set."""

    concurrent = True

    def __init__(self, sampler: Sampler, closed: threading.Event) -> None:
        self.sampler, self.closed = sampler, closed

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        self._require_open()
        return self.sampler.sample(prompts, n, params, arrived)

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> PendingCompletions:
        self._require_open()
        return self.sampler.submit(prompts, n, params, arrived)

    def _require_open(self) -> None:
        if self.closed.is_set():
            raise Stopped("the run ends")


def batch_of(groups: Sequence[Group]) -> list[Rollout]:
    """The rollouts of the groups, numbered 0, 1, 2, ... as they arrived, each with the version that it began with."""
    return [
        replace(rollout, group=place, version=group.version)
        for place, group in enumerate(groups)
        for rollout in group.rollouts
    ]


def settled_groups(path: Path, done: int) -> set[int]:
    """The numbers of the groups that steps up to `done` trained, dropped, or failed to sample."""
    rows = read_jsonl(path, done)
    if missing := sorted(set(range(1, done + 1)) - {row["step"] for row in rows}):
        log.warning(
            "%s lacks %d of %d steps (the first: %d); their problems are asked again", path.name, len(missing), done, missing[0]
        )  # fmt: skip
    return {number for row in rows for kind in ("trained", "dropped", "failed") for number in row[kind]}
