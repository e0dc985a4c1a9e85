"""Each engine reports its rollouts and rows while they are sampled and trained on."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from rl import progress
from rl.engines.base import SamplingParams
from rl.engines.tinker.ledger import Ledger
from rl.engines.tinker.pending import PendingGroups
from tests.helpers.recipes import run_recipe


@pytest.mark.parametrize(
    "small", ["engine=local engine.microbatch_tokens=64", "engine=trl engine.microbatch_rows=1"]
)
def test_rows_are_counted_while_they_are_trained_on(small, tmp_path):
    done = run_recipe(
        "rl_basic", *small.split(), "batch_size=4", "group_size=4", "max_steps=2", "max_tokens=16", "eval_every=0",
        "preflight=off", "logger=jsonl", "run_dir=run", "device=cpu", cwd=tmp_path,
        environment={"TANKA_PROGRESS_EVERY": "0.02"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for step in (1, 2):
        counts = re.findall(rf"(?m)^step {step}/2  updating (\d+)/16 rows", done.stdout)
        numbers = list(map(int, counts))
        assert numbers == sorted(numbers) and len(set(numbers)) > 2 and max(numbers) <= 16
        assert re.search(rf"(?m)^step {step}/2  sampling \d+/16 rollouts", done.stdout)
    assert re.search(
        r"(?m)^step 2/2  saving, 0:00:0\d left of the step, |^step 2/2  saving, for", done.stdout
    )
    assert re.search(r"(?m)^starting: loading weights, for ", done.stdout)


def test_completions_of_a_service_are_counted_as_they_come():
    """Three prompts with two completions each; the second prompt's come first."""
    sequence = SimpleNamespace(tokens=[3, 4], logprobs=[-0.5, -0.5], stop_reason="stop")
    calls = [Future() for _ in range(3)]
    waiting = iter(calls)
    service = SimpleNamespace(sample=lambda **_: next(waiting))
    pending = PendingGroups(service, [[1], [2], [3]], 2, SamplingParams(8, 1.0, frozenset(), 0), 1, Ledger())
    seen = []

    def answer():
        for call in (calls[1], calls[0], calls[2]):
            while (state := progress.state()) is None:
                time.sleep(0.01)
            seen.append(state.text.partition(" rollouts")[0])
            call.set_result(SimpleNamespace(sequences=[sequence, sequence]))

    thread = threading.Thread(target=answer)
    thread.start()
    assert [len(group) for group in pending.result()] == [2, 2, 2]
    thread.join()
    assert seen == [f"waiting for completions {done}/6" for done in (0, 2, 4)]
    assert progress.state() is None
