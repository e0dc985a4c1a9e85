"""Tasks and their times, with hand-derived numbers on a clock that the test moves."""

from __future__ import annotations

import threading

import pytest

from rl import progress
from rl.engines.base import SamplingParams
from rl.engines.local import sampler


@pytest.fixture
def clock(monkeypatch):
    """A list whose only value is the time in seconds."""
    now = [100.0]
    monkeypatch.setattr("rl.progress.time.monotonic", lambda: now[0])
    return now


def text() -> str:
    state = progress.state()
    assert state is not None
    return state.line


def test_nothing_is_shown_outside_a_task():
    assert progress.state() is None
    progress.advance(3)  # counts nowhere, and does not fail


def test_a_task_and_its_time_left(clock):
    with progress.task("translating", 40, "rows") as task:
        assert text() == "translating 0/40 rows, for 0:00:00"
        clock[0] += 30
        assert text() == "translating 0/40 rows, for 0:00:30"
        task.done += 10  # a quarter took 30 s, so that the rest takes 90 s
        task.tokens = 6000
        assert text() == "translating 10/40 rows, 200 tokens/s, 0:01:30 left"
        with progress.task("sampling", 8, "rollouts") as inner:
            clock[0] += 10
            inner.share = 0.5
            # The outer task's time is known: 40 s for a quarter.
            assert text() == "translating 10/40 rows, 150 tokens/s: sampling 0/8 rollouts, 0:02:00 left"
        task.done = 0
        assert text() == "translating 0/40 rows, 150 tokens/s, for 0:00:40"
    assert progress.state() is None


def test_what_was_done_before_says_nothing_about_the_speed(clock):
    with progress.task("training", 100, "steps") as task:
        task.done = task.resumed = 60
        clock[0] += 30
        assert text() == "training 60/100 steps, for 0:00:30"
        task.done = 70  # ten steps took 30 s, so that the other thirty take 90 s
        assert text() == "training 70/100 steps, 0:01:30 left"


def test_what_is_counted_when_it_is_shown(clock, tmp_path):
    seen = [0]
    with progress.task("checking rows.jsonl", 1_000_000, "rows", lambda: seen[0]):
        seen[0] = 250_000
        assert text() == "checking rows.jsonl 250,000/1,000,000 rows, for 0:00:00"
    with progress.task("loading weights"):
        clock[0] += 75
        assert text() == "loading weights, for 0:01:15"
    (tmp_path / "rows.jsonl").write_bytes(bytes(1000))
    with (tmp_path / "rows.jsonl").open("rb", buffering=0) as file, progress.reading(file):
        file.read(250)
        assert text() == "reading rows.jsonl 25%, for 0:00:00"
        file.read()
        assert text() == "reading rows.jsonl 100%, for 0:00:00"


def test_time_left_of_the_step_and_of_the_run(clock):
    pace = progress.Pace()
    with pace.step(1, 4):
        with progress.task("sampling", 128, "rollouts"):
            clock[0] += 60
            assert text() == "step 1/4  sampling 0/128 rollouts, for 0:01:00"  # nothing is known yet
        with progress.task("updating", 128, "rows"):
            clock[0] += 30
    with pace.step(2, 4):
        with progress.task("sampling", 128, "rollouts") as task:
            assert "0:01:30 left of the step, 0:04:30 of the run" in text()  # as long as the last one
            clock[0] += 10
            task.share = 0.25
            # A quarter took 10 s: 30 s, then 30 s for the update, then two steps of 90 s.
            assert text() == "step 2/4  sampling 0/128 rollouts, 0:01:00 left of the step, 0:04:00 of the run"
        with progress.task("updating", 128, "rows"):
            assert "0:00:30 left of the step, 0:03:30 of the run" in text()
            clock[0] += 50
            assert "0:00:00 left of the step, 0:03:00 of the run" in text()
    with pace.step(3, 4), progress.task("sampling"):  # the steps took 90 and 60 s: 75 on average
        assert "0:01:00 left of the step, 0:02:15 of the run" in text()
    with pace.step(4, 4), progress.task("evaluating"):  # the last step did not evaluate: how long is unknown
        assert text() == "step 4/4  evaluating, for 0:00:00"


def test_a_step_that_fails_is_closed_and_not_remembered(clock):
    pace = progress.Pace()
    with pytest.raises(ValueError), pace.step(1, 2), progress.task("grading"):
        clock[0] += 5
        raise ValueError
    assert progress.state() is None and not pace.seconds


def test_a_loop_that_is_left_early_ends_its_task():
    for number in progress.counted(range(10), "reading", 10, "rows"):
        if number == 3:
            break
    assert progress.state() is None


def test_other_threads_show_nothing():
    seen = []

    def work():
        with progress.task("grading", 1, "rollouts"):
            progress.advance(1)
            seen.append(progress.state())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]


@pytest.mark.parametrize("kv_bytes", [1e9, 40_000])
def test_the_sampler_counts_every_rollout_and_token(tiny_random_model, monkeypatch, kv_bytes):
    """With little memory for keys and values, prompts wait until others have finished."""
    model, _ = tiny_random_model("llama")
    tasks, shares = [], []
    drawn = sampler.Drawn.draw

    def draw(*arguments):
        tasks.append(progress._open[-1])
        shares.append(tasks[-1].portion)
        return drawn(*arguments)

    monkeypatch.setattr(sampler.Drawn, "draw", draw)
    params = SamplingParams(max_tokens=12, temperature=1.0, stop_ids=frozenset(range(40)), seed=3)
    groups = sampler.sample(model, [[1, 2, 3], [4, 5], [6]], 4, params, kv_bytes)
    task = tasks[-1]
    assert len({id(task) for task in tasks}) == 1 and progress.state() is None
    assert (task.done, task.total, task.share) == (12, 12, 1.0)
    assert task.tokens == sum(len(completion.tokens) for group in groups for completion in group)
    assert shares == sorted(shares)
