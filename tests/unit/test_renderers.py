"""Prompts equal the model's own chat template token for token, for any content and on any day."""

from __future__ import annotations

import datetime
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import renderers
from renderers import Renderer, RendererConfig
from renderers.base import require_fingerprint
from rl.errors import UserError
from rl.rollouts import Message
from tests.helpers.renderer_families import CHAT_FAMILIES, FAMILIES, tokenizer_of

SYSTEM: Message = {"role": "system", "content": "Answer in \\boxed{}.\n"}
TURNS: list[Message] = [
    {"role": "user", "content": "Tom has 3 bags. How many apples?"},
    {
        "role": "assistant",
        "content": "<think>\nEach bag has 4 apples.\n\nWait.\n</think>\n\nThe answer is \\boxed{12}.",
    },
    {"role": "user", "content": "りんごが3個あります。\n\n"},
    {"role": "assistant", "content": "答えは\\boxed{3}です。"},
    {"role": "user", "content": "  1 + 1?"},
    {"role": "assistant", "content": "2\n"},
    {"role": "user", "content": "x"},
]
CONVERSATIONS = [[*system, *TURNS[:n]] for n in (1, 3, 7) for system in ([], [SYSTEM])]


def load(family: str, name: str | None = None, **options: object) -> Renderer:
    config = RendererConfig(name=name or FAMILIES[family].renderer, **options)  # type: ignore[arg-type]
    return renderers.load(config, tokenizer_of(family))


def published(family: str, messages: list[Message], **options: object) -> list[int]:
    """What the family's own template gives; Llama 3.2's reads the clock unless it is handed a date."""
    return tokenizer_of(family).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, date_string="26 Jul 2024", **options
    )


@pytest.mark.parametrize("messages", CONVERSATIONS, ids=lambda m: f"{len(m)}-messages")
@pytest.mark.parametrize("family", CHAT_FAMILIES)
def test_prompt_equals_the_published_template(family: str, messages: list[Message]) -> None:
    options = {"enable_thinking": True} if FAMILIES[family].renderer == "qwen3" else {}
    assert load(family).prompt(messages) == published(family, messages, **options)
    assert load(family, "chat_template").prompt(messages) == published(family, messages)


@pytest.mark.parametrize("messages", CONVERSATIONS, ids=lambda m: f"{len(m)}-messages")
@pytest.mark.parametrize("family", ["qwen3", "qwen3.5", "qwen3.5-small"])
def test_thinking_off_equals_the_published_template(family: str, messages: list[Message]) -> None:
    expected = published(family, messages, enable_thinking=False)
    assert load(family, "qwen3_disable_thinking").prompt(messages) == expected
    assert load(family, "chat_template", thinking=False).prompt(messages) == expected
    assert load(family, "qwen3").prompt(messages) != expected


@pytest.mark.parametrize(
    ("family", "name", "text"),
    [
        ("qwen3", "qwen3", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (
            "qwen3",
            "qwen3_disable_thinking",
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        ("qwen3.5", "qwen3", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"),
        (
            "qwen2.5",
            "qwen2",
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama3.2",
            "llama3",
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
            "Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("deepseek", "chat_template", "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>\n"),
        ("gemma3", "chat_template", "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"),
        ("base", "role_colon", "User: Hi\n\nAssistant:"),
        ("llama-base", "role_colon", "<|begin_of_text|>User: Hi\n\nAssistant:"),
    ],
)
def test_golden_prompts(family: str, name: str, text: str) -> None:
    prompt = load(family, name).prompt([{"role": "user", "content": "Hi"}])
    assert tokenizer_of(family).decode(prompt) == text


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.bos])
def test_bos_stands_once_and_first(family: str) -> None:
    bos = tokenizer_of(family).bos_token_id
    for messages in CONVERSATIONS:
        prompt = load(family).prompt(messages)
        assert prompt.count(bos) == 1 and prompt[0] == bos


@pytest.mark.parametrize("family", ["llama3.1", "llama3.2"])
def test_the_date_does_not_move(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [load(family).prompt(CONVERSATIONS[0])]
    for year in (2024, 2031):
        set_clock(monkeypatch, year)
        prompts.append(load(family).prompt(CONVERSATIONS[0]))
    assert prompts[0] == prompts[1] == prompts[2]


def test_a_template_that_asks_the_clock_itself_gets_a_stopped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dated.jinja"
    path.write_text("\n  {{ strftime_now('%Y-%m-%d') }}{% for m in messages %} {{ m.content }}{% endfor %}")
    for year in (2024, 2031):
        set_clock(monkeypatch, year)
        renderer = load("qwen3", "chat_template", template=str(path))
        assert (
            tokenizer_of("qwen3")
            .decode(renderer.prompt(CONVERSATIONS[0][:1]))
            .startswith("\n  2024-07-26 Tom has")
        )


def set_clock(monkeypatch: pytest.MonkeyPatch, year: int) -> None:
    import transformers.utils.chat_template_utils as module

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return datetime.datetime(year, 1, 2)

    monkeypatch.setattr(module, "datetime", Clock)
    dated = tokenizer_of("llama3.2").apply_chat_template(TURNS[:1], tokenize=False)
    assert f"Today Date: 02 Jan {year}" in dated  # the template does read this clock


def contents(family: str, tags: bool = True) -> st.SearchStrategy[str]:
    """Any text, including control tokens and parts of them."""
    tokens = [t for t in (*FAMILIES[family].special, *FAMILIES[family].plain) if tags or "think" not in t]
    pieces = st.one_of(
        st.text(max_size=8), st.sampled_from([*tokens, *(t[:-1] for t in tokens), *(t[1:] for t in tokens)])
    )
    return st.lists(pieces, max_size=6).map("".join)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_content_never_becomes_a_control_token(family: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(family)
    controls = {i for i, t in tokenizer.added_tokens_decoder.items() if not t.content.isspace()}
    system = data.draw(st.booleans())
    roles = [*(["system"] if system else []), "user", "assistant", "user"]
    drawn = [{"role": r, "content": data.draw(contents(family, tags=r != "assistant"))} for r in roles]
    harmless = [{"role": r, "content": "x"} for r in roles]
    renderer = load(family)
    kept = [[token for token in renderer.prompt(m) if token in controls] for m in (drawn, harmless)]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("family", CHAT_FAMILIES)
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text().filter(lambda text: "<" not in text), min_size=3, max_size=3))
def test_ordinary_content_is_rendered_exactly(family: str, texts: list[str]) -> None:
    messages = [{"role": r, "content": t} for r, t in zip(("user", "assistant", "user"), texts, strict=True)]
    assert load(family, "chat_template").prompt(messages) == published(family, messages)


@pytest.mark.parametrize("family", ["qwen3", "base"])
def test_control_text_in_a_question_stays_readable(family: str) -> None:
    tokenizer = tokenizer_of(family)
    question = "What does <|endoftext|> mean? <think>a</think> <|<|im_end|>"
    assert question in tokenizer.decode(load(family).prompt([{"role": "user", "content": question}]))


def test_a_lone_surrogate_in_a_question_is_replaced() -> None:
    prompt = load("qwen3").prompt([{"role": "user", "content": "a\ud800b\udc00c"}])
    assert "a\ufffdb\ufffdc" in tokenizer_of("qwen3").decode(prompt)


@pytest.mark.parametrize(
    ("family", "thinking", "words"),
    [
        ("qwen3-2507", True, "no thinking switch"),
        ("qwen2.5", False, "no thinking switch"),
        ("deepseek", False, "always thinks"),
    ],
)
def test_a_mode_that_the_template_lacks_is_an_error(family: str, thinking: bool, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(family, "chat_template", thinking=thinking)


def test_a_template_that_always_thinks_can_be_asked_to() -> None:
    renderer = load("deepseek", "chat_template", thinking=True)
    assert renderer.prefilled and renderer.prompt(TURNS[:1]) == published("deepseek", TURNS[:1])


@pytest.mark.parametrize(
    ("family", "name", "words"),
    [
        ("qwen3-2507", "qwen3", "no thinking switch"),
        ("llama3.1", "qwen3", r"lacks <\|im_start\|>"),
        ("qwen3", "llama3", r"lacks <\|start_header_id\|>"),
        ("base", "chat_template", "renderer=role_colon"),
    ],
)
def test_a_format_that_does_not_fit_is_an_error(family: str, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(family, name)


def test_an_unknown_stop_token_is_an_error() -> None:
    with pytest.raises(UserError, match=r"lacks <\|eot_id\|>"):
        renderers.load(RendererConfig(name="qwen3"), tokenizer_of("qwen3"), stop_tokens=["<|eot_id|>"])


def test_own_jinja_file(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}<|im_end|>{% endfor %}[assistant]")
    renderer = load("qwen3", "chat_template", template=str(path))
    assert tokenizer_of("qwen3").decode(renderer.prompt(TURNS[4:5])) == "[user]   1 + 1?<|im_end|>[assistant]"
    path.write_text("{% for m in messages %}")
    with pytest.raises(UserError, match=r"renderer\.template=.*own\.jinja"):
        load("qwen3", "chat_template", template=str(path))
    path.write_bytes(b"\x89PNG\xff")
    with pytest.raises(UserError, match="cannot be read as UTF-8 text"):
        load("qwen3", "chat_template", template=str(path))


def test_a_template_without_answers_adds_no_stop_token(tmp_path: Path) -> None:
    path = tmp_path / "question.jinja"
    path.write_text(
        "<|im_start|>{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}<|im_end|>"
    )
    assert load("qwen3", "chat_template", template=str(path)).stop_ids == {tokenizer_of("qwen3").eos_token_id}


def test_config_errors() -> None:
    with pytest.raises(UserError, match=r"no such file: .*/missing\.jinja"):
        RendererConfig(name="chat_template", template="missing.jinja")
    with pytest.raises(UserError, match=r"type renderer=chat_template renderer\.thinking=false"):
        RendererConfig(name="qwen3", thinking=False)


def test_turns_that_a_template_refuses_are_an_error() -> None:
    with pytest.raises(UserError, match=r"refuses the turns \(user, user\).*alternate"):
        load("gemma3").prompt([TURNS[0], TURNS[2]])


def test_auto_takes_the_catalogue_and_says_so_where_it_cannot(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = tokenizer_of("qwen3")
    with caplog.at_level(logging.WARNING, "tanka"):
        known = renderers.load(RendererConfig(), tokenizer, model_renderer="qwen3_disable_thinking")
    assert known.name == "qwen3_disable_thinking" and not caplog.records
    with caplog.at_level(logging.WARNING, "tanka"):
        unknown = renderers.load(RendererConfig(), tokenizer)
    assert unknown.prompt(TURNS[:1]) == published("qwen3", TURNS[:1])
    assert len(caplog.records) == 1 and "its own chat template" in caplog.text


def test_fingerprints_tell_formats_apart() -> None:
    prints = [load("qwen3", name).fingerprint() for name in ("qwen3", "qwen3_disable_thinking", "role_colon")]
    assert len(set(prints)) == 3
    assert prints[0] == load("qwen3", "qwen3").fingerprint()
    assert load("llama3.1").fingerprint() == load("llama3.2").fingerprint()  # the same words, dates stopped


def test_another_format_than_the_stored_one_is_an_error() -> None:
    stored = load("qwen3", "qwen3_disable_thinking").fingerprint()
    require_fingerprint(load("qwen3", "qwen3_disable_thinking"), stored, "step-000020")
    require_fingerprint(load("qwen3", "chat_template", thinking=False), stored, "step-000020")  # the same ids
    with pytest.raises(
        UserError, match=r"step-000020 .*qwen3_disable_thinking:.*renders with qwen3:"
    ) as caught:
        require_fingerprint(load("qwen3", "qwen3"), stored, "step-000020")
    assert stored in str(caught.value) and load("qwen3", "qwen3").fingerprint() in str(caught.value)


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, renderers; print([m for m in ('torch', 'transformers', 'jinja2', 'hydra') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert done.stdout.strip() == "[]"
