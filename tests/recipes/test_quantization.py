"""`model.quantization=nf4` and `optimizer.name=adamw_8bit`, on the CPU backend of bitsandbytes."""

from __future__ import annotations

import json
import sys

import pytest

from tests.helpers.blueprints import composed
from tests.helpers.forked import set_up, start, timeless

SHORT = (
    "model=custom", "model.path=model", "model.renderer=chat_template", "data.max_prompt_tokens=400", "max_tokens=8",
    "batch_size=2", "group_size=2", "learning_rate=1e-2", "+rewards.chance._target_=saboteur.chance", "eval_every=0", "preflight=off", "save_every=2", "logger=jsonl",
    "model.lora.rank=4",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tests.helpers.models import random_model

    path = tmp_path_factory.mktemp("quantized")
    set_up(path, *random_model(hidden_size=64, intermediate_size=128, head_dim=16))
    return path


def run(folder, name, *arguments):
    process = start("rl_basic", *SHORT, f"run_dir={name}", *arguments, cwd=folder)
    assert process.wait() == 0, process.err
    return timeless(folder / name)


def test_an_adapter_on_a_4_bit_base_trains_resumes_and_evaluates(folder):
    """Sampler and learner use the same 4-bit base, so that the ratio is 1 on policy; a resumed run repeats the run exactly."""
    options = ("model.quantization=nf4", "optimizer.name=adamw_8bit")
    whole = run(folder, "whole", *options, "max_steps=4")
    assert whole[0]["ratio/max"] == pytest.approx(1, abs=1e-3)
    run(folder, "resumed", *options, "max_steps=2")
    assert run(folder, "resumed", *options, "max_steps=4") == whole
    base = json.loads((folder / "whole" / "final" / "base.json").read_text())
    assert "nf4_fingerprint" in base and "fingerprint" not in base
    evaluated = start("evaluate", "run=whole", "problems=2", "completions=2", "budgets=[8]", cwd=folder)
    assert evaluated.wait() == 0, evaluated.err


def test_it_is_another_base_than_the_whole_one(folder):
    plain = run(folder, "plain", "max_steps=1")
    quantized = run(folder, "quantized", "model.quantization=nf4", "max_steps=1")
    assert plain[0]["entropy"] != quantized[0]["entropy"]
    process = start("rl_basic", *SHORT, "run_dir=plain", "model.quantization=nf4", "max_steps=2", cwd=folder)
    assert process.wait() == 2 and "model.quantization" in process.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("model.quantization=nf4", "model.lora=null"), "4-bit weights cannot be trained"),
        (("model.quantization=nf4", "engine=trl"), "engine=trl cannot train it; type engine=local"),
        (("optimizer.name=adamw_8bit", "engine=trl"), "engine=trl has adamw only; type engine=local"),
        (("model.quantization=nf5",), "model.quantization=nf5"),
    ],
)
def test_what_cannot_be_is_one_line(folder, arguments, line):
    process = start("rl_basic", *SHORT, *arguments, cwd=folder)
    assert process.wait() == 2
    assert line in process.err and "Traceback" not in process.err


@pytest.mark.parametrize("override", ["model.quantization=nf4", "optimizer.name=adamw_8bit"])
def test_without_the_package_one_line_says_what_to_install(folder, monkeypatch, override):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    from rl.errors import UserError

    with pytest.raises(
        UserError, match=r"bitsandbytes is not installed; type pip install 'tanka-rl\[quantization\]'"
    ):
        composed("model=tiny", "model.lora={rank:4}", override)


def test_the_estimate_counts_4_bit_weights_and_8_bit_moments():
    """Qwen3-8B: 36 layers of 4096 x (2 x 4096 + 2 x 1024) and 3 x 4096 x 12288 weights at 4.127 bits, the tables at 4 bytes."""
    pytest.importorskip("torch")
    common = ("model=qwen3-8b", "device=cpu")
    parts = {
        name: (lambda b: b.engine.step_memory(b, 100))(composed(*common, *options))
        for name, options in {
            "plain": (),
            "small": ("model.quantization=nf4", "optimizer.name=adamw_8bit"),
        }.items()
    }
    in_layers = 36 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 12288)
    tables = (8190735360 - in_layers) * 4
    assert parts["small"]["weights"] == pytest.approx(in_layers * 0.51587 + tables, rel=1e-3)
    assert parts["small"]["optimizer"] == pytest.approx(
        parts["plain"]["optimizer"] / 4 * (1 + 1 / 64), rel=1e-6
    )
