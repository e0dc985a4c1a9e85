"""The published settings on engine=molt have the published flags, and only flags that the recorded release knows."""

from __future__ import annotations

import json

import pytest

from rl.engines.molt.expressible import require_expressible
from tests.helpers.blueprints import composed
from tests.helpers.molt.presets import PRESETS, command_of
from tests.helpers.recipes import ROOT

RECORD = json.loads((ROOT / "tests/data/molt_flags.json").read_text())

# The launcher of the authors' repository, recipe r1: github.com/yifanzhang-pro/FlashREINFORCE, scripts/train_molt.py.
PUBLISHED_R1 = {
    "data.input_key": "prompt", "data.label_key": "reward_model", "data.max_samples": 1460, "data.max_len": 9216,
    "rollout.batch_size": 128, "rollout.vllm_generate_batch_size": 512, "rollout.micro_batch_size": 1,
    "rollout.n_samples_per_prompt": 1, "rollout.max_new_tokens": 8192, "rollout.temperature": 1.0, "rollout.top_p": 1.0,
    "train.batch_size": 128, "train.micro_batch_size": 1, "train.max_epochs": 1, "train.async_queue_size": 8,
    "actor.num_nodes": 1, "actor.num_gpus_per_node": 1, "vllm.num_engines": 7, "vllm.tensor_parallel_size": 1,
    "vllm.sync_backend": "nccl", "vllm.gpu_memory_utilization": 0.9, "fsdp.param_dtype": "bf16",
    "fsdp.attn_implementation": "flash_attention_2", "actor.gradient_checkpoint": "full", "actor.optim": "adam",
    "actor.adam.lr": 1e-6, "actor.adam.weight_decay": 0.1, "actor.lr_scheduler": "cosine_with_min_lr",
    "actor.lr_warmup_ratio": 0.03, "actor.min_lr_ratio": 0.1, "actor.max_norm": 1.0,
    "actor.loss_agg_mode": "seq-mean-token-mean", "algo.advantage.estimator": "flash_reinforce",
    "algo.advantage.is_correction_level": "seq", "algo.advantage.is_correction_mode": "mask",
    "algo.advantage.is_correction_gating": "binary_kl", "algo.advantage.is_correction_threshold": 5e-3,
    "algo.kl.init_coef": 0, "eval.steps": 128, "eval.n_samples_per_prompt": 32, "eval.temperature": 0.6,
    "eval.top_p": 0.95, "ckpt.save_steps": 50, "logger.logging_steps": 1, "data.apply_chat_template": True,
    "train.force_on_policy": True, "fsdp.packing_samples": True, "eval.eval_at_start": True, "train.num_episodes": 1000,
}  # fmt: skip
# Its recipe qwen_math, where it differs.
PUBLISHED_QWEN = {
    "data.max_samples": 7500, "data.max_len": 6144, "rollout.max_new_tokens": 4096,
    "algo.advantage.is_correction_threshold": 3e-3,
}  # fmt: skip


def test_the_presets_have_the_published_flags():
    r1 = command_of(composed("experiment=molt_flashreinforce_r1", "loss.delta=5e-3", "epochs=1000")).flags
    assert {name: r1.get(name) for name in PUBLISHED_R1} == PUBLISHED_R1
    qwen = command_of(composed("experiment=molt_flashreinforce_qwen_math")).flags
    wanted = {
        name: value for name, value in PUBLISHED_R1.items() if not name.startswith("eval.")
    } | PUBLISHED_QWEN
    wanted["train.num_episodes"] = 68  # of its settings file; the launcher asks for the number
    assert {name: qwen.get(name) for name in wanted} == wanted
    assert not any(name.startswith("eval.") for name in qwen)  # until data.test_path names its benchmarks


# examples/settings/*.json of the same repository, with what its development version of Molt called otherwise.
PUBLISHED_AGENTS = {
    "molt_flashreinforce_python_7b": {
        "data.max_samples": 7500, "data.max_len": 8192, "rollout.max_new_tokens": 6144, "train.num_episodes": 68,
        "algo.advantage.is_correction_threshold": 1e-3, "rollout.batch_size": 128, "actor.lr_warmup_ratio": 0.03,
        "actor.lr_scheduler": "cosine_with_min_lr",
    },
    "molt_flashreinforce_python_moe": {
        "data.max_samples": 7500, "data.max_len": 16384, "rollout.max_new_tokens": 14336, "train.num_episodes": 17,
        "train.async_queue_size": 4, "algo.advantage.is_correction_threshold": 3e-3, "rollout.batch_size": 128,
    },
    "molt_flashreinforce_alfworld": {
        "data.max_samples": 1024, "data.max_len": 16384, "rollout.max_new_tokens": 8192, "train.num_episodes": 20,
        "rollout.batch_size": 64, "actor.lr_scheduler": "constant", "algo.advantage.is_correction_threshold": 1e-3,
        "eval.steps": 40, "eval.n_samples_per_prompt": 3, "eval.temperature": 1.0, "eval.top_p": 0.7,
    },
    "molt_grpo_python_7b": {
        "rollout.batch_size": 32, "rollout.n_samples_per_prompt": 4, "train.batch_size": 128, "train.num_episodes": 17,
        "actor.eps_clip_low_high": [0.2, 0.2], "algo.advantage.estimator": "grpo", "actor.loss_agg_mode": "token-mean",
        "actor.loss_mode": "ppo", "algo.advantage.is_correction_level": "off",
    },
    "molt_grpo_alfworld": {
        "rollout.batch_size": 8, "rollout.n_samples_per_prompt": 8, "train.batch_size": 64, "train.num_episodes": 3,
        "algo.advantage.estimator": "grpo", "actor.loss_agg_mode": "token-mean",
    },
}  # fmt: skip
PUBLISHED_COMMON = {
    "rollout.vllm_generate_batch_size": 16, "rollout.temperature": 1.0, "train.max_epochs": 1, "actor.adam.lr": 1e-6,
    "actor.adam.weight_decay": 0.1, "actor.max_norm": 1.0, "ckpt.save_steps": 10, "fsdp.packing_samples": True,
    "train.force_on_policy": True, "vllm.gpu_memory_utilization": 0.9,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED_AGENTS)
def test_the_presets_of_agents_have_the_published_flags(name):
    flags, wanted = (
        command_of(composed(f"experiment={name}")).flags,
        PUBLISHED_COMMON | PUBLISHED_AGENTS[name],
    )
    if name == "molt_grpo_alfworld":  # more requests than a batch need importance weights
        wanted["rollout.vllm_generate_batch_size"] = 8
    assert {key: flags.get(key) for key in wanted} == wanted


@pytest.mark.parametrize("overrides", PRESETS, ids=" ".join)
def test_every_flag_is_one_that_the_recorded_release_knows(overrides):
    """The record is that of tests/data/molt_flags.json; `make test-molt` says when it is stale."""
    blueprint = composed(*overrides)
    require_expressible(blueprint, blueprint.engine)
    for name, value in command_of(blueprint).flags.items():
        known = RECORD["flags"][name]
        values = value if isinstance(value, list) else [value]
        assert (known["type"] == "flag") == (value is True), name
        assert not known["choices"] or values[0] in known["choices"], name
        assert known["nargs"] in (None, "+", "?", len(values)), name
