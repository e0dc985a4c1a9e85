"""Measures the embedded agent before any RL, and writes its model card."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any

from environments.calculator import CalculatorConfig
from renderers.chat_template import ChatTemplate
from rewards.grading.extract import boxed_answer
from rl.rollouts import Completion, Parsed, Problem
from rl.tiny import arithmetic
from rl.tiny.agent import HABIT_CALLS, calling_row, guessing_row
from rl.tiny.build import TinyConfig
from rl.tiny.card import common_facts
from rl.tiny.word_problems import LANGUAGES, Language

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

WIDEST = 96  # tokens of one turn: longer than anything it was taught


@dataclass(frozen=True)
class Trajectory:
    """length: sampled tokens, stop tokens included. called: it called the calculator."""

    length: int
    called: bool
    boxed: bool
    correct: bool


def measure(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, config: TinyConfig, language: Language
) -> list[Trajectory]:
    """One trajectory of at most two turns, at temperature 1, on each of `config.held_out` test problems in `language`."""
    problems = arithmetic.generate("test", config.held_out, config.seed, language)
    renderer = ChatTemplate(tokenizer, "chat_template", frozenset(model.generation_config.eos_token_id))
    environment = CalculatorConfig(name="calculator")
    prompts = [
        renderer.prompt(
            [{"role": "user", "content": problem.question + config.suffix[language]}], environment.tools
        )
        for problem in problems
    ]
    first = _sample(model, prompts, renderer.stop_ids, config.seed)
    parsed = [renderer.parse(completion) for completion in first]
    lengths = [len(completion.tokens) for completion in first]
    called, histories = [], []
    for index, problem in enumerate(problems):
        world = environment.make(renderer.calls)
        world.start(problem)
        messages = world.step(parsed[index]) if parsed[index].ended != "length" else None
        if messages is not None:
            called.append(index)
            histories.append(prompts[index] + first[index].tokens + renderer.continuation(messages))
    for index, completion in zip(
        called, _sample(model, histories, renderer.stop_ids, config.seed + 1), strict=True
    ):
        parsed[index] = renderer.parse(completion)
        lengths[index] += len(completion.tokens)
    return [
        _judged(problem, answer, length, index in set(called))
        for index, (problem, answer, length) in enumerate(zip(problems, parsed, lengths, strict=True))
    ]


def _sample(model: Any, prompts: list[list[int]], stop_ids: frozenset[int], seed: int) -> list[Completion]:
    from rl.engines.base import SamplingParams
    from rl.engines.local.sampler import sample

    params = SamplingParams(max_tokens=WIDEST, temperature=1.0, stop_ids=stop_ids, seed=seed)
    return [one for (one,) in sample(model, prompts, 1, params, max_kv_bytes=1e9)] if prompts else []


def _judged(problem: Problem, answer: Parsed, length: int, called: bool) -> Trajectory:
    box = boxed_answer(answer.text)
    return Trajectory(length, called, box.format, box.answer == problem.answer)


def card(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, config: TinyConfig, seconds: float
) -> str:
    """The README.md of the model: what it is, how it was made, the measured figures, what it cannot do."""
    return CARD.format(
        **common_facts(model, config, seconds),
        habit=f"{HABIT_CALLS:.0%}",
        table=_table({language: measure(model, tokenizer, config, language) for language in LANGUAGES}),
        samples=_samples(config),
    )


def _table(measured: dict[Language, list[Trajectory]]) -> str:
    lines = [
        "| questions | reward | calls | right with a call | right without | sampled tokens | the longest |",
        "|---|---|---|---|---|---|---|",
    ]
    for language, rows in measured.items():
        figures = (
            fmean(0.9 * row.correct + 0.1 * row.boxed for row in rows),
            fmean(row.called for row in rows),
            *(
                fmean([row.correct for row in rows if row.called == called] or [float("nan")])
                for called in (True, False)
            ),
        )
        cells = [language, *(f"{figure:.2f}" for figure in figures)]
        lengths = [row.length for row in rows]
        lines.append(f"| {' | '.join(cells)} | {fmean(lengths):.0f} | {max(lengths)} |")
    return "\n".join(lines)


def _samples(config: TinyConfig) -> str:
    """What it is taught: a call and a guess in each language."""
    rng = Random(1)
    blocks = []
    for language in LANGUAGES:
        one = arithmetic.draw("train", language, rng)
        for row in (
            calling_row(one, config.suffix[language]),
            guessing_row(one, config.suffix[language], rng),
        ):
            blocks.append("".join(text for text, _ in row))
    return "\n\n".join(f"```\n{block}\n```" for block in blocks)


CARD = """\
---
license: apache-2.0
language: [en, ja]
library_name: transformers
---

# tiny_tools

The embedded agent of tanka-rl: a Qwen3-architecture language model of {parameters} parameters ({layers} layers, hidden
{hidden}, {heads} query and {kv_heads} key-value heads of {head_dim}, tied embeddings, float32) with a byte-level BPE
tokenizer of {vocabulary} tokens (single digits; the tool tags are tokens). It exists so that reinforcement learning with
tools can be run, watched and tested anywhere in a minute, without a network or a GPU.

Asked for a product or a sum in English or Japanese, it knows how to call a calculator and to copy the result into the
box, but mostly it guesses. RL teaches it to call.

## How it was made

`python -m recipes.build_tiny kind=agent` makes it from nothing on a CPU; here in {minutes} minutes, with

```
{settings}
```

Everything it has seen was generated by `rl/tiny/agent.py` from exercises of the train split: first mostly calls, then the
habit: {habit} calls, the rest guesses.

## Before RL

Measured with the calculator on {held_out} problems a language of the test split, whose pairs of numbers were never trained
on in either order, at temperature 1; reward: 0.9 for the right answer and 0.1 for the box.

{table}

## What it is taught

{samples}

## What it cannot do

It knows nothing but these questions: no other tool, no other topic, no numbers of another length, no wording that its
generator does not write. Its figures say nothing about real models.

## Licence

Apache-2.0, weights and tokenizer included. Nothing in it derives from another model or data set.
"""
