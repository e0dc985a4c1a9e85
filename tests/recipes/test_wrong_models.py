"""Checkpoints that cannot be trained, or are not checkpoints: rejected in one line before anything is trained."""

from __future__ import annotations

import pytest

from rl.errors import UserError
from rl.models.compatibility import require_causal
from tests.helpers.forked import start

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("bert", "an encoder"), ("roberta", "an encoder"), ("modernbert", "an encoder"), ("bart", "an encoder-decoder"),
     ("t5", "an encoder-decoder")],
)  # fmt: skip
def test_what_reads_both_ways_is_refused(architecture, kind):
    from transformers import AutoConfig

    with pytest.raises(UserError, match=f"{architecture} is {kind}; expected a causal language model"):
        require_causal(AutoConfig.for_model(architecture), "folder")


@pytest.mark.parametrize(
    "architecture", ["qwen2", "qwen3", "llama", "gemma3_text", "gemma3", "gpt2", "smollm3"]
)
def test_what_writes_from_left_to_right_is_taken(architecture):
    from transformers import AutoConfig, BertConfig

    require_causal(AutoConfig.for_model(architecture), "folder")
    require_causal(BertConfig(is_decoder=True), "folder")


def test_a_run_of_bert_ends_before_its_first_step(tmp_path, tiny_random_model):
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = tiny_random_model()[1]
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **SMALL)).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    process = start(
        "rl_basic", "model.path=bert", "model.lora=null", "logger=none", "run_dir=r", cwd=tmp_path
    )
    assert process.wait() == 2
    assert "bert is an encoder; expected a causal language model" in process.err.splitlines()[-1]
    assert not (tmp_path / "r/metrics.jsonl").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_git_lfs_pointer_in_place_of_a_file_is_named(name, tmp_path, tiny_random_model):
    model, tokenizer = tiny_random_model()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / name).write_text("version https://git-lfs.example/spec/v1\noid sha256:0\nsize 9\n")
    process = start("rl_basic", "model.path=model", "logger=none", "run_dir=r", cwd=tmp_path)
    assert process.wait() == 2
    said = process.err.splitlines()[-1]
    assert f"{name}: is a Git LFS pointer" in said and "git lfs pull" in said


def test_a_reward_too_large_for_float32_moves_no_weights_and_ends_the_run(tmp_path):
    """1e308 is finite, but not its sum over a batch: three such steps are skipped, and then the run says why it ends."""
    (tmp_path / "huge.py").write_text("def huge(rollouts):\n    return [1e308] * len(rollouts)\n")
    process = start(
        "rl_basic", "+rewards.huge._target_=huge.huge", "batch_size=2", "group_size=2", "max_tokens=4", "max_steps=5", "logger=none",
        "eval_every=0", "data.train_size=8", "data.test_size=2", "run_dir=r", cwd=tmp_path,
    )  # fmt: skip
    assert process.wait() == 2, process.err
    assert "Traceback" not in process.err and "max_nonfinite_steps=3" in process.err
    assert "rewards.huge: returned 1e+308 on problem" in process.out
