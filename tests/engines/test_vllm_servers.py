"""engine=vllm: servers that do not fit, several of them, dying and returning ones, and one that the run starts."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.engines.test_vllm import LORA, SETTINGS, TINY, finished, one_line, rows, run
from tests.helpers.forked import Forked, start, status
from tests.helpers.recipes import ROOT, run_recipe
from tests.helpers.vllm_fake import FakeVllm

GENERATE = "/inference/v1/generate"


@pytest.fixture
def fake():
    with FakeVllm(TINY) as server:
        yield server


@pytest.fixture
def two():
    with FakeVllm(TINY) as first, FakeVllm(TINY) as second:
        yield [first, second]


UNFIT = {
    "--enable-scale-out": {"missing": {GENERATE}},
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1": {"missing": {"/v1/load_lora_adapter"}},
    "start it with that model": {"root": "/models/other"},
    "--enable-lora --max-lora-rank 8": {"settings": {"lora_config": {}}},
    "takes adapters up to rank 4, this one has 8": {"settings": {"lora_config": {"max_lora_rank": 4}}},
    "--max-num-seqs 2": {"settings": {"scheduler_config": {"max_num_seqs": 1}}},
    "--no-enable-chunked-prefill": {"settings": {"scheduler_config": {"enable_chunked_prefill": True}}},
    "the servers' context holds 20": {"context": 20},
}


@pytest.mark.parametrize("said", UNFIT)
def test_a_server_that_does_not_fit_is_refused_with_the_flag_it_lacks(fake, tmp_path, said):
    for name, value in UNFIT[said].items():
        setattr(fake, name, value)
    assert said in one_line(run(tmp_path, fake, *LORA))
    assert not fake.adapters


def test_a_server_that_asks_for_a_key(fake, tmp_path, monkeypatch):
    fake.key = "the servers' key"
    assert "asks for a key; put it into the environment variable VLLM_API_KEY" in one_line(
        run(tmp_path, fake, *LORA)
    )
    monkeypatch.setenv("VLLM_API_KEY", "schlüssel")
    assert "takes another key than the one in the environment variable VLLM_API_KEY" in one_line(
        run(tmp_path, fake, *LORA)
    )
    monkeypatch.setenv("VLLM_API_KEY", fake.key)
    finished(run(tmp_path, fake, *LORA, "max_steps=1"), tmp_path, 1)
    written = [
        path.read_text() for path in (tmp_path / "run").iterdir() if path.suffix in (".yaml", ".json", ".log")
    ]
    assert written and not any(fake.key in text for text in written)


def test_fewer_adapters_at_once_than_versions_in_flight_are_slow(fake, tmp_path):
    fake.settings = {"lora_config": {"max_loras": 1}}
    finished(run(tmp_path, fake, *LORA, "engine.max_lag=1", "max_steps=1"), tmp_path, 1)
    assert "start it with --max-loras 2" in (tmp_path / "run/train.log").read_text()


@pytest.mark.parametrize(
    ("settings", "missing", "said"),
    [
        ({"model_config": {"logprobs_mode": "raw_logprobs"}}, set(), "--logprobs-mode processed_logprobs"),
        ({}, {"/server_info"}, "does not say whether its log-probabilities"),
    ],
)
def test_log_probabilities_of_another_temperature(fake, tmp_path, settings, missing, said):
    fake.settings, fake.missing = settings, missing
    assert said in one_line(run(tmp_path, fake, *LORA, "temperature=0.7"))


def test_full_weights_need_the_development_mode(fake, tmp_path):
    fake.missing = {"/collective_rpc", "/server_info"}
    assert "VLLM_SERVER_DEV_MODE=1" in one_line(run(tmp_path, fake))


def test_adapters_at_temperature_1_do_not(fake, tmp_path):
    fake.missing = {"/collective_rpc", "/server_info"}
    finished(run(tmp_path, fake, *LORA, "max_steps=1"), tmp_path, 1)


def test_a_folder_that_a_server_cannot_see(fake, tmp_path):
    fake.faults["/v1/load_lora_adapter"] = ["404"]
    assert "engine.weights_dir=SHARED_FOLDER" in one_line(run(tmp_path, fake, *LORA))


def test_weights_that_an_earlier_run_left_are_named(fake, tmp_path):
    """A run that trained all weights leaves them on the server: they are not the base of the next run's adapters."""
    finished(run(tmp_path, fake, "max_steps=1"), tmp_path, 1)
    said = one_line(run(tmp_path, fake, *LORA, "run_dir=adapters"))
    assert f"{fake.url} holds weights tanka-" in said and "restart that server" in said


def test_a_refusal_is_passed_on(fake, tmp_path):
    fake.faults[GENERATE] = ["ok", "ok", "400"]
    assert "EngineCore encountered an issue" in one_line(run(tmp_path, fake, *LORA))


@pytest.mark.slow
def test_what_a_killed_start_left_is_unloaded_before_its_folder_goes(fake, tmp_path):
    first = run(tmp_path, fake, *LORA, "max_steps=500", "save_every=0")
    first.wait_for(tmp_path / "run/metrics.jsonl")
    while not fake.adapters:
        time.sleep(0.01)
    os.kill(first.process.pid, signal.SIGKILL)
    first.wait()
    left = set(fake.adapters)
    assert left and any((tmp_path / "run/vllm").iterdir())
    finished(run(tmp_path, fake, *LORA, "max_steps=2"), tmp_path, 2)
    unloaded = {body["lora_name"] for body in fake.posts("/v1/unload_lora_adapter")}
    assert left <= unloaded and not fake.adapters and not fake.broken
    assert not any((tmp_path / "run/vllm").iterdir())


@pytest.mark.slow
def test_work_is_shared_and_a_dead_server_is_left_out(two, tmp_path):
    """The second dies of its third request after the verification; the numbers are those of one server."""
    (tmp_path / "alone").mkdir(), (tmp_path / "both").mkdir()
    alone = finished(run(tmp_path / "alone", two[0], *LORA, "batch_size=4"), tmp_path / "alone")
    two[0].seen.clear()
    two[1].faults[GENERATE] = ["ok"] * 3 + ["die"]
    both = finished(run(tmp_path / "both", two, *LORA, "batch_size=4"), tmp_path / "both")
    assert two[0].posts(GENERATE) and two[1].posts(GENERATE)
    assert both[-1]["servers/live"] == 1 and sum(row["servers/asked_again"] for row in both) >= 1
    for before, after in zip(alone, both, strict=True):
        assert before["tokens/mean"] == after["tokens/mean"] and before["grad_norm"] == pytest.approx(
            after["grad_norm"]
        )
    assert "is left out" in (tmp_path / "both/run/train.log").read_text()


@pytest.mark.slow
def test_a_server_that_answers_again_is_taken_back_with_the_weights(two, tmp_path):
    process = run(tmp_path, two, *LORA, "max_steps=30", "save_every=0")
    process.wait_for(tmp_path / "run/metrics.jsonl")
    two[1].stop()
    wait_for_row(process, tmp_path, lambda row: row["servers/live"] == 1)
    two[1].seen.clear()
    two[1].start()
    wait_for_row(process, tmp_path, lambda row: row["servers/live"] == 2)
    assert process.wait() == 0, process.err
    assert two[1].posts("/v1/load_lora_adapter") and two[1].posts(GENERATE)
    paths = [path for path, _ in two[1].seen]
    assert paths.index("/v1/load_lora_adapter") < paths.index(GENERATE)
    assert all(abs(row["ratio/max"] - 1) < 1e-4 for row in rows(tmp_path))


def wait_for_row(process: Forked, folder: Path, holds) -> None:
    deadline = time.monotonic() + 300
    file = folder / "run/metrics.jsonl"
    while not any(holds(json.loads(line)) for line in file.read_text().splitlines()[-1:]):
        assert process.process.is_alive() and time.monotonic() < deadline, process.err
        time.sleep(0.02)


@pytest.mark.parametrize("weights", [LORA, ()], ids=["lora", "full"])
def test_a_server_that_is_restarted_gets_the_weights_again(fake, tmp_path, weights):
    process = run(tmp_path, fake, *weights, "max_steps=8", "save_every=0")
    process.wait_for(tmp_path / "run/metrics.jsonl")
    fake.stop()
    time.sleep(0.5)
    fake.start()
    found = finished(process, tmp_path, 8)
    assert all(abs(row["ratio/max"] - 1) < 1e-4 for row in found)


@pytest.mark.slow
def test_a_server_that_only_answers_health_checks_is_left_out(two, tmp_path):
    """Its requests are asked of the other; it stays out until it processes tokens again, here after a restart."""
    two[1].faults[GENERATE] = ["ok"] * 3 + ["hang"] * 1000
    process = run(tmp_path, two, *LORA, "batch_size=4", "max_steps=40", "save_every=0", "engine.patience=3")
    process.wait_for(tmp_path / "run/metrics.jsonl", 120)
    wait_for_row(process, tmp_path, lambda row: row["servers/live"] == 1)
    two[1].stop(), two[1].faults.clear()
    two[1].start()
    wait_for_row(process, tmp_path, lambda row: row["servers/live"] == 2)
    assert process.wait() == 0, process.err
    assert all(abs(row["ratio/max"] - 1) < 1e-4 for row in rows(tmp_path))
    assert "it has processed no token of its requests for" in (tmp_path / "run/train.log").read_text()


def test_the_only_server_hangs(fake, tmp_path):
    fake.faults[GENERATE] = ["ok"] * 6 + ["hang"] * 1000
    error = one_line(run(tmp_path, fake, *LORA, "engine.patience=1.5", "save_every=0"))
    assert "no server could be used for" in error and "it has processed no token of its requests" in error


@pytest.mark.slow
def test_the_run_ends_when_no_server_is_left_and_continues_with_the_same_numbers(fake, tmp_path):
    (tmp_path / "whole").mkdir(), (tmp_path / "cut").mkdir()
    whole = finished(run(tmp_path / "whole", fake, *LORA, "save_every=0"), tmp_path / "whole")
    fake.faults[GENERATE] = ["ok"] * 6 + ["die"]
    error = one_line(run(tmp_path / "cut", fake, *LORA, "engine.patience=1.5", "save_every=0"))
    assert "no server could be used for" in error and "ConnectError" in error
    assert status(tmp_path / "cut/run")["step"] == 1
    fake.start()
    cut = finished(run(tmp_path / "cut", fake, *LORA, "save_every=0"), tmp_path / "cut")
    for before, after in zip(whole, cut, strict=True):
        same = ("reward_total", "tokens/mean", "grad_norm", "ratio/max")
        assert [before[key] for key in same] == [after[key] for key in same]


def test_servers_that_never_answer(tmp_path):
    done = run_recipe(
        "rl_basic", *SETTINGS[:-1], "engine.servers=[http://127.0.0.1:9]", "engine.patience=1", cwd=tmp_path
    )
    assert done.returncode == 2 and "http://127.0.0.1:9 has not answered for" in done.stderr


# -- a server that the run starts --------------------------------------------------------------------------------------


def starts(folder: Path, *more: str, fake: str = "") -> Forked:
    (folder / "own.py").write_text(
        "def by_tokens(rollouts):\n    return [(sum(r.completion.tokens) * 0.37) % 1 for r in rollouts]\n"
    )
    command = f"{sys.executable} -m tests.helpers.vllm_fake"
    environment = {"FAKE_VLLM": fake, "OMP_NUM_THREADS": "1"}
    leaves = 'touch "$TMPDIR/vllm_dist_0"; echo "temporary folder $TMPDIR"'  # as vLLM does
    (folder / "serve").write_text(f'#!/bin/sh\n{leaves}\nexport PYTHONPATH={ROOT}\nexec {command} "$@"\n')
    (folder / "serve").chmod(0o755)
    return start(
        "rl_basic",
        *SETTINGS,
        f"engine.command={folder / 'serve'}",
        *more,
        cwd=folder,
        environment=environment,
    )


def server_pid(folder: Path) -> int:
    log = folder / "run/vllm/server.log"
    deadline = time.monotonic() + 120
    while "serving at" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(log.read_text().split("serving at")[-1].split()[1])


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_started_server_ends_with_the_run(tmp_path):
    process = starts(
        tmp_path, *LORA, "max_steps=1", "+engine.flags.max_num_seqs=64", "+engine.flags.seed=null"
    )
    assert process.wait() == 0, process.err
    log = (tmp_path / "run/vllm/server.log").read_text()
    assert "--max-num-seqs 64" in log and "--max-lora-rank 8" in log and "--no-enable-chunked-prefill" in log
    assert gone(server_pid(tmp_path))
    temporary = Path(re.findall("temporary folder (.*)", log)[-1])
    assert temporary.name.startswith("vllm-") and not temporary.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_a_run_that_is_ended(tmp_path, number):
    process = starts(tmp_path, *LORA, "max_steps=500", "save_every=0")
    pid = server_pid(tmp_path)
    process.wait_for(tmp_path / "run/metrics.jsonl")
    os.kill(process.process.pid, number)
    process.wait()
    deadline = time.monotonic() + 20
    while not gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_does_not_start_is_one_line_with_its_error(tmp_path):
    error = one_line(starts(tmp_path, *LORA, fake="fail"))
    assert "unrecognized arguments: --nosuch" in error and "server.log" in error


@pytest.mark.slow
def test_a_started_server_that_dies_ends_the_run_at_once(tmp_path):
    process = starts(tmp_path, *LORA, "max_steps=500", "save_every=0")
    pid = server_pid(tmp_path)
    process.wait_for(tmp_path / "run/metrics.jsonl")
    os.kill(pid, signal.SIGKILL)
    assert "the server has ended with exit code -9" in one_line(process)
    assert status(tmp_path / "run")["state"] == "failed"
