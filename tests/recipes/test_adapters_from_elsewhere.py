"""An adapter that no run here made: PEFT files without tokenizer, base.json or run, e.g. from a Tinker service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rl.models.adapters import probe_logits
from tests.helpers.recipes import ROOT, run_recipe

TINY = ROOT / "assets" / "tiny"
FILES = {"adapter_config.json", "adapter_model.safetensors"}


def merge(folder: Path, *arguments: str):
    return run_recipe("merge_adapter", "adapter=adapter", "device=cpu", *arguments, cwd=folder)


@pytest.fixture
def adapter(tmp_path: Path):
    """`tmp_path`/adapter with the two files of an adapter of the embedded model, whose base is named by a Hub id."""
    import peft
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if ".lora_B" in name:
                weight.normal_(std=0.02)
    adapted.save_pretrained(tmp_path / "adapter")
    (tmp_path / "adapter" / "README.md").unlink()
    change(tmp_path / "adapter", base_model_name_or_path="Qwen/Qwen3-8B", target_modules="all-linear")
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == FILES
    return adapted.eval()


def change(adapter: Path, **facts) -> None:
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **facts}))


@pytest.mark.parametrize("modules", ["all-linear", None])
def test_it_is_merged_with_the_tokenizer_of_its_base(modules, adapter, tmp_path):
    """SkyRL's archives leave the adapted modules out (None)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    change(tmp_path / "adapter", target_modules=modules)
    done = merge(tmp_path, f"base={TINY}", "out=merged", "dtype=float32")
    assert done.returncode == 0, done.stderr
    assert "merged 56 LoRA tensors in float32" in done.stdout
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(TINY).get_vocab()
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(TINY).chat_template
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert (probe_logits(merged, tokenizer) - probe_logits(adapter, tokenizer)).abs().max() < 1e-4


def without(name: str):
    return lambda adapter, base: (adapter / name).unlink()


@pytest.mark.parametrize(
    ("damage", "arguments", "words"),
    [
        (lambda adapter, base: (base / "tokenizer.json").unlink(), ("base=base",), "neither this folder nor the adapter's"),
        (lambda adapter, base: change(adapter, base_model_name_or_path=None), (), "names no base model; type base=FOLDER"),
        (lambda adapter, base: None, (), "base=Qwen/Qwen3-8B: "),
        (without("adapter_model.safetensors"), ("base=base",), "cannot be loaded onto base=base"),
        (lambda adapter, base: change(adapter, r=4), ("base=base",), "cannot be loaded onto base=base"),
        (lambda adapter, base: (adapter / "tokenizer.json").write_text("{"), ("base=base",), "its tokenizer cannot be loaded"),
    ],
)  # fmt: skip
def test_what_is_missing_or_damaged_is_one_line(damage, arguments, words, adapter, tmp_path):
    import shutil

    shutil.copytree(TINY, tmp_path / "base")
    damage(tmp_path / "adapter", tmp_path / "base")
    done = merge(tmp_path, *arguments, "out=merged")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ") and words in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "merged").exists()
