"""The embedded model: what ships loads, behaves as its card says, and can be rebuilt."""

from __future__ import annotations

import re
import unicodedata
from statistics import fmean

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rl.errors import UserError
from rl.tiny.build import IM_END, TinyConfig, make_model, make_tokenizer, sums_row, teach
from tests.helpers.recipes import ROOT, run_recipe

TINY = ROOT / "assets/tiny"
FACTS = yaml.safe_load((ROOT / "conf/model/tiny.yaml").read_text(encoding="utf-8"))["facts"]
SUFFIX = yaml.safe_load((ROOT / "conf/data/shared/boxed.yaml").read_text(encoding="utf-8"))["suffix"]


def config(**changes) -> TinyConfig:
    settings = {
        "kind": "word_problems", "out": "unused", "seed": 0, "steps": 6, "sums": 0.34, "habit": 0.33, "batch_size": 4, "learning_rate": 3e-3,
        "held_out": 8, "suffix": SUFFIX,
    }  # fmt: skip
    return TinyConfig(**(settings | changes))


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(TINY)


def test_the_weights_are_small_and_as_the_catalogue_says(model, tokenizer):
    assert (TINY / "model.safetensors").stat().st_size < 4_000_000
    assert model.num_parameters() == FACTS["parameters"]
    stated = {
        "layers": model.config.num_hidden_layers,
        "heads": model.config.num_attention_heads,
        "kv_heads": model.config.num_key_value_heads,
        "head_dim": model.config.head_dim,
        "hidden_size": model.config.hidden_size,
        "intermediate_size": model.config.intermediate_size,
        "vocab_size": len(tokenizer),
        "tied_embeddings": model.config.tie_word_embeddings,
    }
    assert stated == {key: FACTS[key] for key in stated}
    assert model.config.model_type == "qwen3" and model.config.vocab_size == len(tokenizer)


def test_what_ends_an_answer(model, tokenizer):
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == ends
    assert tokenizer.eos_token == IM_END


def test_think_tags_are_tokens_that_stay_visible(tokenizer):
    ids = tokenizer("<think>\nx\n</think>\n\ny<|im_end|>")["input_ids"]
    assert tokenizer.convert_ids_to_tokens([ids[0], ids[-1]]) == ["<think>", "<|im_end|>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>\nx\n</think>\n\ny"
    assert tokenizer.decode(tokenizer("<|im_start|>user")["input_ids"], skip_special_tokens=True) == "user"


def test_digits_are_single_tokens(tokenizer):
    assert tokenizer.tokenize("12345") == list("12345")


@given(text=st.text(max_size=60))
def test_any_text_survives_the_tokenizer(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == unicodedata.normalize("NFC", text)


def test_chat_template_byte_for_byte(tokenizer):
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\n1+1=2\n</think>\n\n2"},
        {"role": "user", "content": "2+2?"},
    ]
    asked = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
    )

    def rendered(**options):
        return tokenizer.apply_chat_template(chat, tokenize=False, **options)

    assert rendered() == asked
    assert rendered(add_generation_prompt=True) == asked + "<|im_start|>assistant\n"
    assert rendered(add_generation_prompt=True, enable_thinking=True) == asked + "<|im_start|>assistant\n"
    off = rendered(add_generation_prompt=True, enable_thinking=False)
    assert off == asked + "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize("language", ["en", "ja"])
def test_before_rl_long_answers_are_cut_at_64_tokens_and_short_ones_are_right(model, tokenizer, language):
    from rl.tiny.card import measure_answers

    answers = measure_answers(model, tokenizer, config(held_out=128), language)
    short = [answer for answer in answers if answer.length <= 64]
    assert 0.04 <= len(short) / len(answers) <= 0.25
    assert fmean(answer.reward(64) for answer in answers) <= 0.25
    assert fmean(answer.correct for answer in short) >= 0.8
    assert fmean(answer.length > 128 for answer in answers) <= 0.02
    assert fmean(answer.reward(128) for answer in answers) >= 0.85
    assert fmean(answer.thinking_ja_share for answer in answers) <= 0.2
    if language == "ja":
        assert fmean(answer.thinking_ja_share for answer in short) >= 0.6


def test_with_the_thinking_off_it_answers_at_once(model, tokenizer):
    import torch

    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Tom has 12 apples and gives half of them to a friend. Then Tom buys 5 more."
          " How many apples does Tom have now?" + SUFFIX["en"]}],
        add_generation_prompt=True, enable_thinking=False, return_tensors="pt", return_dict=True,
    )  # fmt: skip
    with torch.inference_mode():
        output = model.generate(**prompt, do_sample=False, max_new_tokens=64)
    said = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert said.endswith(f"{IM_END}") and "think>" not in said and "\\boxed{11}" in said


def test_the_card_has_the_figures():
    text = (TINY / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in text and f"{FACTS['parameters']:,} parameters" in text
    assert re.search(r"^\| 64 \| 0\.[789]", text, re.MULTILINE)


def test_teaching_learns_and_is_repeatable():
    import torch

    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        small = make_tokenizer(iter(["3×4=12. 5+6=11. 9-2=7. 8÷4=2."] * 3))
        lines: list[str] = []
        teach(make_model(small), small, config(steps=21, batch_size=2, sums=1.0, habit=0.0), lines.append)
        losses.append([float(re.search(r"loss ([\d.]+)", line)[1]) for line in lines])
    assert losses[0] == losses[1]
    assert losses[0][-1] < 0.6 * losses[0][0]


def test_only_the_results_of_bare_sums_are_learnt():
    from random import Random

    row = sums_row(Random(0))
    assert all(text.endswith("=") != learnt for text, learnt in row)
    assert [learnt for _, learnt in row] == [False, True] * (len(row) // 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps=0: expected a positive whole number"),
        ({"learning_rate": 2.0}, "learning_rate=2.0: expected a number in"),
        ({"sums": 0.7, "habit": 0.6}, "sums=0.7 habit=0.6: expected shares"),
    ],
)
def test_bad_settings_are_one_line(change, message):
    with pytest.raises(UserError, match=re.escape(message)):
        config(**change)


def test_the_recipe_builds_a_model_that_loads(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done = run_recipe("build_tiny", "out=made", "steps=3", "batch_size=2", "held_out=4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "made"
    assert AutoModelForCausalLM.from_pretrained(made).num_parameters() == FACTS["parameters"]
    assert len(AutoTokenizer.from_pretrained(made)) == FACTS["vocab_size"]
    assert "steps=3" in (made / "README.md").read_text(encoding="utf-8")
