"""Builds the embedded models from scratch: a byte-level BPE tokenizer and a small Qwen3, trained on generated rows.

Both are useful starting points for RL inside a token budget. `word_problems` solves its problems, but mostly in long,
self-doubting English that a small budget cuts before the boxed answer. `agent` can call a calculator, but mostly guesses.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal

from rl.errors import UserError
from rl.tiny import agent
from rl.tiny.word_problems import LANGUAGES, Style, WordProblem, draw, solution

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
THINK_TAGS: tuple[str, ...] = ("<think>", "</think>")
IGNORED = -100  # target of tokens without a loss, for cross_entropy
VOCABULARY = 1024
CONTEXT = 1024  # tokens

# Qwen3's chat format: thinking of earlier turns is dropped, and enable_thinking=False answers at once.
CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- set content = message['content'] %}
{%- if message['role'] == 'assistant' and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""

STYLES: tuple[Style, ...] = ("long", "short_en", "short_ja")
# Shares of STYLES by language. Practice is half short, since short answers have the most sums per token; the habit of
# long answers, which RL should break, comes last. Short answers to Japanese questions are mostly in Japanese.
PRACTICE = {"en": (0.5, 0.5, 0.0), "ja": (0.5, 0.15, 0.35)}
HABIT = {"en": (0.88, 0.12, 0.0), "ja": (0.88, 0.012, 0.108)}
NO_THINKING = 0.05  # share of examples with thinking off: an empty think block, then the short steps
SUMS_PER_ROW = 6
CORPUS_PROBLEMS = 4000  # a language

# A training row: texts, each encoded separately, and whether it has a loss.
Segments = list[tuple[str, bool]]


@dataclass
class TinyConfig:
    """How an embedded model is made.

    kind: what it is taught. out: the folder that gets weights, tokenizer and card. steps: optimizer steps: the first
    `sums` of them on bare sums, the last `habit` of them with the habit that RL should break (long answers, guesses) in
    the majority, practice between. An agent is taught no bare sums.
    learning_rate: the peak, reached after 5 % of the steps, then a cosine to zero.
    held_out: test problems a language to measure on. suffix: what ends a prompt, by language.
    """

    kind: Literal["word_problems", "agent"]
    out: str
    seed: int
    steps: int
    sums: float
    habit: float
    batch_size: int
    learning_rate: float
    held_out: int
    suffix: dict[str, str]

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "held_out"):
            if getattr(self, name) < 1:
                raise UserError(
                    f"{name}={getattr(self, name)}: expected a positive whole number, e.g. {name}=100"
                )
        if not 0 < self.learning_rate < 1:
            raise UserError(
                f"learning_rate={self.learning_rate}: expected a number in (0, 1), e.g. learning_rate=3e-3"
            )
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed={self.seed}: expected a whole number from 0 to 2**63 - 1; e.g. seed=0")
        if min(self.sums, self.habit) < 0 or self.sums + self.habit > 1:
            raise UserError(
                f"sums={self.sums} habit={self.habit}: expected shares of at most 1 together, e.g. sums=0.25"
            )
        if self.kind == "agent" and self.sums:
            raise UserError(f"sums={self.sums}: kind=agent is taught no bare sums; type sums=0")


def corpus(config: TinyConfig) -> Iterator[str]:
    """The texts for the tokenizer's merges: questions and answers as used in training."""
    if config.kind == "agent":
        yield from agent.corpus(config.suffix, config.seed)
        return
    rng = Random(f"corpus {config.seed}")
    for _ in range(CORPUS_PROBLEMS):
        for language in LANGUAGES:
            one = draw("train", language, rng)
            yield one.question + config.suffix[language]
            for style in STYLES if language == "ja" else STYLES[:2]:
                yield from re.split("</?think>", solution(one, style, rng))  # the tags are whole tokens


def make_tokenizer(
    texts: Iterator[str], kind: Literal["word_problems", "agent"] = "word_problems"
) -> PreTrainedTokenizerBase:
    """A tokenizer like Qwen3's (NFC, single digits, byte-level BPE) with merges learned from `texts`.

    The think or tool tags are tokens but not special tokens, as in Qwen3, so they stay visible in decoded text.
    """
    from tokenizers import AddedToken
    from transformers import Qwen2Tokenizer

    untaught = Qwen2Tokenizer(
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        extra_special_tokens=[IM_START],
        model_max_length=CONTEXT,
    )
    size, tags, template = VOCABULARY, THINK_TAGS, CHAT_TEMPLATE
    if kind == "agent":
        size, tags, template = agent.VOCABULARY, agent.TOOL_TAGS, agent.CHAT_TEMPLATE
    tokenizer = untaught.train_new_from_iterator(texts, size - len(tags), show_progress=False)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    tokenizer.chat_template = template
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3 of about 0.9 million parameters for `tokenizer`."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    vocabulary = tokenizer.get_vocab()
    ends = [vocabulary[IM_END], vocabulary[END_OF_TEXT]]
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=ends[0],
        pad_token_id=ends[1],
        bos_token_id=None,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, eos_token_id=ends, pad_token_id=ends[1])
    return model


def sums_row(rng: Random) -> Segments:
    """The bare equations of random problems; only the results have a loss."""
    row: Segments = []
    while len(row) < 2 * SUMS_PER_ROW:
        for _, equation in draw("train", "en", rng).steps("en"):
            left, _, result = equation.partition("=")
            row += [(f"{left}=", False), (f"{result}.", True)]
    return row


def chat_row(
    tokenizer: PreTrainedTokenizerBase, suffix: str, one: WordProblem, style: Style, rng: Random
) -> Segments:
    """`one` with its `suffix` as a chat prompt, and its completion in `style`; sometimes with thinking off."""
    thinks = rng.random() >= NO_THINKING
    prompt: str = tokenizer.apply_chat_template(  # type: ignore[assignment]
        [{"role": "user", "content": one.question + suffix}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=thinks,
    )
    if thinks:
        return [(prompt, False), (solution(one, style, rng) + IM_END, True)]
    text = solution(one, "short_ja" if one.language == "ja" else "short_en", rng)
    return [(prompt, False), (text.removeprefix("<think>\n").replace("\n</think>\n\n", "\n") + IM_END, True)]


def lesson(tokenizer: PreTrainedTokenizerBase, config: TinyConfig, step: int, rng: Random) -> list[Segments]:
    """One batch of the stage at `step` (sums, practice, habit): new train problems, alternating languages."""
    habit = step >= (1 - config.habit) * config.steps
    if config.kind == "agent":
        calls = agent.HABIT_CALLS if habit else agent.PRACTICE_CALLS
        return agent.rows(config.suffix, config.batch_size, calls, rng)
    if step < config.sums * config.steps:
        return [sums_row(rng) for _ in range(config.batch_size)]
    shares = HABIT if habit else PRACTICE
    rows = []
    for index in range(config.batch_size):
        language = LANGUAGES[index % 2]
        style = rng.choices(STYLES, shares[language])[0]
        rows.append(chat_row(tokenizer, config.suffix[language], draw("train", language, rng), style, rng))
    return rows


def loss_of(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, rows: list[Segments]
) -> torch.Tensor:
    """Mean cross-entropy (nats) of the tokens that have a loss."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.utils.rnn import pad_sequence

    tokens, targets = [], []
    for row in rows:
        encoded = tokenizer([text for text, _ in row])["input_ids"]
        tokens.append(torch.tensor([token for ids in encoded for token in ids]))
        learnt = [learn for (_, learn), ids in zip(row, encoded, strict=True) for _ in ids]
        targets.append(tokens[-1].where(torch.tensor(learnt), torch.tensor(IGNORED)))
    inputs = pad_sequence(tokens, batch_first=True)[:, :-1]
    wanted = pad_sequence(targets, batch_first=True, padding_value=IGNORED)[:, 1:]
    # Right padding needs no attention mask: in a causal model no earlier position sees it.
    hidden = model.model(inputs, use_cache=False).last_hidden_state
    return cross_entropy(model.lm_head(hidden[wanted != IGNORED]), wanted[wanted != IGNORED])


def teach(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    config: TinyConfig,
    log: Callable[[str], None],
) -> None:
    """Supervised learning in place; `log` is called with a line of progress from time to time.

    Muon (torch.optim.Muon, torch 2.9 or later) moves the matrices and AdamW the rest: after the same number of
    steps AdamW alone had learned 73 % of the sums, Muon 98 %.
    """
    import torch

    rng = Random(f"tiny {config.seed}")
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=config.learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    warmup = max(1, config.steps // 20)

    def rate(step: int) -> float:
        progress = max(0, step - warmup) / max(1, config.steps - warmup)
        return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * progress))

    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, rate) for optimizer in optimizers]
    started = time.perf_counter()
    model.train()
    for step in range(config.steps):
        loss = loss_of(model, tokenizer, lesson(tokenizer, config, step, rng))
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if step % 50 == 0 or step == config.steps - 1:
            log(f"step {step:5d}  loss {loss.item():.4f}  {time.perf_counter() - started:.0f} s")
    model.eval()
