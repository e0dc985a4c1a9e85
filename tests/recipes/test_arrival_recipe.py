"""engine.collect=arrival as a user runs it, on engine=local whose sampler has a copy of the weights (helpers/lagged.py)."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.engines.test_tinker import KEY
from tests.helpers.forked import ROOT, Forked, set_up, start, status
from tests.helpers.recipes import run_recipe
from tests.helpers.tinker_server.record import RECORDING, RUN, environment
from tests.helpers.tinker_server.replay import Replay

STEPS, BATCH, GROUP = 8, 3, 2
ARRIVAL = ("--config-dir", str(ROOT / "tests/helpers/conf"), "engine=lagged", "engine.collect=arrival")
SETTINGS = (
    *ARRIVAL, "engine.max_lag=2",
    "model.path=model", "model.lora.rank=4", "learning_rate=1e-2", "+rewards.chance._target_=saboteur.chance",
    "data.train_size=200", "data.test_size=4", f"batch_size={BATCH}", f"group_size={GROUP}", "max_tokens=8",
    f"max_steps={STEPS}", f"samples_per_step={BATCH * GROUP}", "eval_every=3", "eval_problems=2", "save_every=2",
    "preflight=off", "logger=none",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_random_model) -> Path:
    folder = tmp_path_factory.mktemp("arrival")
    set_up(folder, *tiny_random_model())
    return folder


def run(folder: Path, *more: str, sabotage: str = "log:0:0") -> Forked:
    return start("rl_basic", *SETTINGS, *more, cwd=folder, environment={"SABOTAGE": sabotage})


def rows(run: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def assert_each_problem_once(folder: Path) -> None:
    """Every problem of the run, by its id in samples.jsonl, is a whole group of one step, and none was left out."""
    assert status(folder)["state"] == "finished"
    trained = [row for row in rows(folder, "samples.jsonl") if row["split"] == "train"]
    assert Counter(row["step"] for row in trained) == dict.fromkeys(range(1, STEPS + 1), BATCH * GROUP)
    assert set(Counter(row["id"] for row in trained).values()) == {GROUP}, "trained twice, or half a group"
    assert len({row["id"] for row in trained}) == len({(row["id"], row["step"]) for row in trained})
    record = rows(folder, "arrivals.jsonl")
    assert [row["step"] for row in record] == list(range(1, STEPS + 1))
    settled = [number for row in record for kind in ("trained", "dropped", "failed") for number in row[kind]]
    assert sorted(settled) == list(range(len(settled))), "skipped without a count"
    metrics = rows(folder, "metrics.jsonl")
    assert [len(row["dropped"]) * GROUP for row in record] == [row["lag/dropped"] for row in metrics]
    assert all(0 <= row["lag/mean"] <= row["lag/max"] <= 2 for row in metrics)
    assert max(row["lag/max"] for row in metrics) >= 1 and metrics[-1]["lag/in_flight"] == 0


SLOW = ("draw:9", "save:1", "evaluate:1", "log:1", "update:3", "saved:1", "export:1")


@pytest.mark.parametrize(
    "places", [("draw:30", "update:2", "log:2"), pytest.param(SLOW, marks=pytest.mark.slow)]
)
def test_a_run_that_is_killed_again_and_again_trains_each_problem_once(folder, places):
    name, codes = f"killed-{len(places)}", []
    for place in places:
        codes.append(run(folder, f"run_dir={name}", sabotage=f"{place}:9").wait())
    assert codes.count(-signal.SIGKILL) >= 3 and set(codes) <= {-signal.SIGKILL, 0}
    process = run(folder, f"run_dir={name}")
    assert process.wait() == 0, process.err
    assert_each_problem_once(folder / name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_last_whole_step(folder, number):
    """It arrives while a thread samples; the threads end, and the run goes on where it was."""
    name = f"signal-{number}"
    process = run(folder, f"run_dir={name}", "save_every=0", sabotage=f"draw:60:{int(number)}")
    assert process.wait(60) == 128 + number, process.err
    assert status(folder / name)["state"] == "interrupted" and "Traceback" not in process.err
    done = status(folder / name)["step"]
    assert not done or (folder / name / f"checkpoints/step-{done:06d}").is_dir()
    process = run(folder, f"run_dir={name}")
    assert process.wait() == 0, process.err
    assert_each_problem_once(folder / name)


def test_an_error_in_a_thread_is_the_same_line_as_without_threads(folder):
    """The prompt and the budget exceed the model's context: said by the sampler, in a thread."""
    (folder / "broken.py").write_text(
        "from rl.errors import UserError\n"
        "from tests.helpers.lagged import LaggedConfig, LaggedSampler\n"
        "def fail(*_, **__):\n    raise UserError('engine: the server is gone')\n"
        "class Config(LaggedConfig):\n"
        "    def open(self, blueprint, tokenizer):\n"
        "        engine = super().open(blueprint, tokenizer)\n"
        "        engine.sampler.submit = fail\n"
        "        return engine\n"
    )
    process = run(folder, "run_dir=broken", "engine._target_=broken.Config", "eval_every=0")
    assert process.wait() == 2
    assert (
        process.err.splitlines()[-1] == "error: engine: the server is gone" and "Traceback" not in process.err
    )


NAG = (
    "environment._target_=tests.helpers.environments.NagConfig", "environment.name=nag", "+environment.max_context=400",
    "max_tokens=64",
)  # fmt: skip


@pytest.mark.parametrize("more", [NAG, ("thinking_tokens=4", "renderer=qwen3")])
def test_trajectories_of_several_calls_arrive_too(folder, more):
    name = f"run_dir={more[0][:8]}"
    process = run(folder, *more, name, "max_steps=2", "eval_every=0")
    assert process.wait() == 0, process.err
    found = rows(folder / name.removeprefix("run_dir="), "metrics.jsonl")
    assert len(found) == 2
    for row in found:
        assert row["env/turns"] > 1 if more == NAG else "thinking/forced" in row
    assert found[0]["ratio/min"] > 0.999 and found[0]["ratio/max"] < 1.001, "other tokens than were sampled"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["engine.max_lag=0"], "engine.max_lag=4"),
        (["refill=2"], "refill=2: redraws are sampled while the learner waits"),
        (["curriculum=pass_rate", "epochs=2"], "curriculum=pass_rate: with engine.collect=arrival"),
        (["engine.in_flight=1"], "engine.in_flight=1: a group has 2 rollouts"),
        (["engine.in_flight=19"], "engine.in_flight=19: with engine.max_lag=2 more than 18"),
        (
            ["engine.in_flight=2049", "batch_size=2000"],
            "engine.in_flight=2049: expected at most 1024 groups of 2",
        ),
        (["engine.in_flight=6", "engine.collect=ordered"], "engine.in_flight=6: only read by"),
        (["engine.collect=arival"], "arrival"),
        (["engine.serves_many=false"], "answers one call after another"),
    ],
)
def test_what_cannot_arrive_is_one_line(folder, more, words):
    process = run(folder, *more, "run_dir=refused")
    assert process.wait() == 2
    assert words in process.err.splitlines()[-1] and "Traceback" not in process.err


def test_engine_tinker_needs_a_service_that_samples_while_it_trains(tmp_path):
    done = run_recipe(
        "rl_basic", *RUN, "engine.collect=arrival", "engine.max_lag=1", "engine.overlap=false",
        cwd=tmp_path, environment={"TINKER_API_KEY": KEY},
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "engine.overlap=false: this service cannot sample while it trains" in done.stderr


def test_engine_tinker_trains_as_rollouts_arrive(tmp_path):
    """With one group in flight they arrive in order, so the recorded run's completions and gradients fit."""
    arguments = ["engine.collect=arrival", "engine.max_lag=1", "engine.in_flight=4", "run_dir=run"]
    with Replay(RECORDING, any_seed=True) as server:
        done = run_recipe("rl_basic", *RUN, *arguments, cwd=tmp_path, environment=environment(server.url))
    assert done.returncode == 0, done.stderr
    assert not server.unknown and server.seen["asample"] == 2 * 4 and server.seen["optim_step"] == 2
    found = rows(tmp_path / "run", "metrics.jsonl")
    assert [row["reward_total"] for row in found] == [0.1875, 0.50625]
    assert [row["trained"] for row in rows(tmp_path / "run", "arrivals.jsonl")] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert found[1]["cost/sample_tokens"] == 1686 and found[1]["lag/max"] <= 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_loop_learns_as_rollouts_arrive(tmp_path):
    """The settings of docs/flashreinforce.md, where the mean of the last three steps is above 0.9 for each seed."""
    done = run_recipe(
        "rl_basic", *ARRIVAL, "engine.max_lag=2", "loss=flashreinforce", "loss.delta=1e-2", "learning_rate=2e-4",
        "optimizer.schedule=linear", "max_steps=20", "eval_every=0", "save_every=0", "preflight=off", "logger=none",
        "run_dir=run", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "run", "metrics.jsonl")
    assert max(row["reward_total"] for row in found[-3:]) >= 0.85
    assert 0 < max(row["lag/max"] for row in found) <= 2 and found[0]["trust/admitted"] == 1
