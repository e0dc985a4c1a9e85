"""Memory and cost estimates: hand-derived, against real models, and against what a fresh process takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl.engines.local.memory import ModelShape, shape_of, step_memory
from rl.preflight.cost import run_cost
from rl.rollouts import Completion, Parsed, Problem
from tests.helpers.blueprints import composed, options
from tests.helpers.recipes import ROOT
from tests.helpers.rollouts import one_turn

SHAPE = ModelShape(
    parameters=1000, layers=2, heads=4, kv_heads=2, head_dim=8, hidden_size=16, intermediate_size=24, vocab_size=100
)  # fmt: skip


def test_memory_by_hand() -> None:
    blueprint = composed("batch_size=2", "group_size=3", "max_tokens=10", "engine.microbatch_tokens=50")
    parts = step_memory(blueprint, blueprint.engine, SHAPE, 20, on_gpu=False, max_kv_bytes=1e9)
    assert (parts["weights"], parts["adapters"], parts["gradients"], parts["optimizer"]) == (
        4000,
        0,
        4000,
        8000,
    )
    # Two groups of a prompt of 20 and 3 x 10 tokens; keys and values of 2 layers x 2 heads x 8 in float32.
    assert parts["kv_cache"] == 2 * 50 * 2 * 2 * 2 * 8 * 4
    # A micro-batch is one group: 50 tokens, each with 6 x 16 + 4 x 24 + 4 x (32 + 16) values a layer.
    assert parts["activations"] == 50 * 2 * (96 + 96 + 192) * 4
    assert parts["training_logits"] == 3 * 30 * 100 * 4 and parts["sampling_logits"] == 3 * 6 * 100 * 4
    assert parts["peak"] == 16000 + parts["activations"] + parts["training_logits"]
    checkpointed = composed(
        "batch_size=2", "group_size=3", "max_tokens=10", "engine.gradient_checkpointing=true"
    )
    parts = step_memory(checkpointed, checkpointed.engine, SHAPE, 20, False, 1e9)
    assert parts["activations"] == 100 * (2 * 16 + 384) * 4


def test_memory_of_a_lora_on_a_gpu() -> None:
    blueprint = composed("model=qwen3-8b", "data=word_problems")
    parts = step_memory(blueprint, blueprint.engine, shape_of(blueprint.model), 128, True, 40 * 2**30)
    assert parts["weights"] == 2 * 8190735360
    # rank 32 on q, k, v, o, gate, up, down of 36 layers: 87.3 million values in float32
    assert parts["adapters"] == 4 * 87293952 and parts["optimizer"] == 2 * parts["adapters"]
    assert parts["kv_cache"] <= 40 * 2**30 and parts["peak"] < 140 * 2**30


def test_shapes_are_those_of_real_models(tiny_random_model, tmp_path: Path) -> None:
    from rl.models.config import LoraConfig, ModelConfig
    from rl.models.loading import add_lora

    for architecture in ("qwen3", "llama"):
        model, _ = tiny_random_model(architecture)
        model.save_pretrained(tmp_path / architecture)
        shape = shape_of(ModelConfig(name="mine", path=str(tmp_path / architecture)))
        assert shape.parameters == pytest.approx(model.num_parameters(), rel=0.02)
        listed = composed("model=tiny", f"model.path={tmp_path / architecture}").model
        assert shape_of(listed) == shape  # not the catalogue's
        lora = LoraConfig(rank=4)
        adapted, _ = add_lora(model, lora, checkpointing=False, seed=0)
        trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
        assert shape.adapter_parameters(lora) == trained


@pytest.mark.parametrize("name", [name for name in options("model") if name != "custom"])
def test_the_catalogue_has_every_model_s_shape(name: str) -> None:
    model = composed(f"model={name}").model
    shape = shape_of(model)
    layers = shape.layers * sum(inputs * outputs for inputs, outputs in shape.linears.values())
    tables = shape.parameters - layers
    # Three of Qwen3.5's four layers are of another kind; a mixture of experts keeps more weights than a token uses.
    if not name.startswith("qwen3.5") and "experts" not in model.facts:
        assert tables == pytest.approx(
            shape.vocab_size * shape.hidden_size * (1 if model.facts["tied_embeddings"] else 2), rel=0.02
        )


def test_the_price_and_the_time_of_a_run_by_hand() -> None:
    blueprint = composed(
        "model=qwen3-8b", "data=word_problems", "batch_size=4", "group_size=2", "max_tokens=256"
    )
    problem, parsed = Problem("p", "q", "1", "en", "test"), Parsed("", "", "", "length")
    rollouts = [
        one_turn(problem, 0, [1] * 50, Completion([1] * n, [-1.0] * n, "stop"), parsed) for n in (100, 200)
    ]
    cost = run_cost(
        blueprint,
        steps=10,
        problems=4,
        rollouts=rollouts,
        tokens_per_second=600,
        update_seconds_per_token=0.005,
        test_problems=[3],
    )
    assert (cost.rollouts, cost.prompt_tokens, cost.completion_tokens) == (8, 400, 1200)
    # Two evaluations of 3 problems, and 8 rollouts before step 1: 2 x 450 and 1200 tokens.
    assert (cost.sample_seconds, cost.update_seconds) == (2.0, 6.0)
    assert cost.other_seconds == pytest.approx(3.5) and cost.seconds == pytest.approx(83.5)
    assert cost.to_json()["token_ceiling"] == 10 * 8 * 256 + 2 * 3 * 256 + 8 * 512
    # 0.195, 0.60 and 0.44 USD a million tokens that are read, sampled and trained
    steps = 10 * (400 * 0.195 + 1200 * 0.60 + 1600 * 0.44)
    others = (2 * 150 + 400) * 0.195 + (2 * 450 + 1200) * 0.60
    assert cost.usd == pytest.approx((steps + others) / 1e6)


def test_a_budget_for_the_reasoning_costs_a_second_reading() -> None:
    """One of two rollouts goes on after 150 tokens: it reads 50 + 150 again, in 10 x 8 + 2 x 3 + 8 rollouts."""
    common = ("model=qwen3-8b", "data=word_problems", "batch_size=4", "group_size=2", "max_tokens=256")
    problem, parsed = Problem("p", "q", "1", "en", "test"), Parsed("", "", "", "length")
    rollouts = [
        one_turn(problem, 0, [1] * 50, Completion([1] * n, [-1.0] * n, "stop"), parsed) for n in (100, 200)
    ]
    plain, split = (
        run_cost(
            composed(*common, f"thinking_tokens={tokens}"), 10, 4, rollouts, 600, 0.005, test_problems=[3]
        ).usd
        for tokens in ("null", 150)
    )
    assert plain and split and split - plain == pytest.approx(94 * 200 / 2 * 0.195 / 1e6)


def test_a_completion_that_was_cut_may_use_the_whole_of_a_wider_budget() -> None:
    """Of two completions at 256 tokens one was cut: the check, at 512, is estimated at 256 / 2 + 512 / 2 a rollout."""
    blueprint = composed("batch_size=4", "group_size=2", "max_tokens=256", "eval_every=0")
    problem, parsed = Problem("p", "q", "1", "en", "test"), Parsed("", "", "", "length")
    rollouts = [
        one_turn(problem, 0, [1], Completion([1] * 256, [-1.0] * 256, reason), parsed) for reason in ("stop", "length")
    ]  # fmt: skip
    cost = run_cost(blueprint, 1, 4, rollouts, 100.0, 0.0, test_problems=[0])
    assert cost.other_seconds == pytest.approx(8 * (256 + 512) / 2 / 100)


def test_passes_of_an_update() -> None:
    tiny, lora = composed(), composed("model=qwen3-8b", "data=word_problems")
    assert [each.engine.forward_passes(each) for each in (tiny, lora)] == [3, 2]
    again = composed("engine.gradient_checkpointing=true")
    assert again.engine.forward_passes(again) == 4


MEASURE = """
import sys
import torch
from rl.engines.base import SamplingParams
from rl.rollouts import TrainingRow
from rl.models.loading import open_renderer
from rl.engines.local.memory import shape_of, step_memory
from tests.helpers.blueprints import composed
import rl.engines.local.learner, rl.engines.local.sampler, peft, transformers.models.qwen3.modeling_qwen3

def resident(line):
    facts = dict(text.split(":") for text in open("/proc/self/status").read().splitlines() if text.startswith("Vm"))
    return int(facts[line].split()[0]) * 1024

torch.set_num_threads(1)
blueprint = composed("model=custom", "model.path=" + sys.argv[1], "model.stop_tokens=[]", "batch_size=8", "group_size=4",
                     "max_tokens=32", "max_steps=1", "engine.microbatch_tokens=4096", *sys.argv[2:])
tokenizer, _ = open_renderer(blueprint.model, blueprint.renderer)
before = resident("VmRSS")
engine = blueprint.engine.open(blueprint, tokenizer)
prompts = [list(range(10, 74))] * blueprint.batch_size
sampled = engine.sampler.sample(prompts, 4, SamplingParams(32, 1.0, frozenset({1}), 1))
rows = [TrainingRow(p, c.tokens, [True] * len(c.tokens), c.logprobs, [1e-4 * (-1) ** i] * len(c.tokens))
        for p, group in zip(prompts, sampled) for i, c in enumerate(group)]
for _ in range(2):  # AdamW's moments are there from the second update on
    engine.learner.update(rows, blueprint.loss, 1e-6)
estimate = blueprint.engine.step_memory(blueprint, 64)
print(estimate["peak"] / (resident("VmHWM") - before))
"""


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("training", ["model.lora=null", "model.lora.rank=32"])
def test_the_estimate_is_what_a_fresh_process_takes(
    training, compute, tiny_random_model, tmp_path: Path
) -> None:
    """33 million parameters, 1,536 tokens in one micro-batch: within a quarter of the peak resident memory."""
    model, tokenizer = tiny_random_model(
        "qwen3", vocab_size=16000, hidden_size=512, intermediate_size=1536, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, initializer_range=0.02, tie_word_embeddings=True,
    )  # fmt: skip
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    # Freed memory goes back to the system at once, so that the peak is what is in use.
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path), training, f"engine.compute={compute}"],
        env=environment, text=True, capture_output=True, timeout=280,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert 0.75 < float(result.stdout.splitlines()[-1]) < 1.25
