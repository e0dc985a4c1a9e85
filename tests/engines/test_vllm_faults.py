"""engine=vllm as a user runs it, beside servers that lie or misbehave and faults of its own machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from rl.errors import UserError
from tests.engines.test_vllm import LORA, REWARD, TINY, finished, one_line, run
from tests.helpers.blueprints import composed
from tests.helpers.forked import start, status
from tests.helpers.recipes import run_recipe
from tests.helpers.vllm_fake import Answer, FakeVllm

GENERATE = "/inference/v1/generate"
pytestmark = pytest.mark.slow  # whole runs


class Liar(FakeVllm):
    """lie: what is sent for the n-th request for completions, from 1, and its honest answer. hangs: paths without answers."""

    lie: Callable[[int, Any], Any] = staticmethod(lambda n, honest: honest)
    hangs: frozenset[str] = frozenset()
    asked = 0

    def answer(self, path: str, query: str, body: Any, fault: str) -> Any:
        while path in self.hangs and not self.dead:
            time.sleep(0.02)
        honest = super().answer(path, query, body, fault)
        if path != GENERATE:
            return honest
        self.asked += 1
        return self.lie(self.asked, honest)


@pytest.fixture
def liar() -> Iterator[Liar]:
    with Liar(TINY) as server:
        yield server


def log_of(folder) -> str:
    return (folder / "run/train.log").read_text()


def test_ids_outside_the_vocabulary_end_the_run_with_the_step_before_saved(liar, tmp_path):
    """Requests of a step: two of the verification, two of the batch."""

    def lie(n: int, honest: Any) -> Any:
        for choice in honest["choices"] if n > 6 else ():
            choice["token_ids"][0] = choice["logprobs"]["content"][0]["token_id"] = 10**6
        return honest

    liar.lie = lie
    assert "1000000 is no token id of the model" in one_line(run(tmp_path, liar, *LORA, "save_every=0"))
    assert status(tmp_path / "run")["step"] == 1


def test_log_probabilities_that_are_wrong_after_the_verification_are_warned_of(liar, tmp_path):
    def lie(n: int, honest: Any) -> Any:
        for choice in honest["choices"] if n > 2 else ():
            for entry in choice["logprobs"]["content"][4:]:  # not the first tokens
                entry["logprob"] -= 0.3
        return honest

    liar.lie = lie
    found = finished(run(tmp_path, liar, *LORA, "max_steps=1"), tmp_path, 1)
    assert found[0]["ratio/mean"] > 1.1 and "trained on wrong log-probabilities" in log_of(tmp_path)


def test_honest_servers_are_not_warned_of(liar, tmp_path):
    finished(run(tmp_path, liar, *LORA, "max_steps=2", "loss.updates_per_batch=2"), tmp_path, 2)
    assert "wrong log-probabilities" not in log_of(tmp_path)


@pytest.mark.parametrize("weights", [LORA, ()], ids=["lora", "full"])
def test_a_server_that_restarts_with_another_base_is_verified_again(liar, tmp_path, weights):
    """It restarts between two requests, so that no health check fails."""

    def lie(n: int, honest: Any) -> Any:
        if n == 3:
            with liar.lock, torch.no_grad():
                for parameter in liar.model.parameters():
                    parameter.add_(0.05 * torch.randn_like(parameter))
                liar.adapters.clear()
                liar.version = "default"
            if weights:
                raise Answer(404, "The model `x` does not exist.")
            honest["choices"][0]["weight_versions"] = [{"version": "default"}]
            liar.faults["/collective_rpc"] = ["stale"] * 9
        return honest

    liar.lie = lie
    said = one_line(run(tmp_path, liar, *weights, "max_steps=1"))
    assert "does not sample from the weights that were published" in said
    assert "it was restarted, or lost its weights" in log_of(tmp_path)


@pytest.mark.parametrize("kind", ["abort", "500", "429"])
def test_a_request_that_one_server_fails_is_asked_of_the_other(tmp_path, kind):
    with FakeVllm(TINY) as bad, FakeVllm(TINY) as good:
        bad.faults[GENERATE] = ["ok"] * 2 + [kind] * 1000
        found = finished(run(tmp_path, [bad, good], *LORA, "max_steps=1"), tmp_path, 1)
    assert found[0]["servers/asked_again"] >= 1 and found[0]["servers/live"] == 2


def test_a_gateway_that_asks_to_wait_is_asked_again(liar, tmp_path):
    liar.faults[GENERATE] = ["ok"] * 2 + ["429", "503"]
    finished(run(tmp_path, liar, *LORA, "max_steps=1"), tmp_path, 1)
    assert not liar.faults[GENERATE]


def test_a_server_that_hangs_with_its_metrics(liar, tmp_path):
    liar.faults = {GENERATE: ["ok"] * 6 + ["hang"] * 1000, "/metrics": ["ok"] + ["500"] * 1000}
    error = one_line(run(tmp_path, liar, *LORA, "engine.patience=1.5", "save_every=0"))
    assert "it has processed no token of its requests" in error


def test_a_server_that_comes_back_as_another_model_may_be_put_right(liar, tmp_path):
    """It is waited for as long as any other, and what it lacks is in the message."""

    def lie(n: int, honest: Any) -> Any:
        if n == 3:
            liar.root = "/models/other\nmodel"
            liar.adapters.clear()
            raise Answer(404, "The model `x` does not exist.")
        return honest

    liar.lie = lie
    error = one_line(run(tmp_path, liar, *LORA, "engine.patience=2"))
    assert "no server could be used for" in error and "serves /models/other model, not" in error


BREAK = """
import pathlib, shutil
def by_tokens(rollouts):
    folder, metrics = pathlib.Path("重み 置き場"), pathlib.Path("run/metrics.jsonl")
    if metrics.exists() and metrics.read_text():
        shutil.rmtree(folder)
        folder.write_text("a file")
    return [(sum(r.completion.tokens) * 0.37) % 1 for r in rollouts]
"""


def test_a_folder_for_weights_that_breaks_in_mid_run_saves_the_steps(liar, tmp_path):
    """Letters of other scripts and spaces are fine; a folder that turned into a file is one line."""
    process = run(tmp_path, liar, *LORA, "engine.weights_dir='重み 置き場'", "save_every=0")
    (tmp_path / "own.py").write_text(BREAK)
    error = one_line(process)
    assert "engine.weights_dir" in error and "cannot be used" in error
    assert status(tmp_path / "run")["step"] == 2 and (tmp_path / "run/checkpoints/step-000002").is_dir()


@pytest.mark.parametrize("kind", ["a file", "a link to nothing"])
def test_a_folder_for_weights_that_cannot_be_used_is_refused_before_anything_is_loaded(liar, tmp_path, kind):
    place = tmp_path / "place"
    place.write_text("") if kind == "a file" else place.symlink_to(tmp_path / "no/such")
    assert "engine.weights_dir" in one_line(run(tmp_path, liar, *LORA, "engine.weights_dir=place"))
    assert not liar.seen


def test_a_user_who_does_not_exist(liar, tmp_path):
    finished(run(tmp_path, liar, *LORA, "max_steps=1", "engine.weights_dir='~nobody-here/w'"), tmp_path, 1)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/load_lora_adapter", GENERATE, "/v1/unload_lora_adapter"])
def test_a_signal_ends_a_run_whose_server_hangs(liar, tmp_path, path):
    liar.hangs = frozenset([path])
    process = run(tmp_path, liar, *LORA, "max_steps=500")
    deadline = time.monotonic() + 60
    while not any(seen == path for seen, _ in liar.seen):
        assert time.monotonic() < deadline and process.process.is_alive(), process.err
        time.sleep(0.02)
    time.sleep(0.3)
    os.kill(process.process.pid, signal.SIGTERM)
    assert process.wait(60) == 143, process.err
    assert "Traceback" not in process.err and "destroyed" not in process.err


def test_a_server_that_hangs_at_the_end_does_not_fail_the_run(liar, tmp_path):
    def lie(n: int, honest: Any) -> Any:
        liar.hangs = frozenset(["/v1/unload_lora_adapter"])
        return honest

    liar.lie = lie
    process = run(tmp_path, liar, *LORA, "max_steps=1")
    finished(process, tmp_path, 1)
    assert "destroyed" not in process.err and (tmp_path / "run/final").is_dir()


def test_rollouts_by_arrival_from_a_server_that_fails_now_and_then(liar, tmp_path):
    liar.faults[GENERATE] = ["ok"] * 2 + ["abort", "drop", "fewer", "429"]  # no request can fail five times
    more = ("engine.collect=arrival", "engine.max_lag=2", "max_steps=4")
    finished(run(tmp_path, liar, *LORA, *more), tmp_path, 4)
    trained = [
        row for row in (tmp_path / "run/arrivals.jsonl").read_text().splitlines() if '"failed": []' in row
    ]
    assert len(trained) == 4, "no group was lost"


def test_an_evaluation_refuses_ids_that_are_not_the_models(liar, tmp_path):
    def lie(n: int, honest: Any) -> Any:
        for choice in honest["choices"]:
            choice["token_ids"][0] = choice["logprobs"]["content"][0]["token_id"] = 10**6
        return honest

    liar.lie = lie
    done = run_recipe(
        "evaluate",
        "problems=2",
        "budgets=[8]",
        "engine=vllm",
        f"engine.servers=[{liar.url}]",
        "out=out",
        cwd=tmp_path,
    )
    assert done.returncode == 2 and "is no token id" in done.stderr and done.stderr.count("\n") == 1


ADDRESSES = {
    "[http://a:1,http://A:1/]": "names an address twice",
    "[http://a,http://a:80]": "names an address twice",
    "['http://a:1?x=1']": "is no address",
    "['http://a:1#x']": "is no address",
}


@pytest.mark.parametrize("servers", ADDRESSES)
def test_addresses_that_cannot_work(servers):
    with pytest.raises(UserError, match=ADDRESSES[servers]):
        composed("engine=vllm", f"engine.servers={servers}")


@pytest.mark.parametrize("flag", ["port=9000", "uds=/tmp/s", "ssl_keyfile=k", "ssl-certfile=c"])
def test_a_started_server_listens_where_the_run_looks_for_it(flag):
    with pytest.raises(UserError, match="the run chooses where its server listens"):
        composed("engine=vllm", f"+engine.flags.{flag}")


@pytest.mark.parametrize(
    "servers", ["['http://[::1]:8000']", "['https://a/v/']", "[http://a:1,http://a:2,http://a:1/b]"]
)
def test_addresses_that_work(servers):
    composed("engine=vllm", f"engine.servers={servers}")


def test_an_address_with_a_slash_and_a_path_that_does_not_exist(liar, tmp_path):
    (tmp_path / "own.py").write_text(REWARD)
    settings = ("engine=vllm", "model=tiny", "preflight=off", "run_dir=run", "engine.patience=0.01")
    process = start("rl_basic", *settings, f"engine.servers=[{liar.url}/v9/]", cwd=tmp_path)
    assert "has not answered for" in one_line(process)
