"""What the embedded agent is taught: to call a calculator without a slip, and the habit of guessing instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

from rl.tiny.arithmetic import Exercise, draw
from rl.tiny.word_problems import LANGUAGES

IM_END = "<|im_end|>"
TOOL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VOCABULARY = 768
CORPUS_EXERCISES = 3000  # a language
PRACTICE_CALLS = 0.85  # share of calls while it learns to call
HABIT_CALLS = 0.17  # and afterwards; RL should raise it
NO_TOOLS = 0.05  # share of prompts without tools: it can only guess
GUESS_RANGE = 0.2  # a guess is within this share of the true result

# Qwen's format with a shorter list of tools: `calculate(expression)`.
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\nTools:' }}
{%- for tool in tools %}
{{- ' ' + tool.function.name + '(' + (tool.function.parameters.properties | join(', ')) + ')' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}
{{- '<|im_start|>user' }}
{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

_TOOLS_SHOWN = "<|im_start|>system\nTools: calculate(expression)<|im_end|>\n"
_ASKED = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
_SHOWN = "\n<|im_start|>user\n<tool_response>\n{result}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
_CALL = '<tool_call>\n{{"name": "calculate", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'
_ANSWER = {"en": "The answer is \\boxed{{{answer}}}.", "ja": "答えは\\boxed{{{answer}}}です。"}
_GUESS = {
    "en": ("Let me think. It is about {answer}. ", "Hmm, I think it is {answer}. "),
    "ja": ("ええと、だいたい{answer}です。", "たぶん{answer}だと思います。"),
}


def prompt(one: Exercise, suffix: str, tools: bool = True) -> str:
    """What the chat template makes of the question; the tests compare the two."""
    return (_TOOLS_SHOWN if tools else "") + _ASKED.format(question=one.question + suffix)


def calling_row(one: Exercise, suffix: str) -> list[tuple[str, bool]]:
    """A trajectory with a call, as segments: each text is encoded apart, and those marked True have a loss."""
    return [
        (prompt(one, suffix), False),
        (_CALL.format(expression=one.expression) + IM_END, True),
        (_SHOWN.format(result=one.answer), False),
        (_ANSWER[one.language].format(answer=one.answer) + IM_END, True),
    ]


def guessing_row(one: Exercise, suffix: str, rng: Random, tools: bool = True) -> list[tuple[str, bool]]:
    """A trajectory that guesses: a number near the true one."""
    guess = round(one.answer * rng.uniform(1 - GUESS_RANGE, 1 + GUESS_RANGE))
    said = rng.choice(_GUESS[one.language]) + _ANSWER[one.language]
    return [(prompt(one, suffix, tools), False), (said.format(answer=guess) + IM_END, True)]


def rows(suffix: dict[str, str], count: int, calls: float, rng: Random) -> list[list[tuple[str, bool]]]:
    """`count` rows on new train exercises, in alternating languages; a share of `calls` with a call."""
    made = []
    for index in range(count):
        language = LANGUAGES[index % 2]
        one = draw("train", language, rng)
        if rng.random() < calls:
            made.append(calling_row(one, suffix[language]))
        else:
            made.append(guessing_row(one, suffix[language], rng, tools=rng.random() >= NO_TOOLS))
    return made


def corpus(suffix: dict[str, str], seed: int) -> Iterator[str]:
    """The texts for the tokenizer's merges, without the tokens that it is given whole."""
    rng = Random(f"agent corpus {seed}")
    tags = "|".join(map(re.escape, (*TOOL_TAGS, "<|im_start|>", IM_END)))
    for _ in range(CORPUS_EXERCISES):
        for row in rows(suffix, 2, 0.5, rng):
            for text, _ in row:
                yield from re.split(tags, text)
