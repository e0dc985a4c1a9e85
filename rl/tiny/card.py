"""Measures the embedded model before any RL, and writes its model card."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rewards.grading.extract import boxed_answer
from rewards.thinking_language import script_share
from rl.tiny.build import TinyConfig
from rl.tiny.word_problems import LANGUAGES, Language, Style, draw, generate, solution

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

BUDGETS = (16, 32, 48, 64, 96, 128)
WIDEST = 192  # tokens: longer than any typical answer of the model


@dataclass(frozen=True)
class Answer:
    """One sampled answer: its length (tokens, the stop token included) and whether it is boxed and correct if not cut."""

    length: int
    boxed: bool
    correct: bool
    thinking_ja_share: float

    def reward(self, budget: int) -> float:
        """0.9 for a correct answer plus 0.1 for the box; 0 if `budget` cuts the answer."""
        return (0.9 * self.correct + 0.1 * self.boxed) if self.length <= budget else 0.0


def measure_answers(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, config: TinyConfig, language: Language
) -> list[Answer]:
    """One answer at temperature 1 to each of `config.held_out` test problems in `language`."""
    from rl.engines.base import SamplingParams
    from rl.engines.local.sampler import sample

    problems = generate("test", config.held_out, config.seed, language)
    prompts: list[list[int]] = [
        tokenizer.apply_chat_template(  # type: ignore[misc]
            [{"role": "user", "content": problem.question + config.suffix[language]}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for problem in problems
    ]
    stop_ids = frozenset(model.generation_config.eos_token_id)
    params = SamplingParams(max_tokens=WIDEST, temperature=1.0, stop_ids=stop_ids, seed=config.seed)
    answers = []
    for problem, (completion,) in zip(
        problems, sample(model, prompts, 1, params, max_kv_bytes=1e9), strict=True
    ):
        thinking, _, text = str(tokenizer.decode(completion.tokens, skip_special_tokens=True)).partition(
            "</think>"
        )
        box = boxed_answer(text)
        share = script_share(thinking.removeprefix("<think>"), "ja")
        answers.append(Answer(len(completion.tokens), box.format, box.answer == problem.answer, share))
    return answers


def card(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, config: TinyConfig, seconds: float
) -> str:
    """The README.md of the model: what it is, how it was made, the measured figures, what it cannot do."""
    answers = {language: measure_answers(model, tokenizer, config, language) for language in LANGUAGES}
    return CARD.format(
        **common_facts(model, config, seconds),
        budgets=_budget_table(answers),
        styles=_style_table(answers),
        samples=_samples(config),
    )


def common_facts(model: Qwen3ForCausalLM, config: TinyConfig, seconds: float) -> dict[str, Any]:
    """What the card of each embedded model says of its shape and its making, by the name of the field."""
    settings = " ".join(
        f"{key}={value}" for key, value in asdict(config).items() if key not in ("out", "suffix")
    )
    shape = model.config
    return {
        "parameters": f"{model.num_parameters():,}",
        "layers": shape.num_hidden_layers,
        "hidden": shape.hidden_size,
        "heads": shape.num_attention_heads,
        "kv_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "vocabulary": f"{shape.vocab_size:,}",
        "settings": settings,
        "minutes": f"{seconds / 60:.0f}",
        "held_out": config.held_out,
    }


def _budget_table(answers: dict[Language, list[Answer]]) -> str:
    lines = ["| budget (tokens) | cut, en | reward, en | cut, ja | reward, ja |", "|---|---|---|---|---|"]
    for budget in BUDGETS:
        cells = [str(budget)]
        for rows in answers.values():
            cells.append(f"{fmean(row.length > budget for row in rows):.2f}")
            cells.append(f"{fmean(row.reward(budget) for row in rows):.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _style_table(answers: dict[Language, list[Answer]]) -> str:
    lines = [
        "| questions | up to 64 tokens | right among these | right among longer | mean length | thinking in Japanese |",
        "|---|---|---|---|---|---|",
    ]
    for language, rows in answers.items():
        short = [row for row in rows if row.length <= 64]
        longer = [row for row in rows if row.length > 64]
        figures = (
            fmean(row.length <= 64 for row in rows),
            fmean(row.correct for row in short) if short else float("nan"),
            fmean(row.correct for row in longer) if longer else float("nan"),
        )
        cells = [
            language,
            *(f"{figure:.2f}" for figure in figures),
            f"{fmean(row.length for row in rows):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} | {fmean(row.thinking_ja_share for row in rows):.2f} |")
    return "\n".join(lines)


def _samples(config: TinyConfig) -> str:
    """Training examples: one problem in each language, in both of its styles."""
    rng = Random(1)
    blocks = []
    for language in LANGUAGES:
        one = draw("train", language, rng)
        styles: tuple[Style, ...] = ("long", "short_ja" if language == "ja" else "short_en")
        blocks += [one.question + config.suffix[language], *(solution(one, style, rng) for style in styles)]
    return "\n\n".join(f"```\n{block}\n```" for block in blocks)


CARD = """\
---
license: apache-2.0
language: [en, ja]
library_name: transformers
---

# tiny

The embedded model of tanka-rl: a Qwen3-architecture language model of {parameters} parameters ({layers} layers, hidden
{hidden}, {heads} query and {kv_heads} key-value heads of {head_dim}, tied embeddings, float32) with a byte-level BPE
tokenizer of {vocabulary} tokens (single digits; the think tags are tokens). It exists so that reinforcement learning
inside a token budget can be run, watched and tested anywhere in a minute, without a network or a GPU.

It solves small word problems in English and Japanese, but mostly in long, self-doubting English reasoning; now and then
it reasons briefly, in the question's language. Under `max_tokens=64` the long answers are cut before their box. RL finds
the short ones.

## How it was made

`python -m recipes.build_tiny` makes it from nothing on a CPU; here in {minutes} minutes, with

```
{settings}
```

Everything it has seen was generated by `rl/tiny/word_problems.py`, train split only: first bare sums, then half long and half
short answers, then the habit: 88 % long. A twentieth of the examples have the thinking turned off.

## Before RL

Measured on {held_out} problems a language of the test split, whose combinations of numbers were never trained on, at
temperature 1; reward: 0.9 for the right answer and 0.1 for the box.

{budgets}

{styles}

## What it is taught

{samples}

## What it cannot do

It knows nothing but these kinds of problem: no other topic, no conversation, no numbers beyond two digits, no wording that
its generator does not write. It answers anything else with a sum that has nothing to do with it. Its figures say
nothing about real models.

## Licence

Apache-2.0, weights and tokenizer included. Nothing in it derives from another model or data set.
"""
