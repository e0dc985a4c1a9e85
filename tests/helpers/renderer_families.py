"""Small tokenizers with each model family's special tokens and published chat template (TRL ships the templates)."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "The answer is \\boxed{42}.\n\nuser\nassistant\nsystem\nYou are a helpful assistant.\n",
    "Tom has 3 bags. Each bag has 4 apples. How many apples are there?\n\nThink step by step.\n",
    "User: What is 1 + 1?\n\nAssistant: 2\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n",
    "りんごが3個あります。答えは\\boxed{5}です。\n日本語の文章を考えます。\n",
]
# The split that Qwen2 and Llama 3 share in spirit: newlines stick to what precedes them, digits and words apart.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
LLAMA = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
)
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")


@dataclass(frozen=True)
class Family:
    """template: a file name of TRL's. special, plain: added tokens that decoding may skip, and that it may not."""

    template: str | None
    special: tuple[str, ...]
    eos: str
    plain: tuple[str, ...] = ()
    bos: str | None = None
    renderer: str = "chat_template"


FAMILIES = {
    "qwen3": Family("qwen3", CHATML, "<|im_end|>", ("<think>", "</think>", *TOOLS), renderer="qwen3"),
    "qwen3-2507": Family("qwen3_instruct_2507", CHATML, "<|im_end|>", ("<think>", "</think>", *TOOLS)),
    "qwen3.5": Family(
        "qwen3_5_think", CHATML, "<|im_end|>", ("<think>", "</think>", *TOOLS), renderer="qwen3"
    ),
    "qwen3.5-small": Family(
        "qwen3_5_nothink", CHATML, "<|im_end|>", ("<think>", "</think>"), renderer="qwen3"
    ),
    "qwen2.5": Family("qwen2_5", CHATML, "<|im_end|>", ("<tool_call>", "</tool_call>"), renderer="qwen2"),
    "llama3.1": Family("llama3_1", LLAMA, "<|eot_id|>", bos="<|begin_of_text|>", renderer="llama3"),
    "llama3.2": Family("llama3_2", LLAMA, "<|eot_id|>", bos="<|begin_of_text|>", renderer="llama3"),
    "deepseek": Family(
        "deepseek_r1_distill", DEEPSEEK, DEEPSEEK[1], ("<think>", "</think>"), bos=DEEPSEEK[0]
    ),
    "gemma3": Family(
        "gemma3", ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<eos>", ("\n\n",), bos="<bos>"
    ),
    "base": Family(None, ("<|endoftext|>",), "<|endoftext|>", renderer="role_colon"),
    "llama-base": Family(
        None,
        ("<|begin_of_text|>", "<|end_of_text|>"),
        "<|end_of_text|>",
        bos="<|begin_of_text|>",
        renderer="role_colon",
    ),
}
CHAT_FAMILIES = [name for name, family in FAMILIES.items() if family.template]


@functools.cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    family = FAMILIES[name]
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=450, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(CORPUS * 4, trainer)
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.special])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in family.plain])
    if family.bos:
        core.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", special_tokens=[(family.bos, core.token_to_id(family.bos))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=family.bos, eos_token=family.eos, pad_token=family.eos
    )
    if family.template:
        tokenizer.chat_template = template_text(family.template)
    return tokenizer


def template_text(name: str) -> str:
    trl = importlib.util.find_spec("trl")  # found, not imported: importing it takes seconds
    assert trl is not None and trl.submodule_search_locations is not None
    return (Path(trl.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja").read_text(
        encoding="utf-8"
    )
