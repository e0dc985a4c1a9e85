"""`engine.compute`: bfloat16 or float32 matrix products, the same in sampler and learner."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode

from rl.engines.base import SamplingParams
from rl.engines.local import precision
from rl.engines.local.learner import LocalLearner
from rl.engines.local.precision import Precision, compute_dtype
from rl.engines.local.sampler import sample
from rl.optimizer import OptimizerConfig
from tests.helpers.forked import set_up, start, timeless

SHORT = (
    "model=custom", "model.path=model", "model.renderer=chat_template", "data.max_prompt_tokens=400", "max_tokens=8",
    "batch_size=2", "group_size=2", "learning_rate=1e-2", "+rewards.chance._target_=saboteur.chance", "eval_every=0", "preflight=off", "save_every=2", "logger=jsonl",
    "rewards=boxed",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, tiny_random_model):
    set_up(tmp_path, *tiny_random_model())
    return tmp_path


def run(folder, name, *arguments):
    process = start("rl_basic", *SHORT, f"run_dir={name}", *arguments, cwd=folder)
    assert process.wait() == 0, process.err
    return timeless(folder / name)


def test_bfloat16_is_close_on_policy_and_resumes_exactly(folder):
    """The mismatch of sampler and learner is bfloat16's rounding, is logged, and a resumed run repeats it bit for bit."""
    whole = run(folder, "whole", "engine.compute=bfloat16", "max_steps=4")
    run(folder, "resumed", "engine.compute=bfloat16", "max_steps=2")
    assert run(folder, "resumed", "engine.compute=bfloat16", "max_steps=4") == whole
    exact = run(folder, "exact", "engine.compute=float32", "max_steps=1")
    assert exact[0]["ratio/max"] == pytest.approx(1, abs=1e-4)
    assert 1e-4 < abs(whole[0]["ratio/max"] - 1) < 0.2
    assert whole[0]["ratio/mean"] == pytest.approx(1, abs=0.02)


def test_a_run_keeps_its_precision(folder):
    run(folder, "run", "engine.compute=float32", "max_steps=1")
    process = start("rl_basic", *SHORT, "run_dir=run", "engine.compute=bfloat16", "max_steps=2", cwd=folder)
    assert process.wait() == 2
    assert "engine.compute" in process.err and "Traceback" not in process.err


@pytest.mark.parametrize(
    ("share", "chosen"), [(0.5, torch.bfloat16), (0.7, torch.bfloat16), (0.71, torch.float32)]
)
def test_a_trial_decides_for_a_large_model(monkeypatch, tiny_random_model, share, chosen):
    monkeypatch.setattr(precision, "WORTH_A_TRIAL", 0)
    monkeypatch.setattr(precision, "bfloat16_share", lambda inputs, outputs: share)
    assert compute_dtype(tiny_random_model()[0], "auto") == chosen


def test_a_small_model_needs_no_trial(monkeypatch, tiny_random_model):
    monkeypatch.setattr(precision, "bfloat16_share", lambda inputs, outputs: pytest.fail("a trial ran"))
    model = tiny_random_model()[0]
    assert compute_dtype(model, "auto") == torch.float32
    assert compute_dtype(model, "bfloat16") == torch.bfloat16
    assert compute_dtype(model.bfloat16(), "auto") == torch.bfloat16


def test_the_trial_compares_both_formats():
    assert 0.01 < precision.bfloat16_share(32, 64) < 1000


def test_a_checkpoint_brings_its_precision_along(tmp_path, tiny_random_model):
    """Another trial on resume may choose differently; the run goes on as it began."""
    model, tokenizer = tiny_random_model()

    def learner(compute):
        return LocalLearner(
            model, OptimizerConfig(), 1.0, 100, tokenizer=tokenizer, precision=Precision(compute)
        )

    learner(torch.bfloat16).save(tmp_path)
    resumed = learner(torch.float32)
    resumed.load(tmp_path)
    assert resumed.precision.compute == torch.bfloat16


class Casts(TorchDispatchMode):
    """Counts the casts of weights to bfloat16: of float32 matrices, which states of two rows here are too small for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket in (torch.ops.aten.to, torch.ops.aten._to_copy):
            weight = args[0].dtype == torch.float32 and args[0].dim() == 2 and len(args[0]) > 3
            self.count += weight and result.dtype == torch.bfloat16
        return result


@pytest.mark.parametrize("lora", [False, True])
def test_weights_are_cast_once_for_all_tokens(tiny_random_model, lora):
    """The tokens and log-probabilities are those of autocast, which casts them for each; the layers are left as they were."""
    model = tiny_random_model()[0]
    if lora:
        model = get_peft_model(model, LoraConfig(r=4, init_lora_weights=False)).get_base_model()
    linears = [module for module in model.modules() if type(module) is torch.nn.Linear]
    params = SamplingParams(12, 1.0, frozenset({-1}), seed=3)

    def sampled(context):
        with context, Casts() as casts:
            (completions,) = sample(model, [[5, 6, 7]], 2, params, 2**30)
        return [(each.tokens, each.logprobs) for each in completions], casts.count

    expected, often = sampled(precision.autocast(model.device, torch.bfloat16))
    with Casts() as casts, precision.sampling_in(model, torch.bfloat16):
        pass
    found, never = sampled(precision.sampling_in(model, torch.bfloat16))
    assert found == expected
    assert casts.count == len(linears) and never == 0 and often >= 12 * len(linears)
    assert not any("forward" in vars(module) for module in linears)
