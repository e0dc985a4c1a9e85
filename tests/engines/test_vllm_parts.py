"""Parts of engine=vllm: real exchanges, checks of an answer, the verification, the command, and other ways to sample."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from rl.engines.base import SamplingParams
from rl.engines.vllm.command import own_command, server_command
from rl.engines.vllm.completions import Unusable, completions_of, request_of
from rl.engines.vllm.probe import Needs, is_model
from rl.engines.vllm.server import newest_message
from rl.engines.vllm.verify import mismatch_of
from rl.engines.vllm.wire import message_of
from rl.rollouts import TrainingRow
from tests.engines.test_vllm import LORA, TINY, finished, run
from tests.helpers.blueprints import composed
from tests.helpers.recipes import ROOT, run_recipe
from tests.helpers.vllm_fake import FakeVllm

RECORDED = json.loads((ROOT / "tests/data/vllm.json").read_text())


@pytest.fixture
def fake():
    with FakeVllm(TINY) as server:
        yield server


def test_a_recorded_answer_gives_its_completions():
    exchange = RECORDED["generate"]
    found = completions_of(exchange["answer"], exchange["request"])
    assert len(found) == exchange["request"]["sampling_params"]["n"] == 2
    for completion, choice in zip(found, exchange["answer"]["choices"], strict=True):
        assert completion.tokens == choice["token_ids"] and completion.stop_reason == choice["finish_reason"]
        assert completion.logprobs == [each["logprob"] for each in choice["logprobs"]["content"]]


def test_what_is_sent_has_the_recorded_keys():
    params = SamplingParams(4, 1.0, frozenset({1}), seed=3)
    request = request_of([10, 11, 12, 13], 2, params, 0)
    assert request == RECORDED["generate"]["request"]
    assert request_of([10], 2, params, 5)["sampling_params"]["seed"] == 3 + 5 * 2
    own = SamplingParams(9, 1.0, frozenset({1}), seed=3, seeds=[2**40 + 5], limits=[4])
    asked = request_of([10], 2, own, 0)["sampling_params"]
    assert asked["seed"] == (2**40 + 5) % 2**31 and asked["max_tokens"] == 4


@pytest.mark.parametrize("name", RECORDED["errors"])
def test_recorded_errors_are_one_line(name):
    error = RECORDED["errors"][name]
    said = message_of(error["text"])
    assert said and "\n" not in said and "{" not in said.split("'")[0], said
    assert error["status"] >= 400


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"finish_reason": "abort"}, "abort"),
        ({"finish_reason": "stop"}, "no stop token"),
        ({"token_ids": []}, "0 tokens"),
        ({"token_ids": [1, 2, 3]}, "3 tokens"),
        ({"logprobs": None}, "0 log-probabilities"),
        ({"logprobs": {"content": [{"token_id": 9, "logprob": -1.0}]}}, "1 log-probabilities"),
        ({"token_ids": None}, "NoneType"),
    ],
)
def test_anything_less_than_whole_is_unusable(change, said):
    request = RECORDED["generate"]["request"]
    first, second = RECORDED["generate"]["answer"]["choices"]
    with pytest.raises(Unusable, match=said):
        completions_of({"choices": [{**first, **change}, second]}, request)


@pytest.mark.parametrize("value", [math.nan, -math.inf, 0.5])
def test_log_probabilities_are_finite_and_not_above_0(value):
    exchange = json.loads(json.dumps(RECORDED["generate"]))
    exchange["answer"]["choices"][1]["logprobs"]["content"][2]["logprob"] = value
    with pytest.raises(Unusable, match="not finite"):
        completions_of(exchange["answer"], exchange["request"])


@pytest.mark.parametrize(
    ("formats", "off", "accepted"),
    [
        (("float32", "float32"), 1e-5, True), (("float32", "float32"), 5e-3, False),
        (("bfloat16", "float32"), 0.02, True), (("bfloat16", "float32"), 0.2, False),
        (("float32", "bfloat16"), 0.02, True), (("fp8", "bfloat16"), 0.15, True), (("fp8", "bfloat16"), 0.4, False),
        (("float32", "float32"), math.nan, False),
    ],
)  # fmt: skip
def test_a_mismatch_is_judged_by_the_coarser_format(formats, off, accepted):
    row = TrainingRow([5], [6, 7], [True, True], [-1.0, -2.0], [0.0, 0.0])
    found = mismatch_of([row], [[-1.0 + off, -2.0 - off]], formats)
    assert (found.excess(None) == "") == accepted
    if math.isfinite(off):
        assert found.mean == pytest.approx(off) and found.max == pytest.approx(off) and found.tokens == 2
        assert found.excess(off * 1.01) == "" and "in the mean" in found.excess(off / 2)


def test_a_row_that_is_exact_but_for_one_token_exceeds_the_maximum():
    row = TrainingRow([5], [6] * 1000, [True] * 1000, [-1.0] * 1000, [0.0] * 1000)
    assert mismatch_of([row], [[-1.5] + [-1.0] * 999], ("float32", "float32")).excess(None)


@pytest.mark.parametrize(
    ("root", "same"),
    [
        ("Qwen/Qwen3-8B", True), ("/models/qwen3-8b", True), ("/cache/models--Qwen--Qwen3-8B/snapshots/1f", True),
        ("/models/Qwen3_8B-untied", True), ("Qwen/Qwen3-4B", False), ("/models/other", False),
    ],
)  # fmt: skip
def test_which_checkpoints_are_the_model(root, same):
    assert is_model(root, Needs("/home/me/Qwen3-8B", "Qwen/Qwen3-8B", None, True, 1.0, 8)) == same


def test_a_copy_of_another_name_but_the_same_shape_is_the_model(tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/config.json").write_text((TINY / "config.json").read_text())
    assert is_model(str(tmp_path / "copy"), Needs(str(TINY), None, None, True, 1.0, 8))


def test_the_command_on_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    blueprint = composed(
        "engine=vllm", "engine.python=/opt/vllm/bin/python", "model=qwen3-8b", "engine.max_lag=2"
    )
    command = server_command(blueprint.engine, blueprint.model, "Qwen/Qwen3-8B", "bfloat16", 8000)
    assert command.environment["CUDA_VISIBLE_DEVICES"] == "5,7", "all but the first, which trains"
    line = " ".join(command.argv)
    assert "--tensor-parallel-size 2" in line and "--gpu-memory-utilization 0.9" in line
    assert "--max-lora-rank 32 --max-loras 3" in line and "--enforce-eager" not in line
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    command = server_command(blueprint.engine, blueprint.model, "Qwen/Qwen3-8B", "bfloat16", 8000)
    assert command.environment["CUDA_VISIBLE_DEVICES"] == "4" and "--gpu-memory-utilization 0.4" in " ".join(
        command.argv
    )
    own = own_command(blueprint.engine, blueprint.model, "http://b:8001").shell()
    assert "vllm serve Qwen/Qwen3-8B" in own and "--port 8001" in own and "VLLM_SERVER_DEV_MODE=1" in own
    assert "--host 0.0.0.0" in own
    for address in ("http://127.0.0.1:8001", "http://localhost:8001"):
        here = own_command(blueprint.engine, blueprint.model, address).shell()
        assert (
            "--host 127.0.0.1" in here
            and "vllm serve Qwen/Qwen3-8B" in here
            and "--enforce-eager" not in here
        )


def test_the_command_of_a_server_beside_a_run_without_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "9")
    blueprint = composed("engine=vllm")
    here = own_command(blueprint.engine, blueprint.model, "http://127.0.0.1:8001").shell()
    assert "--no-enable-chunked-prefill" in here and "--enforce-eager" in here and "--dtype float32" in here
    assert "VLLM_CPU_KVCACHE_SPACE=9" in here and "VLLM_CPU_OMP_THREADS_BIND=nobind" in here
    assert "vllm serve" not in here, "vllm-cpu's own script fails: it looks for the package vllm"
    there = own_command(blueprint.engine, blueprint.model, "http://b:8001").shell()
    assert "chunked" not in there and "VLLM_CPU" not in there


def test_which_line_of_a_starting_server_is_shown():
    logged = (
        "(EngineCore pid=7) INFO 11-30 19:22:07 [kv_cache_utils.py:2327] CPU KV cache size: 2,097,152 tokens"
    )
    blank = "(APIServer pid=6) INFO 11-30 19:22:07 [api_utils.py:347] "
    assert (
        newest_message([logged, blank, "  wrapper = lookup(value)"]) == "CPU KV cache size: 2,097,152 tokens"
    )
    assert newest_message(["pulling the image", "unpacking"]) == "unpacking", "what a container prints first"


ONE_LINE = {
    "engine.servers=[]": "expected addresses",
    "engine.servers=[a:8000]": "is no address",
    "engine.servers=[http://a:1,http://a:1/]": "names an address twice",
    "engine.servers=[http://me:secret@a:1]": "set the environment variable VLLM_API_KEY",
    "+engine.flags.api_key=secret": "set the environment variable VLLM_API_KEY",
    "engine.server_device=gpu": "expected auto, cpu, or numbers",
    "engine.server_device=99": "this machine has",
    "engine.patience=0": "a positive number of seconds",
    "engine.max_mismatch=-1": "a positive number, or null",
    "engine.command=/no/such": "no program on PATH",
    "engine.python=/no/such": "docs/vllm.md says how to install it",
    f"engine.python={Path(sys.prefix)}": f"e.g. engine.python={Path(sys.prefix) / 'bin/python'}",
    f"engine.python={Path(sys.prefix) / 'bin'}": f"e.g. engine.python={Path(sys.prefix) / 'bin/python'}",
    "engine.python=null": "has no vLLM",
    "engine.command='vllm \"serve'": "its quotes closed",
    "model.lora.rank=513": "up to rank 512",
    "engine.collect=arrival": "type engine.max_lag=4",
    "loss=grpo loss.kl_beta=0.1": "loss.kl_beta",
}


@pytest.mark.parametrize("typed", ONE_LINE)
def test_what_cannot_work_is_one_line(tmp_path, typed):
    done = run_recipe("rl_basic", "engine=vllm", *typed.split(" " if "loss" in typed else "\0"), cwd=tmp_path)
    assert done.returncode == 2 and ONE_LINE[typed] in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not list(tmp_path.glob("runs/*/*"))
    assert "secret" not in done.stderr


def test_the_plan_prints_each_servers_command(tmp_path):
    done = run_recipe(
        "rl_basic", "engine=vllm", "engine.servers=[http://a:8000,http://b:8001]", "plan=true", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "the server at http://a:8000" in done.stdout and "--port 8001" in done.stdout
    done = run_recipe("rl_basic", "engine=vllm", "+engine.flags.max_num_seqs=9", "plan=true", cwd=tmp_path)
    assert done.returncode == 0 and "--max-num-seqs 9" in done.stdout, done.stderr


def test_a_thinking_budget_and_an_agent_sample_through_the_server(fake, tmp_path):
    found = finished(run(tmp_path, fake, *LORA, "thinking_tokens=6", "max_steps=2"), tmp_path, 2)
    assert all(abs(row["ratio/max"] - 1) < 1e-4 for row in found) and "thinking/forced" in found[0]


def test_an_agents_trajectories_go_on_by_themselves(tmp_path):
    with FakeVllm(ROOT / "assets/tiny_tools") as fake:
        more = ("model=tiny_tools", "environment=calculator", "max_tokens=48", "max_steps=1", "batch_size=4")
        found = finished(run(tmp_path, fake, *LORA, *more), tmp_path, 1)
    assert abs(found[0]["ratio/max"] - 1) < 1e-4 and found[0]["env/turns"] >= 1


def test_evaluation_on_a_server_loads_no_weights_and_gives_the_same_numbers(fake, tmp_path):
    finished(run(tmp_path, fake, *LORA, "max_steps=2"), tmp_path, 2)
    common = ["run=run", "problems=6", "budgets=[8,16]", "temperature=0"]
    there = run_recipe(
        "evaluate", *common, "engine=vllm", f"engine.servers=[{fake.url}]", "out=there", cwd=tmp_path
    )
    here = run_recipe("evaluate", *common, "out=here", cwd=tmp_path)
    assert there.returncode == here.returncode == 0, there.stderr
    read = [(tmp_path / name / "evaluation.json").read_text() for name in ("there", "here")]
    assert read[0] == read[1] and not fake.adapters
    shown = run_recipe(
        "sample", "run=run", "rows=2", "engine=vllm", f"engine.servers=[{fake.url}]", cwd=tmp_path
    )
    assert shown.returncode == 0 and "trained" in shown.stdout, shown.stderr


def test_preflight_samples_from_the_servers(fake, tmp_path):
    done = run_recipe(
        "preflight", "engine=vllm", f"engine.servers=[{fake.url}]", "problems=2", "completions=2", "max_tokens=8",
        "budgets=[8,16]", "engine.weights_dir=shared", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "shared").iterdir()) == [], "the user's folder stays"
    assert fake.posts("/inference/v1/generate")


@pytest.mark.parametrize("engine", ["molt", "tinker", "trl"])
def test_an_engine_that_samples_only_while_it_trains_does_not_evaluate(tmp_path, engine):
    done = run_recipe("evaluate", f"engine={engine}", cwd=tmp_path)
    assert done.returncode == 2 and "engine=local, or engine=vllm" in done.stderr


def test_whole_trained_models_need_servers_of_their_own(fake, tmp_path):
    finished(run(tmp_path, fake, "max_steps=1"), tmp_path, 1)
    done = run_recipe("evaluate", "run=run", "engine=vllm", f"engine.servers=[{fake.url}]", cwd=tmp_path)
    assert done.returncode == 2 and "leave out engine.servers" in done.stderr
    assert Path(tmp_path / "run/final/model.safetensors").exists()
