"""Completions: split at the model's own think tokens, ended as the sampler reports, never re-encoded."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import renderers
from renderers import Renderer, RendererConfig
from rl.rollouts import Completion, Parsed, StopReason
from tests.helpers.renderer_families import DEEPSEEK, FAMILIES, tokenizer_of

# Family, format, a token that ends a turn, one that ends the text: tags that are tokens, and tags that are plain text.
FORMATS = [
    ("qwen3", "qwen3", "<|im_end|>", "<|endoftext|>"),
    ("qwen3", "qwen3_disable_thinking", "<|im_end|>", "<|endoftext|>"),
    ("qwen2.5", "qwen2", "<|im_end|>", "<|endoftext|>"),
    ("llama3.1", "llama3", "<|eot_id|>", "<|end_of_text|>"),
    ("gemma3", "chat_template", "<end_of_turn>", "<eos>"),
]


def load(family: str, name: str | None = None, stop_tokens: tuple[str, ...] = ()) -> Renderer:
    config = RendererConfig(name=name or FAMILIES[family].renderer)  # type: ignore[arg-type]
    return renderers.load(config, tokenizer_of(family), stop_tokens=stop_tokens)


def completion(family: str, text: str, reason: StopReason = "stop") -> Completion:
    tokens = tokenizer_of(family).encode(text, add_special_tokens=False)
    return Completion(tokens, [-1.0] * len(tokens), reason)


@pytest.mark.parametrize(("family", "name", "turn_end", "text_end"), FORMATS)
def test_each_way_of_ending(family: str, name: str, turn_end: str, text_end: str) -> None:
    renderer = load(family, name, (turn_end, text_end))
    answer = "<think>\n2 and 3 make 5.\n</think>\n\nThe answer is \\boxed{5}."
    whole = ("2 and 3 make 5.", "The answer is \\boxed{5}.", answer)
    assert renderer.parse(completion(family, answer + turn_end)) == Parsed(*whole, ended="stop")
    assert renderer.parse(completion(family, answer + text_end)) == Parsed(*whole, ended="eos")
    assert renderer.parse(completion(family, answer, "length")) == Parsed(*whole, ended="length")
    cut = answer[:20]
    assert renderer.parse(completion(family, cut, "length")) == Parsed(
        "2 and 3 make", "", cut, ended="length", unfinished=True
    )
    no_thought = renderer.parse(completion(family, "5." + turn_end))
    assert no_thought == Parsed("", "5.", "5.", ended="stop")


def test_reasoning_that_the_prompt_opened() -> None:
    renderer = load("deepseek")
    assert renderer.prefilled
    done = renderer.parse(completion("deepseek", "Hm.\n</think>\n\n\\boxed{5}" + DEEPSEEK[1]))
    assert done == Parsed("Hm.", "\\boxed{5}", "Hm.\n</think>\n\n\\boxed{5}", ended="stop", prefilled=True)
    cut = renderer.parse(completion("deepseek", "it is \\boxed{18}, wait", "length"))
    assert (cut.thinking, cut.text, cut.unfinished) == ("it is \\boxed{18}, wait", "", True)


@pytest.mark.parametrize("family", ["qwen3", "qwen2.5"])
@pytest.mark.parametrize(
    ("raw", "thinking", "text"),
    [
        ("<think>\n\n</think>\n\n5", "", "5"),
        ("<think>a</think> first 7 <think>b</think> now 18", "a</think> first 7 <think>b", "now 18"),
        ("<think>a</think> 7 <think>b, and", "a</think> 7 <think>b, and", ""),
        ("Sure. <think>a</think>5", "a", "5"),
        ("a</think>5", "a", "5"),
        ("no tags at all", "", "no tags at all"),
        ("", "", ""),
    ],
)
def test_where_the_answer_starts(family: str, raw: str, thinking: str, text: str) -> None:
    parsed = load(family).parse(completion(family, raw + "<|im_end|>"))
    assert (parsed.thinking, parsed.text, parsed.raw) == (thinking, text, raw)
    assert parsed.unfinished == (raw == "<think>a</think> 7 <think>b, and")


def test_a_tag_spelled_in_letters_is_not_the_model_own_tag() -> None:
    tokenizer = tokenizer_of("qwen3")
    spelled = [token for piece in ("<think>a", "</", "think>", "5") for token in tokenizer.encode(piece)]
    assert load("qwen3").parse(Completion(spelled, [-1.0] * len(spelled), "length")).text == ""


def test_tags_that_are_special_tokens_stay_visible() -> None:
    tokenizer = tokenizer_of("base")
    tokenizer = type(tokenizer)(
        tokenizer_object=type(tokenizer._tokenizer).from_str(tokenizer._tokenizer.to_str()),
        eos_token="<|endoftext|>",
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    renderer = renderers.load(RendererConfig(name="chat_template"), tokenizer)
    tokens = tokenizer.encode("<think>a</think>5<|endoftext|>", add_special_tokens=False)
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "a5"  # what hides the tags elsewhere
    parsed = renderer.parse(Completion(tokens, [-1.0] * len(tokens), "stop"))
    assert (parsed.thinking, parsed.text, parsed.raw) == ("a", "5", "<think>a</think>5")


def test_stop_ids_are_the_union_of_all_sources() -> None:
    tokenizer = tokenizer_of("llama3.1")
    ids = tokenizer.convert_tokens_to_ids(["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"])
    assert load("llama3.1").stop_ids == {ids[0]}  # the tokenizer's EOS is the template's end of turn here
    config = RendererConfig(name="llama3")
    renderer = renderers.load(config, tokenizer, stop_tokens=["<|end_of_text|>"], eos_ids=[ids[2]])
    assert renderer.stop_ids == set(ids)
    assert [renderer.parse(Completion([i], [0.0], "stop")).ended for i in ids] == ["stop", "eos", "eos"]


def test_the_template_end_of_turn_stops_where_eos_is_another_token() -> None:
    assert tokenizer_of("gemma3").convert_tokens_to_ids(["<end_of_turn>"])[0] in load("gemma3").stop_ids


def test_the_sampler_decides_how_a_completion_ended() -> None:
    cut = load("qwen3").parse(completion("qwen3", "5<|im_end|>", "length"))
    assert (cut.text, cut.ended) == ("5", "length")
    stopped = load("qwen3").parse(completion("qwen3", "5", "stop"))
    assert (stopped.text, stopped.ended) == ("5", "stop")


def test_nothing_after_the_first_stop_token_counts() -> None:
    parsed = load("qwen3").parse(completion("qwen3", "7<|im_end|>\n<|im_start|>user\n5<|im_end|>"))
    assert (parsed.text, parsed.raw) == ("7", "7")


@pytest.mark.parametrize("kept", [1, 2])
def test_a_completion_cut_inside_a_character(kept: int) -> None:
    tokenizer = tokenizer_of("qwen3")
    tokens = tokenizer.encode("<think>答", add_special_tokens=False) + tokenizer.encode("鷗")[:kept]
    assert len(tokenizer.encode("鷗")) == 3  # three bytes, no merge
    cut = Completion(list(tokens), [-1.0] * len(tokens), "length")
    parsed = load("qwen3").parse(cut)
    assert parsed.thinking.startswith("答") and parsed.thinking.endswith("\ufffd")
    assert cut.tokens == tokens and tokenizer.encode(parsed.raw, add_special_tokens=False) != tokens


def test_joined_text_would_merge_where_joined_ids_do_not() -> None:
    tokenizer = tokenizer_of("base")
    prompt = load("base").prompt([{"role": "user", "content": "Tom"}])
    sampled = tokenizer.encode(" 2") + tokenizer.encode(".") + tokenizer.encode("\n\n")
    assert tokenizer.encode(tokenizer.decode(sampled)) != sampled  # ".\n\n" would be another split
    assert tokenizer.decode(prompt + sampled) == "User: Tom\n\nAssistant: 2.\n\n"


@pytest.mark.parametrize(
    ("text", "reason", "ended"),
    [
        (" The answer is 2.\n\nUser:", "stop", "stop"),
        (" The answer is 2.<|endoftext|>", "stop", "eos"),
        (" The answer is 2.", "length", "length"),
        (" The answer is 2.\n\nUser: What is 3?\n\nAssistant: 3", "length", "length"),
    ],
)
def test_role_colon_ends_in_three_ways(text: str, reason: StopReason, ended: str) -> None:
    renderer = load("base")
    assert renderer.stop_text == "\n\nUser:"
    expected = Parsed("", "The answer is 2.", " The answer is 2.", ended=ended)  # type: ignore[arg-type]
    assert renderer.parse(completion("base", text, reason)) == expected


def test_role_colon_cuts_what_a_sampler_ran_past() -> None:
    tokenizer, renderer = tokenizer_of("base"), load("base")
    answer = tokenizer.encode(" 2.\n\nUser:")
    ran_past = answer + tokenizer.encode(" What is 3?\n\nUser: 4")
    numbers = [float(-i) for i in range(len(ran_past))]
    cut = renderer.cut(Completion(ran_past, numbers, "length", numbers))
    assert cut == Completion(answer, numbers[: len(answer)], "stop", numbers[: len(answer)])
    assert renderer.parse(cut) == Parsed("", "2.", " 2.", ended="stop")
    for text, reason in ((" 2.", "length"), (" 2.<|endoftext|>", "stop")):
        assert renderer.cut(completion("base", text, reason)) == completion("base", text, reason)  # type: ignore[arg-type]
    assert load("qwen3").cut(completion("qwen3", "a\n\nUser: b")) == completion("qwen3", "a\n\nUser: b")


# Normalised as the tokenizers do; the think tags of the tokenizers without such tokens are plain text.
TEXTS = (
    st.text(st.characters(exclude_categories=["Cs"]))
    .map(lambda text: unicodedata.normalize("NFC", text))
    .filter(lambda text: "think>" not in text)
)


@pytest.mark.parametrize(("family", "name", "turn_end", "text_end"), FORMATS)
@settings(max_examples=60, deadline=None)
@given(thinking=TEXTS, text=TEXTS, eos=st.booleans())
def test_round_trip(
    family: str, name: str, turn_end: str, text_end: str, thinking: str, text: str, eos: bool
) -> None:
    tokenizer = tokenizer_of(family)

    def spelled(content: str) -> list[int]:  # one character at a time: never a control token
        return [
            token for character in content for token in tokenizer.encode(character, add_special_tokens=False)
        ]

    opened, closed, ended = (
        tokenizer.encode(t, add_special_tokens=False)
        for t in ("<think>\n", "\n</think>\n\n", text_end if eos else turn_end)
    )
    tokens = opened + spelled(thinking) + closed + spelled(text) + ended
    renderer = load(family, name, (turn_end, text_end))
    parsed = renderer.parse(Completion(tokens, [-1.0] * len(tokens), "stop"))
    assert (parsed.thinking, parsed.text) == (thinking.strip(), text.strip())
    assert parsed.ended == ("eos" if eos else "stop")


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_ids_parse(family: str, data: st.DataObject) -> None:
    size = len(tokenizer_of(family))
    favorites = st.sampled_from(sorted(tokenizer_of(family).added_tokens_decoder))
    tokens = data.draw(st.lists(st.one_of(st.integers(0, size - 1), favorites), max_size=30))
    reason = data.draw(st.sampled_from(["stop", "length"]))
    parsed = load(family).parse(Completion(list(tokens), [-1.0] * len(tokens), reason))
    assert (parsed.ended == "length") == (reason == "length")
    assert parsed.text in parsed.raw and parsed.thinking in parsed.raw
