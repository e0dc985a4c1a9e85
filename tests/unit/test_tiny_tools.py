"""The embedded agent: its exercises, what it is taught, and what ships."""

from __future__ import annotations

import re
from random import Random

import pytest
import yaml

from environments.calculator import Calculator, CalculatorConfig
from renderers.chat_template import ChatTemplate
from renderers.tool_calls import ToolCall, hermes_calls
from rewards.grading.extract import boxed_answer
from rl.errors import UserError
from rl.tiny import agent, arithmetic
from rl.tiny.build import TinyConfig, corpus, lesson, make_tokenizer
from rl.tiny.word_problems import LANGUAGES
from tests.helpers.recipes import ROOT

FACTS = yaml.safe_load((ROOT / "conf/model/tiny_tools.yaml").read_text(encoding="utf-8"))["facts"]
SUFFIX = yaml.safe_load((ROOT / "conf/data/shared/boxed.yaml").read_text(encoding="utf-8"))["suffix"]
SHIPPED = ROOT / "assets/tiny_tools"


def config(**changes) -> TinyConfig:
    settings = {
        "kind": "agent", "out": "unused", "seed": 0, "steps": 10, "sums": 0.0, "habit": 0.3, "batch_size": 8,
        "learning_rate": 3e-3, "held_out": 8, "suffix": SUFFIX,
    }  # fmt: skip
    return TinyConfig(**(settings | changes))


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SHIPPED)


# --- exercises --------------------------------------------------------------------------------------------------


def test_problems_are_a_pure_function_of_the_arguments():
    problems = arithmetic.generate("train", 200, 0, "both")
    assert problems[:50] == arithmetic.generate("train", 50, 0, "both")
    assert problems != arithmetic.generate("train", 200, 1, "both")
    assert len({problem.id for problem in problems}) == 200
    assert [problem.language for problem in problems[:4]] == ["en", "ja", "en", "ja"]


def test_no_pair_of_numbers_is_in_both_splits():
    pairs = {
        split: {
            frozenset((sign, *map(int, (left, right))))
            for problem in arithmetic.generate(split, 1500, 0, "both")
            for left, sign, right in [re.match(r"(\d+)(.)(\d+)", problem.id).groups()]
        }
        for split in ("train", "test")
    }
    assert not pairs["train"] & pairs["test"]


def test_answers_are_right_and_the_question_names_the_numbers_in_order():
    for split in ("train", "test"):
        for problem in arithmetic.generate(split, 300, 0, "both"):
            expression = problem.id.split("-")[0]
            assert Calculator().calculate(expression) == problem.answer
            assert re.findall(r"\d+", problem.question) == re.findall(r"\d+", expression)


def test_too_many_problems_is_one_line(monkeypatch):
    monkeypatch.setattr(arithmetic, "RANGES", {"*": (12, 13), "+": (100, 101)})
    with pytest.raises(UserError, match=r"data=arithmetic has about .* different train problems"):
        arithmetic.generate("train", 1000, 0, "en")


# --- lessons ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_it_is_taught_is_what_it_will_see(tokenizer, language):
    """Each segment has the ids that the renderer gives in a run."""
    renderer = ChatTemplate(tokenizer, "chat_template", frozenset([tokenizer.eos_token_id]))
    rng = Random(0)
    for _ in range(40):
        one = arithmetic.draw("train", language, rng)
        asked = [{"role": "user", "content": one.question + SUFFIX[language]}]
        row = agent.calling_row(one, SUFFIX[language])
        ids = [tokenizer.encode(text) for text, _ in row]
        assert ids[0] == renderer.prompt(asked, CalculatorConfig(name="calculator").tools)
        (call,) = hermes_calls(row[1][0])
        assert call == ToolCall("calculate", {"expression": one.expression})
        result = Calculator().calculate(one.expression)
        assert ids[2] == renderer.continuation([{"role": "tool", "name": "calculate", "content": result}])
        assert boxed_answer(row[3][0].removesuffix(agent.IM_END)).answer == str(one.answer)
        assert [learn for _, learn in row] == [False, True, False, True]
        assert len(ids[1]) + len(ids[3]) <= 48  # fits the recipe's budget of 64
        plain = agent.guessing_row(one, SUFFIX[language], rng, tools=False)
        assert tokenizer.encode(plain[0][0]) == renderer.prompt(asked)
        guess = boxed_answer(plain[1][0].removesuffix(agent.IM_END)).answer
        assert guess is not None and abs(int(guess) - one.answer) <= agent.GUESS_RANGE * one.answer + 1


def test_practice_mostly_calls_and_the_habit_mostly_guesses(tokenizer):
    def share(step: int) -> float:
        rows = lesson(tokenizer, config(batch_size=400), step, Random(step))
        return sum(len(row) == 4 for row in rows) / len(rows)

    assert share(0) == pytest.approx(agent.PRACTICE_CALLS, abs=0.06)
    assert share(9) == pytest.approx(agent.HABIT_CALLS, abs=0.06)


def test_an_agent_is_taught_no_bare_sums():
    with pytest.raises(UserError, match="type sums=0"):
        config(sums=0.25)


# --- what ships -------------------------------------------------------------------------------------------------


def test_the_weights_are_small_and_as_the_catalogue_says(tokenizer):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(SHIPPED)
    assert (SHIPPED / "model.safetensors").stat().st_size < 4_000_000
    assert model.num_parameters() == FACTS["parameters"]
    assert model.config.vocab_size == len(tokenizer) == FACTS["vocab_size"]


def test_the_shipped_tokenizer_is_the_builders(tokenizer):
    made = make_tokenizer(corpus(config()), "agent")
    assert made.get_vocab() == tokenizer.get_vocab() and made.chat_template == tokenizer.chat_template


def test_the_card_keeps_its_promises():
    """Before RL: it guesses mostly, and every call ends in the right box."""
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    rows = {
        language: [float(cell) for cell in cells.split("|")[:-1]]
        for language, cells in re.findall(r"^\| (en|ja) \|(.+)$", card, re.M)
    }
    for reward, calls, right_with, right_without, *_ in rows.values():
        assert reward < 0.3 and 0.1 < calls < 0.25 and right_with >= 0.98 and right_without < 0.1


def test_its_template_renders_structured_calls(tokenizer):
    call = {"type": "function", "function": {"name": "calculate", "arguments": {"expression": "2*3"}}}
    messages = [
        {"role": "user", "content": "2*3?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "calculate", "content": "6"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert hermes_calls(text) == [ToolCall("calculate", {"expression": "2*3"})]
    assert text.endswith("<tool_response>\n6\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
