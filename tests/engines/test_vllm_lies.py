"""Parts of engine=vllm beside answers that are wrong, odd, or no answers. Whole runs: tests/engines/test_vllm_faults.py."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl.engines.base import SamplingParams
from rl.engines.vllm import background, wire
from rl.engines.vllm.command import Command
from rl.engines.vllm.completions import Unusable, completions_of
from rl.engines.vllm.learner import VllmLearner
from rl.engines.vllm.probe import Needs, facts_of, is_model, require_fit
from rl.engines.vllm.remote import RemoteSampler
from rl.engines.vllm.server import StartedServer
from rl.engines.vllm.weights import Adapters, Reloaded, Version
from rl.errors import Stopped, UserError
from tests.helpers.recipes import ROOT

GENERATE = "/inference/v1/generate"
RECORDED = json.loads((ROOT / "tests/data/vllm.json").read_text())["generate"]


def tokens(change: Callable[[dict], Any]) -> Callable[[list[dict]], Any]:
    """Changes the entry of the second completion's third token."""
    return lambda choices: change(choices[1]["logprobs"]["content"][2])


def token_id(value: Any) -> Callable[[list[dict]], Any]:
    def change(choices: list[dict]) -> None:
        choices[1]["token_ids"][2] = choices[1]["logprobs"]["content"][2]["token_id"] = value

    return change


LIES: dict[str, tuple[Callable[[list[dict]], Any], str]] = {
    "the same number twice": (lambda choices: choices[1].update(index=0), r"numbered \[0, 0\]"),
    "a number left out": (lambda choices: choices[1].update(index=2), r"numbered \[0, 2\]"),
    "one too many": (lambda choices: choices.append({**choices[0], "index": 2}), "3 came"),
    "no number": (lambda choices: choices[1].pop("index"), "index"),
    "an id outside the vocabulary": (token_id(50_000), "50000 is no token id of the model"),
    "a huge id": (token_id(10**400), "is no token id"),
    "a negative id": (token_id(-1), "-1 is no token id"),
    "an infinite id": (token_id(math.inf), "inf is no token id"),
    "half an id": (token_id(14.5), "14.5 is no token id"),
    "text for an id": (token_id("14"), "'14' is no token id"),
    "a truth value for an id": (token_id(True), "True is no token id"),
    "a stop token in the middle": (token_id(1), "goes on after a stop token"),
    "text for a number": (tokens(lambda entry: entry.update(logprob="-0.5")), "'-0.5' is no log-probability"),
    "nothing for a number": (tokens(lambda entry: entry.update(logprob=None)), "None is no log-probability"),
    "vLLM's word for no value": (tokens(lambda entry: entry.update(logprob=-9999.0)), "below -100"),
    "a number beyond floats": (tokens(lambda entry: entry.update(logprob=-(10**400))), "OverflowError"),
    "a list for an entry": (tokens(lambda entry: entry.clear()), "token_id"),
    "text for log-probabilities": (lambda choices: choices[1].update(logprobs="none"), "AttributeError"),
    "text for a choice": (lambda choices: choices.append("x"), "TypeError"),
    "lines for a reason": (lambda choices: choices[1].update(finish_reason="a\nb" * 999), "ended with"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_is_not_exactly_what_was_asked_for_is_unusable(lie):
    change, said = LIES[lie]
    answer = copy.deepcopy(RECORDED["answer"])
    change(answer["choices"])
    with pytest.raises(Unusable, match=said) as raised:
        completions_of(answer, RECORDED["request"], 1024)
    assert len(str(raised.value)) < 500 and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "answer", [None, 5, [], "<html>", {}, {"choices": None}, {"choices": 5}, {"choices": {}}]
)
def test_any_other_json_is_unusable(answer):
    with pytest.raises(Unusable):
        completions_of(answer, RECORDED["request"], 1024)


# -- HTTP ----------------------------------------------------------------------------------------------------------------

Reply = tuple[int, dict[str, str], bytes]


@pytest.fixture
def replies() -> Iterator[dict[str, Reply | float]]:
    """What a server sends for each path; a number: seconds between two bytes of an answer that never ends."""
    found: dict[str, Reply | float] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply = found.get(self.path.partition("?")[0], (404, {}, b"{}"))
            status, headers, data = (200, {}, b"") if isinstance(reply, float) else reply
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(data)
                while isinstance(reply, float):
                    self.wfile.write(b" ")
                    time.sleep(reply)
            except OSError:
                pass  # the client has gone

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    found["url"] = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[assignment]
    yield found
    server.shutdown()
    server.server_close()


def call(function: Callable[..., Any], replies: dict[str, Any], path: str = "") -> Any:
    async def with_client() -> Any:
        async with wire.new_client() as client:
            return await function(client, f"{replies['url']}{path}")

    return asyncio.run(with_client())


NO_ANSWERS: dict[str, tuple[Reply | float, str]] = {
    "a redirect": ((302, {"location": "https://b/x"}, b"<html>"), "302: it redirects to https://b/x"),
    "too many requests": ((429, {"retry-after": "7"}, b"slow\ndown"), "429: slow down"),
    "an odd wait": ((503, {"retry-after": "nan"}, b'{"error": null}'), "503: None"),
    "a broken encoding": ((200, {"content-encoding": "gzip"}, b"no gzip"), "DecodingError"),
    "a cut answer": ((200, {"content-length": "99"}, b'{"a": 1'), "RemoteProtocolError"),
    "a huge answer": ((200, {}, b"1" * 5000), "larger than 1,000 bytes"),
    "an answer that never ends": (0.05, "no whole answer in 0.5 s"),
    "an error without an end": ((500, {}, b"[" * 900), "500: [[["),
}


@pytest.mark.parametrize("kind", NO_ANSWERS)
def test_what_is_no_answer_is_a_failure_on_one_line(replies, monkeypatch, kind):
    monkeypatch.setattr(wire, "HEALTH_SECONDS", 0.5)
    monkeypatch.setattr(wire, "MOST_BYTES", 1000)
    replies["/"], said = NO_ANSWERS[kind]
    with pytest.raises(wire.Failed) as raised:
        call(wire.get, replies, "/")
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert raised.value.after == (7 if kind == "too many requests" else 0)


@pytest.mark.parametrize(
    ("headers", "data"),
    [
        ({}, b"[" * 100_000),
        ({"content-type": "text/html; charset=undefined"}, b"\xff"),
        ({}, b"1" * 5000),
        ({}, b""),
    ],
)
def test_a_body_that_is_no_json_is_text(replies, headers, data):
    replies["/"] = (200, headers, data)
    assert isinstance(call(wire.get, replies, "/"), str)


@pytest.mark.parametrize(
    ("count", "found"),
    [
        ("5.0", 5.0), ("0.0", 0.0), ("1e300", 1e300), ("-3", -3.0), ("NaN", None), ("+Inf", None), ("many", None),
        ("1e999", None),
    ],
)  # fmt: skip
def test_metrics_that_are_no_count_are_unknown(replies, count, found):
    replies["/metrics"] = (
        200,
        {},
        f'\xff\nvllm:generation_tokens_total{{a="b"}} {count}\n'.encode("latin-1"),
    )
    assert call(wire.tokens_of, replies) == found


MODELS: Any = {"data": [{"id": "served", "max_model_len": 64}]}
PATHS: Any = {"paths": {GENERATE: {}, "/server_info": {}, "/v1/load_lora_adapter": {}}}
DESCRIPTIONS = [
    ([], PATHS, {}), ({"data": []}, PATHS, {}), ({"data": None}, PATHS, {}), ({"data": [5]}, PATHS, {}),
    ({"data": [{"id": 5, "max_model_len": 64}]}, PATHS, {}), ({"data": [{"id": "a"}]}, PATHS, {}),
    ({"data": [{"id": "a", "max_model_len": None}]}, PATHS, {}), (MODELS, "<html>", {}), (MODELS, {"paths": 5}, {}),
]  # fmt: skip


def describe(replies: dict[str, Any], models: Any, paths: Any, info: Any) -> Any:
    for path, value in (("/v1/models", models), ("/openapi.json", paths), ("/server_info", info)):
        replies[path] = (200, {}, json.dumps(value).encode())
    return call(facts_of, replies)


@pytest.mark.parametrize("said", DESCRIPTIONS)
def test_a_server_that_does_not_describe_itself_as_vllm_does_is_waited_for(replies, said):
    with pytest.raises(wire.Failed, match="does not describe itself"):
        describe(replies, *said)


@pytest.mark.parametrize(
    "config", [5, "text", {}, {"model_config": None}, {"model_config": "x", "scheduler_config": []},
               {"lora_config": {"max_lora_rank": "x", "max_loras": None}}, {"model_config": {"dtype": 5}}]
)  # fmt: skip
def test_settings_in_another_form_are_unknown(replies, config):
    facts = describe(replies, MODELS, PATHS, {"vllm_config": config})
    try:
        require_fit("http://a", facts, Needs("served", None, 8, True, 1.0, 8))
    except UserError as error:
        assert "--enable-lora" in str(error)


# -- Parts ---------------------------------------------------------------------------------------------------------------


def test_weights_that_an_answer_does_not_name_are_not_ours():
    weights = Reloaded("tanka-a-", "wait")
    for spans in (None, [], ["x"], [{}], 5, [{"version": "default"}], [{"version": None}]):
        with pytest.raises(wire.Failed):
            weights.require_ours("http://a", {"choices": [{"weight_versions": spans}]})
    weights.require_ours("http://a", {"choices": [{"weight_versions": [{"version": "tanka-a-000001"}]}]})


def test_a_server_that_is_lost_while_its_adapter_is_unloaded(monkeypatch):
    weights, version = Adapters("p-"), Version("p-1", None)
    weights.loaded["http://a"] = {"p-1"}

    async def lose(*_: object) -> None:
        weights.forget("http://a")

    monkeypatch.setattr("rl.engines.vllm.weights.unload", lose)
    asyncio.run(weights.retire(None, ["http://a"], version))  # type: ignore[arg-type]


def test_a_word_of_torch_is_no_number_format():
    learner: Any = SimpleNamespace(model=torch.nn.Linear(1, 1))
    for word in ("load", "int8", "nosuch", "float32", None):
        assert VllmLearner._untied(learner, word)["weight"].dtype == torch.float32


@pytest.mark.parametrize("name", ["モデル", "---"])
def test_a_model_in_other_letters_is_not_every_model(name):
    assert not is_model("/models/other", Needs(f"/home/me/{name}", None, None, False, 0, 1))


def test_a_context_that_shrinks_saves_the_run():
    sampler: Any = SimpleNamespace(
        replicas=SimpleNamespace(replicas=[SimpleNamespace(facts=SimpleNamespace(context=8))])
    )
    with pytest.raises(Stopped, match="context holds 8"):
        RemoteSampler.require_context(sampler, [[1] * 5], SamplingParams(4, 1.0, frozenset(), 0))


def test_a_call_that_hangs_at_the_end_leaves_no_word_on_the_terminal(monkeypatch, caplog):
    monkeypatch.setattr(background, "CLOSE_SECONDS", 0.3)
    loop = background.Background()
    loop.start(asyncio.sleep(1000))
    with caplog.at_level(logging.DEBUG, "asyncio"):
        loop.close(asyncio.sleep(1000))
        gc.collect()
    assert loop.loop.is_closed() and "destroyed" not in caplog.text


def test_a_started_server_whose_log_was_deleted(tmp_path):
    server = StartedServer(Command(["sh", "-c", "exit 3"], {}, {}), 1, tmp_path / "server.log")
    server.process.wait()
    (tmp_path / "server.log").unlink()
    assert server._new_lines() == [] and "exit code 3: it printed nothing" in server.ended()
    with pytest.raises(UserError, match=r"engine\.command=/dev/null: cannot be run"):
        StartedServer(Command(["/dev/null"], {}, {}), 1, tmp_path / "server.log")
