"""How engine=trl is started: wrong launches, vLLM, sharded weights, the accelerate configs."""

from __future__ import annotations

import http.server
import importlib.util
import json
import math
import os
import shlex
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from trl.generation.vllm_generation import VLLMGeneration

from rl.engines.base import SamplingParams
from rl.engines.trl.config import TrlEngineConfig, launch_command
from rl.engines.trl.engine import require_our_optimizer
from rl.engines.trl.vllm import complete, merged_parameters, require_server
from rl.errors import UserError
from rl.storage.jsonl import read_jsonl
from tests.helpers.forked import start
from tests.helpers.recipes import ROOT, rl_basic

PAIR = {"RANK": "0", "WORLD_SIZE": "2"}
WRONG = {
    "world size": (["engine=trl", "batch_size=5"], PAIR, ["batch_size=5", "2 processes", "batch_size=4"]),
    "one process is enough": ([], PAIR, ["engine=local", "2 were started", "engine=trl"]),
    "no vllm": (["engine=trl", "engine.vllm=colocate"], {}, ["engine.vllm=colocate", "not installed", "trl[vllm]"]),
    "nucleus": (["engine=trl", "sampling.top_p=0.9"], {}, ["sampling.top_p=0.9: engine=trl", "engine=local"]),
    "nucleus allowed": (
        ["engine=trl", "sampling.top_p=0.9", "sampling.allow_truncated_support=true"], {}, ["sampling.top_p=0.9: engine=trl"],
    ),
    "one rollout": (["engine=trl", "loss=flashreinforce", "batch_size=1"], {}, ["batch_size=1", "baseline"]),
    "micro-batch": (["engine=trl", "engine.microbatch_rows=0"], {}, ["engine.microbatch_rows=0", "positive"]),
    "sweep": (["-m", "engine=trl", "max_tokens=8,16"], PAIR, ["-m", "2 were started"]),
    "address": (["engine=trl", "engine.vllm_url=foo"], {}, ["engine.vllm_url=foo", "http://HOST:PORT"]),
    "unknown mode": (["engine=trl", "engine.vllm=collocate"], {}, ["did you mean engine.vllm=colocate"]),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_launch_is_one_line_before_anything_is_made(case, tmp_path):
    arguments, environment, words = WRONG[case]
    process = start("rl_basic", *arguments, cwd=tmp_path, environment=environment)
    assert process.wait() == 2 and process.out == ""
    (line,) = process.err.strip().splitlines()
    assert all(word in line for word in words)
    assert not (tmp_path / "runs").exists()


def test_the_first_process_speaks_for_all(tmp_path):
    process = start("rl_basic", "engine=trl", "batch_size=5", cwd=tmp_path, environment={**PAIR, "RANK": "1"})
    assert process.wait() == 2 and process.err == ""


def test_fsdp_without_a_gpu_is_refused(tmp_path):
    """accelerate would train copies, and say nothing."""
    environment = {"ACCELERATE_USE_FSDP": "true"}
    process = start(
        "rl_basic", "engine=trl", "device=cpu", "logger=none", cwd=tmp_path, environment=environment
    )
    assert process.wait() == 2
    assert "shards weights on GPUs only" in process.err.splitlines()[-1]


def test_the_plan_starts_no_more_processes_than_share_a_batch(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    blueprint = SimpleNamespace(model=SimpleNamespace(source="m"), batch_size=10)
    assert "--num_processes 5 " in TrlEngineConfig().commands(blueprint, "engine=trl")["start"]


def test_too_few_problems_for_a_batch(tmp_path):
    process = start("rl_basic", "engine=trl", "data.train_size=4", "device=cpu", "logger=none", cwd=tmp_path)
    assert process.wait() == 2
    assert "batch_size=16: there are 4 train problems" in process.err.splitlines()[-1]


def test_the_plan_says_how_to_start(tmp_path, monkeypatch):
    out = rl_basic("engine=trl", "max_tokens=32", "plan=true", cwd=tmp_path).stdout
    command = (
        "accelerate launch --config_file {} --num_processes 2 -m recipes.rl_basic engine=trl max_tokens=32"
    )
    assert command.format(ROOT / "conf/accelerate/ddp.yaml") in out
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert launch_command("engine=trl max_tokens=32", 4) == command.format(
        "conf/accelerate/ddp.yaml"
    ).replace("2", "4", 1)
    config = TrlEngineConfig(vllm="server", vllm_url="http://gpu7:8123")
    commands = config.commands(
        SimpleNamespace(model=SimpleNamespace(source="org/name"), batch_size=6), "engine=trl"
    )
    (server, _) = commands.values()
    assert "vllm serve org/name --port 8123" in server and "--logprobs-mode processed_logprobs" in server
    assert "VLLM_SERVER_DEV_MODE=1" in server and "--weight-transfer-config" in server


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_of_the_plan_starts_the_run(tmp_path):
    settings = [
        "engine=trl",
        "device=cpu",
        "logger=none",
        "max_steps=1",
        "batch_size=4",
        "group_size=2",
        "preflight=off",
    ]
    out = rl_basic(*settings, "run_dir=r", "plan=true", cwd=tmp_path).stdout
    (line,) = (line for line in out.splitlines() if line.startswith("start: accelerate launch"))
    words = shlex.split(line.removeprefix("start: "))
    done = subprocess.run(
        [str(Path(sys.executable).with_name("accelerate")), *words[1:]],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}, text=True, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(read_jsonl(tmp_path / "r/metrics.jsonl")) == 1


def test_a_process_that_follows_says_what_is_wrong_with_it(tmp_path):
    """What only it knows, such as weights that are not on its node; what all know, the first one says."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    settings = ("engine=trl", "device=cpu", "logger=none", "model.path=empty")
    process = start("rl_basic", *settings, cwd=tmp_path, environment={**PAIR, "RANK": "1"})
    assert process.wait() == 2
    assert process.err.startswith("error: process 1: model.path=empty: its tokenizer files are missing")


@pytest.mark.parametrize(("device", "trained"), [("cpu", False), ("none", True)])
def test_an_optimiser_that_is_not_ours_is_refused(device, trained):
    plugin = SimpleNamespace(offload_optimizer_device=device)
    if trained:
        require_our_optimizer(plugin)
        require_our_optimizer(None)
    else:
        with pytest.raises(UserError, match="offload_optimizer_device: cpu"):
            require_our_optimizer(plugin)


class Synced(VLLMGeneration):
    """Without vLLM: what its weights would be."""

    def __init__(self, model):
        self.model, self._dist = model, SimpleNamespace(gather_params=lambda _: nullcontext(), is_fsdp=False)


def test_vllm_gets_merged_weights_and_the_base_keeps_its_bits(tiny_random_model):
    model = get_peft_model(tiny_random_model()[0].bfloat16(), LoraConfig(target_modules="all-linear", r=4))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    before = {name: p.clone() for name, p in model.named_parameters()}
    generation = Synced(model)
    ours = {name: value.clone() for name, value in merged_parameters(generation)}
    for _ in range(20):
        list(merged_parameters(generation))
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    theirs = {name: value.clone() for name, value in VLLMGeneration._iter_named_params(generation)}
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0.02, atol=1e-3)
    moved = [name for name in ours if name.endswith("q_proj.weight")]
    for name in moved:
        base = before[f"base_model.model.{name.removesuffix('weight')}base_layer.weight"]
        assert not torch.equal(ours[name], base)
    assert moved


@pytest.fixture
def server():
    """A function that answers /server_info with a status and a body, and gives its URL."""
    servers = []

    def answer(status: int, body: str) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_):
                pass

        servers.append(http.server.HTTPServer(("localhost", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://localhost:{servers[-1].server_port}"

    yield answer
    for one in servers:
        one.shutdown()


def info(mode: str) -> str:
    return json.dumps({"vllm_config": {"model_config": {"logprobs_mode": mode}}})


def test_a_server_that_gives_the_log_probabilities_it_sampled_with(server):
    require_server(server(200, info("processed_logprobs")), "org/name")


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, info("raw_logprobs"), ["raw_logprobs", "--logprobs-mode processed_logprobs"]),
        (404, "", ["VLLM_SERVER_DEV_MODE=1 is not set", "vllm serve org/name"]),
        (200, "<html>", ["no vLLM server", "vllm serve org/name"]),
        (200, "{}", ["no vLLM server"]),
    ],
)
def test_a_server_without_them_is_one_line(server, status, body, words):
    with pytest.raises(UserError) as error:
        require_server(server(status, body), "org/name")
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)


def test_no_server_is_one_line():
    with pytest.raises(UserError, match="no vLLM server that accepts weights"):
        require_server("http://localhost:9", "org/name")


class Generation:
    """Stands for trl.generation.VLLMGeneration: two tokens a completion, of which the last is 7."""

    logprob: float | None = -0.25

    def generate(self, prompts, images, num_generations):
        self.asked = (prompts, images, num_generations)
        tokens = [[p[0], 7] for p in prompts]
        return prompts, tokens, [[[-0.5], [self.logprob]] for _ in prompts], None


def test_vllm_answers_become_completions():
    generation = Generation()
    params = SamplingParams(max_tokens=12, temperature=0.7, stop_ids=frozenset({7}), seed=1)
    (first, second) = complete(generation, [[3, 4], [5]], 2, params)
    assert generation.asked == ([[3, 4], [3, 4], [5], [5]], None, 2)
    assert (generation.temperature, generation.max_completion_length) == (0.7, 12)
    assert generation.generation_kwargs == {"stop_token_ids": [7], "ignore_eos": True}
    assert [c.tokens for c in first] == [[3, 7], [3, 7]] and [c.tokens for c in second] == [[5, 7], [5, 7]]
    assert first[0].logprobs == [-0.5, -0.25] and first[0].stop_reason == "stop"
    cut = complete(generation, [[3]], 1, SamplingParams(2, 0.7, frozenset({8}), seed=1))
    assert cut[0][0].stop_reason == "length"


@pytest.mark.parametrize("logprob", [None, math.nan, -math.inf])
def test_a_token_without_a_log_probability_is_no_training_data(logprob):
    generation = Generation()
    generation.logprob = logprob
    with pytest.raises(UserError, match="finite log-probability"):
        complete(generation, [[3]], 1, SamplingParams(2, 1.0, frozenset({7}), seed=1))


def accelerate(config: str, processes: int, *arguments: str, cwd) -> subprocess.CompletedProcess[str]:
    """`accelerate launch --config_file conf/accelerate/CONFIG.yaml -m recipes.rl_basic engine=trl ...`"""
    return subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(ROOT / f"conf/accelerate/{config}.yaml"),
         "--num_processes", str(processes), "-m", "recipes.rl_basic", "engine=trl", "device=cpu", "logger=none", *arguments],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}, text=True, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=850,
    )  # fmt: skip


SHORT = ("max_steps=2", "batch_size=4", "group_size=4", "max_tokens=16", "save_every=1", "keep_last=9",
         "+rewards.length._target_=tests.engines.test_trl_launch.length", "preflight=off", "eval_every=0")  # fmt: skip


def length(rollouts) -> list[float]:
    """A reward that differs within every group."""
    return [sum(r.completion.tokens) % 97 / 97 for r in rollouts]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> list[dict]:
    """The metrics of one process."""
    folder = tmp_path_factory.mktemp("plain")
    result = rl_basic("engine=trl", "device=cpu", "logger=none", *SHORT, "run_dir=r", cwd=folder)
    assert result.returncode == 0, result.stderr
    return read_jsonl(folder / "r/metrics.jsonl")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("config", "processes"), [("ddp", 2), ("zero2", 1), ("zero3", 1)])
def test_the_shipped_launches(config, processes, plain, tmp_path):
    """One run directory, one record, a model that loads, and the numbers of one process without a launcher."""
    if config.startswith("zero") and not importlib.util.find_spec("deepspeed"):
        pytest.skip("needs deepspeed: pip install 'tanka-rl[trl]'")
    result = accelerate(config, processes, *SHORT, "run_dir=r", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    rows = read_jsonl(tmp_path / "r/metrics.jsonl")
    for row, wanted in zip(rows, plain, strict=True):
        for name in ("reward_total", "loss", "grad_norm", "entropy", "tokens/mean", "trust/kl_max"):
            assert row[name] == pytest.approx(wanted[name], abs=1e-5), name
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tmp_path / "r/final")
    more = accelerate(config, processes, *SHORT, "run_dir=r", "max_steps=3", cwd=tmp_path)
    assert more.returncode == 0 and "resuming" in more.stderr + more.stdout, more.stderr
    assert len(read_jsonl(tmp_path / "r/metrics.jsonl")) == 3


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "flashreinforce"])
def test_the_embedded_task_is_learnt(loss, tmp_path):
    result = rl_basic(
        "engine=trl", f"loss={loss}", "logger=none", "engine.microbatch_rows=32", "run_dir=r", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    rows = read_jsonl(tmp_path / "r/metrics.jsonl")
    assert rows[0]["reward_total"] < 0.3 and sum(row["reward_total"] for row in rows[-5:]) / 5 >= 0.9
    # On policy, in float32: rounding, which grows a little with the certainty of the policy.
    apart = [max(abs(math.log(row[name])) for name in ("ratio/max", "ratio/min")) for row in rows]
    assert apart[0] < 1e-5 and max(apart) < 5e-4
    assert "max |log rho|" in (tmp_path / "r/train.log").read_text()


def sample_from_shards(rank: int, port: int, model, lora: bool, prompts, found) -> None:
    from torch.distributed.fsdp import fully_shard

    from rl.engines.local import decode
    from rl.engines.local.sampler import sample
    from rl.engines.trl.trainer import _unsharded, without_wrapper

    decode.decodes = lambda model: False  # as on a GPU, where FSDP is

    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    if lora:
        model = get_peft_model(model, LoraConfig(target_modules="all-linear", r=2))
    inner = model.get_base_model() if lora else model
    for layer in inner.model.layers:
        fully_shard(layer)
    fully_shard([inner.model.norm, inner.lm_head])  # accelerate's groups: layers, the tail, the rest
    fully_shard(model)
    params = SamplingParams(12, 1.0, frozenset(range(30)), seed=2)
    with _unsharded(model):
        completions = sample(without_wrapper(model), prompts[rank], 2, params, 1e12)
    loss = model(torch.tensor([prompts[0][0]])).logits.float().logsumexp(-1).sum()  # the shards still train
    loss.backward()
    found.put((rank, [[c.tokens for c in group] for group in completions], loss.item()))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lora", [False, True])
def test_fsdp2_shards_are_whole_while_sampling(lora, tiny_random_model):
    """Two processes with different numbers of prompts, tokens and forward passes; no GPU, so by FSDP2's own call."""
    from rl.engines.local.sampler import sample
    from tests.helpers.recipes import free_port

    model = tiny_random_model()[0].eval()
    prompts = [[[5] * 7, [6, 7, 8]], [[40, 41]]]
    params = SamplingParams(12, 1.0, frozenset(range(30)), seed=2)
    context = torch.multiprocessing.get_context("spawn")
    found, port = context.Queue(), free_port()
    workers = [
        context.Process(target=sample_from_shards, args=(rank, port, model, lora, prompts, found))
        for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    results = {rank: rest for rank, *rest in (found.get(timeout=150) for _ in workers)}
    for worker in workers:
        worker.join(60)
    for rank, share in enumerate(prompts):
        wanted = sample(model, share, 2, params, 1e12)
        assert results[rank][0] == [[c.tokens for c in group] for group in wanted]
    assert results[0][1] == pytest.approx(results[1][1])
