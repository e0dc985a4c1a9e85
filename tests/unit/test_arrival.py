"""Batches in the order of arrival: what is taken, dropped, asked again, and how threads end."""

from __future__ import annotations

import json
import logging
import math
import random
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.arrival import Arrivals, ThreadsSampler
from rl.errors import Stopped, UserError
from rl.metrics import arrival_metrics
from rl.rollouts import Completion, Parsed, Problem, Rollout
from rl.watchdog import Watchdog
from tests.helpers.rollouts import one_turn


def rollouts(number: int, tokens: int = 1, members: int = 2) -> list[Rollout]:
    completion, parsed = Completion([7] * tokens, [-1.0] * tokens, "stop"), Parsed("", "", "", "stop")
    return [
        one_turn(Problem(str(number), "", "", "en", "test"), 0, [1], completion, parsed)
        for _ in range(members)
    ]


class Sampling:
    """Groups finish when the test says so; `asked` are the numbers in the order in which their sampling began."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.changed = threading.Condition()
        self.results: dict[int, list[Rollout] | Exception] = {}
        self.over = False

    def __call__(self, number, problem):
        assert problem.id == str(number)
        with self.changed:
            self.asked.append(number)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.over or number in self.results, 10)
        result = self.results.get(number, [])
        if isinstance(result, Exception):
            raise result
        return result, 100 + number

    def finish(self, *numbers, result=None):
        """Finishes groups one after another, each when it was asked for."""
        for number in numbers:
            with self.changed:
                assert self.changed.wait_for(lambda number=number: number in self.asked, 10)
                self.results[number] = rollouts(number) if result is None else result
                self.changed.notify_all()
            time.sleep(0.02)  # it reaches the queue before the next one

    def end(self):
        """Lets all groups end."""
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.asked) >= count, 10), self.asked
        time.sleep(0.05)
        assert len(self.asked) == count, "more groups were asked for than there is room"


@pytest.fixture
def opened(tmp_path):
    """Makes `Arrivals` of batches of two groups, and closes them."""
    made = []

    def make(sampling, done=0, going=4, max_lag=1, total_steps=9, size=2):
        made.append(
            Arrivals(
                tmp_path / "arrivals.jsonl",
                done,
                lambda n: Problem(str(n), "", "", "en", "test"),
                sampling,
                size=size,
                group_size=2,
                going=going,
                max_lag=max_lag,
                total_steps=total_steps,
            )
        )
        return made[-1]

    yield make
    for arrivals in made:
        arrivals.closed.set()
        arrivals.sample.end()
        arrivals.close()


def ids(batch):
    return [int(rollout.problem.id) for rollout in batch]


def in_background(sampling, *numbers, **named):
    threading.Thread(target=sampling.finish, args=numbers, kwargs=named).start()


def test_a_batch_is_the_first_groups_that_finished(opened):
    arrivals = opened(sampling := Sampling())
    in_background(sampling, 3, 1, 2)
    batch, budget = arrivals.take(1)
    assert ids(batch) == [3, 3, 1, 1] and budget == 103
    assert [r.group for r in batch] == [0, 0, 1, 1] and {r.version for r in batch} == {0}
    arrivals.record(1)
    sampling.wait_for(4)  # two batches: one is being trained, one is in flight
    in_background(sampling, 0, 5)
    batch, budget = arrivals.take(2)
    assert ids(batch) == [2, 2, 0, 0] and budget == 102
    assert {r.version for r in batch} == {0}, "from the weights before step 1: one update old"
    assert json.loads(Path(arrivals.file.name).read_text()) == {
        "step": 1,
        "trained": [3, 1],
        "dropped": [],
        "failed": [],
    }


def test_a_group_that_others_overtook_is_dropped_and_counted(opened):
    """Group 0 began before step 1 and arrives for step 3, two updates later, where one is allowed."""
    arrivals = opened(sampling := Sampling())
    in_background(sampling, 1, 2, 3, 4)
    assert ids(arrivals.take(1)[0])[::2] == [1, 2]
    assert ids(arrivals.take(2)[0])[::2] == [3, 4]
    in_background(sampling, 0, 5, 6, 7)
    batch, _ = arrivals.take(3)
    assert ids(batch)[::2] == [5, 6] and [r.version for r in batch][::2] == [1, 2]
    assert ids(arrivals.discarded) == [0, 0]
    arrivals.record(3)
    assert json.loads(Path(arrivals.file.name).read_text().splitlines()[-1])["dropped"] == [0]
    found = arrivals.metrics(batch, 3)
    assert found["lag/dropped"] == 2 and found["tokens/dropped"] == 1


def test_no_more_groups_are_asked_for_than_the_run_still_needs(opened):
    arrivals = opened(sampling := Sampling(), total_steps=2, max_lag=4, going=8)
    in_background(sampling, 0, 1)
    arrivals.take(1)
    sampling.wait_for(4)
    in_background(sampling, 2, 3)
    arrivals.take(2)
    sampling.wait_for(4)


def test_with_a_waiting_batch_for_each_allowed_update_sampling_pauses(opened):
    """Two batches may be open with max_lag=1, however many threads there are."""
    arrivals = opened(sampling := Sampling(), going=8)
    in_background(sampling, 0, 1, 2, 3)
    arrivals.take(1)
    sampling.wait_for(4)
    arrivals.take(2)
    sampling.wait_for(6)


def test_a_failed_group_is_replaced_and_counted(opened):
    arrivals = opened(sampling := Sampling())
    in_background(sampling, 0, result=[])
    threading.Timer(0.1, lambda: sampling.finish(1, 4)).start()
    assert ids(arrivals.take(1)[0])[::2] == [1, 4]
    arrivals.record(1)
    assert json.loads(Path(arrivals.file.name).read_text())["failed"] == [0]


def test_a_batch_of_failures_in_a_row_stops_the_run(opened):
    arrivals = opened(sampling := Sampling())
    in_background(sampling, 0, 1, result=[])
    with pytest.raises(Stopped, match="no completions for 2 problems in a row"):
        arrivals.take(1)


@pytest.mark.parametrize("error", [UserError("the service says no"), Stopped("too dear"), ValueError("?")])
def test_what_a_thread_raises_ends_the_run(opened, error):
    arrivals = opened(sampling := Sampling())
    in_background(sampling, 0, result=error)
    with pytest.raises(type(error), match=str(error) if str(error) != "?" else None):
        arrivals.take(1)
    sampling.end()
    for thread in arrivals.threads:
        if thread.ident:
            thread.join(5)
        assert not thread.is_alive()


def test_close_ends_threads_that_wait_and_calls_that_have_not_begun(opened):
    arrivals = opened(sampling := Sampling(), total_steps=1, going=4)
    in_background(sampling, 0, 1)
    arrivals.take(1)
    assert any(thread.is_alive() for thread in arrivals.threads)
    arrivals.close()
    assert not any(thread.is_alive() for thread in arrivals.threads)
    with pytest.raises(Stopped):
        ThreadsSampler(None, arrivals.closed).sample([[1]], 1, None)  # type: ignore[arg-type]


def test_what_is_missing_of_the_record_is_said(opened, tmp_path, caplog):
    (tmp_path / "arrivals.jsonl").write_text('{"step": 1, "trained": [2], "dropped": [0], "failed": []}\n')
    arrivals = opened(sampling := Sampling(), done=3)
    assert "arrivals.jsonl lacks 2 of 3 steps (the first: 2)" in caplog.text
    in_background(sampling, 1, 3)
    assert ids(arrivals.take(4)[0])[::2] == [1, 3]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 5), st.lists(st.integers(1, 11), max_size=3))
def test_over_all_starts_each_group_is_trained_once_or_counted(seed, max_lag, going, kills):
    """Groups that finish at random, every eleventh fails; the run is cut off at steps `kills`, a step after its checkpoint."""
    rng = random.Random(seed)

    def sample(number, problem):
        time.sleep(rng.random() * 0.004)
        return ([] if number % 11 == 3 else rollouts(number)), 8

    with tempfile.TemporaryDirectory() as folder:
        path, total = Path(folder, "arrivals.jsonl"), 12
        trained: dict[int, list[int]] = {}
        done = 0
        for kill in [*sorted(kills), total]:
            arrivals = Arrivals(
                path, done, lambda n: Problem(str(n), "", "", "en", "test"), sample,
                size=2, group_size=2, going=going, max_lag=max_lag, total_steps=total,
            )  # fmt: skip
            for step in range(done + 1, kill + 1):
                batch, _ = arrivals.take(step)
                assert all(0 <= step - 1 - r.version <= max_lag for r in batch)
                arrivals.record(step)
                trained[step] = ids(batch)[::2]
            arrivals.close()
            done = kill if kill == total else max(0, kill - 1)
        rows = [json.loads(line) for line in path.open()]
        assert [row["step"] for row in rows] == list(range(1, total + 1))
        assert {row["step"]: row["trained"] for row in rows} == trained
        settled = [n for row in rows for kind in ("trained", "dropped", "failed") for n in row[kind]]
        assert sorted(settled) == list(range(len(settled))), "asked twice, or skipped without a count"


def test_arrival_metrics_by_hand():
    """Step 4: two rollouts of 2 tokens one update old, one of 6 tokens two updates old; one of 9 tokens was too old."""
    batch = [*rollouts(0, 2), *rollouts(1, 6, members=1)]
    for rollout, version in zip(batch, [2, 2, 1], strict=True):
        rollout.version = version
    found = arrival_metrics(batch, 4, rollouts(2, 9, members=1), rollouts(3, 5), in_flight=6)
    assert found == {
        "lag/long": 2, "lag/in_flight": 6, "lag/dropped": 1, "tokens/dropped": 9, "tokens/in_flight": 10,
    }  # fmt: skip
    found = arrival_metrics(rollouts(0), 1, [], [], 0)
    assert math.isnan(found["lag/long"]) and math.isnan(found["tokens/dropped"])


def test_a_trust_region_that_keeps_rejecting_is_said_every_five_steps(tmp_path, caplog):
    """Three such steps before a resume and two after it; one good step begins the count anew."""
    calm = {
        "nonfinite": 0.0, "grad_norm": 1.0, "ratio/min": 1.0, "ratio/max": 1.0, "frac_truncated": 0.0,
        "trust/kl_mean": 0.0123, "learning_rate": 6e-4, "lag/mean": 1.5,
    }  # fmt: skip
    rows = [{"step": step, **calm, "trust/admitted": 0.4} for step in range(1, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    watchdog, said = Watchdog(tmp_path, done=3, max_nonfinite_steps=3), []
    with caplog.at_level(logging.WARNING, "tanka"):
        for step in range(4, 20):
            caplog.clear()
            watchdog.check(step, calm | {"trust/admitted": 0.5 if step == 12 else 0.31}, [], [], None)  # type: ignore[arg-type]
            said += [step] * ("(now 31 %)" in caplog.text)
            for word in ("kl_mean 0.012, learning_rate 0.0006, lag/mean 1.5", "engine.max_lag", "loss.delta"):
                assert word in caplog.text or step not in said
    assert said == [5, 10, 17]
