"""Conversations with tools: appended ids equal the model's own template where it keeps history, and calls are read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import renderers
from renderers import Renderer, RendererConfig
from renderers.tool_calls import MOST_CALLS, MalformedCall, ToolCall, hermes_calls, llama_calls, qwen35_calls
from rl.errors import UserError
from rl.rollouts import Completion, Message, Parsed
from tests.helpers.renderer_families import CHAT_FAMILIES, FAMILIES, tokenizer_of

SCHEMA = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiplies <tool_call> two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "description": "One factor."}},
            "required": ["a"],
        },
    },
}
PLAIN_SCHEMA = json.loads(json.dumps(SCHEMA).replace("<tool_call> ", ""))
QUESTION: Message = {"role": "user", "content": "Tom has 3 bags. How many apples?"}
CALLS = {
    "hermes": '<tool_call>\n{"name": "multiply", "arguments": {"a": 3}}\n</tool_call>',
    "qwen3.5": "<tool_call>\n<function=multiply>\n<parameter=a>\n3\n</parameter>\n</function>\n</tool_call>",
    "llama": '{"name": "multiply", "parameters": {"a": 3}}',
}
FORMAT = {
    "qwen3": "hermes",
    "qwen3-2507": "hermes",
    "qwen3.5": "qwen3.5",
    "qwen3.5-small": "qwen3.5",
    "qwen2.5": "hermes",
    "llama3.1": "llama",
    "llama3.2": "llama",
}
TURN_ENDS = {"gemma3": "<end_of_turn>"}  # where it differs from the EOS
RESULT = "12 <|im_end|> りんご\n<tool_call>"
PLAIN_RESULT = "12 りんご"


def load(family: str, name: str = "chat_template", **options: object) -> Renderer:
    return renderers.load(RendererConfig(name=name, **options), tokenizer_of(family))  # type: ignore[arg-type]


def appended(
    family: str, renderer: Renderer, answers: list[str], shown: list[list[Message]], tools=(PLAIN_SCHEMA,)
):
    """Prompt, then each answer as a sampler would give it, with its stop token, and what follows it."""
    tokenizer = tokenizer_of(family)
    ids = renderer.prompt([QUESTION], tools) if tools else renderer.prompt([QUESTION])
    end = TURN_ENDS.get(family, FAMILIES[family].eos)
    for answer, messages in zip(answers, [*shown, None], strict=True):
        ids = ids + tokenizer.encode(answer + end, add_special_tokens=False)
        if messages is not None:
            ids = ids + renderer.continuation(messages)
    return ids


def rendered(family: str, messages: list[dict], **options: object) -> list[int]:
    """The model's own template over the whole conversation, up to the last answer's end token."""
    tokenizer = tokenizer_of(family)
    text = tokenizer.apply_chat_template(messages, tokenize=False, date_string="26 Jul 2024", **options)
    end = TURN_ENDS.get(family, FAMILIES[family].eos)
    return tokenizer.encode(text[: text.rindex(end) + len(end)], add_special_tokens=False)


def calling(content: str = "") -> dict:
    call = {"type": "function", "function": {"name": "multiply", "arguments": {"a": 3}}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3-2507", "llama3.1", "llama3.2"])
def test_tool_turns_equal_the_published_template(family: str) -> None:
    call, result = CALLS[FORMAT[family]], {"role": "tool", "content": PLAIN_RESULT}
    turns = appended(family, load(family), [call, call, "It is 12."], [[result], [result]])
    whole = [QUESTION, calling(), result, calling(), result, {"role": "assistant", "content": "It is 12."}]
    assert turns == rendered(family, whole, tools=[PLAIN_SCHEMA])


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3-2507"])
def test_several_results_after_one_turn_equal_the_published_template(family: str) -> None:
    results = [{"role": "tool", "content": text} for text in ("12", "15")]
    call = "Both.\n" + CALLS["hermes"] + "\n" + CALLS["hermes"]
    whole = [QUESTION, calling("Both."), *results, {"role": "assistant", "content": "12 and 15."}]
    whole[1]["tool_calls"] *= 2
    assert appended(family, load(family), [call, "12 and 15."], [results]) == rendered(
        family, whole, tools=[PLAIN_SCHEMA]
    )


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5"])
def test_thinking_between_tool_calls_is_kept_as_the_published_template_keeps_it(family: str) -> None:
    """After the last question these templates keep the reasoning, so both forms agree."""
    renderer = load(family, "qwen3")
    opening = "" if renderer.prefilled else "<think>\n"
    call, result = CALLS[FORMAT[family]], {"role": "tool", "content": PLAIN_RESULT}
    answers = [f"{opening}Multiply.\n</think>\n\n{call}", f"{opening}Done.\n</think>\n\nIt is 12."]
    whole = [
        QUESTION,
        calling("<think>\nMultiply.\n</think>\n\n"),
        result,
        {"role": "assistant", "content": "<think>\nDone.\n</think>\n\nIt is 12."},
    ]
    assert appended(family, renderer, answers, [[result]]) == rendered(
        family, whole, tools=[PLAIN_SCHEMA], enable_thinking=True
    )


def test_qwen35_without_thinking_equals_the_published_template() -> None:
    for family in ("qwen3.5", "qwen3.5-small"):
        result = {"role": "tool", "content": PLAIN_RESULT}
        whole = [QUESTION, calling(), result, {"role": "assistant", "content": "It is 12."}]
        turns = appended(
            family, load(family, "qwen3_disable_thinking"), [CALLS["qwen3.5"], "It is 12."], [[result]]
        )
        assert turns == rendered(family, whole, tools=[PLAIN_SCHEMA], enable_thinking=False)


@pytest.mark.parametrize(
    ("family", "name", "answer"),
    [
        # An empty think block that the generation prompt wrote is dropped from a call, and stays here.
        ("qwen3", "qwen3_disable_thinking", CALLS["hermes"]),
        # Thinking before a user's turn is dropped by the template, and stays here.
        ("qwen3", "qwen3", "<think>\nHm.\n</think>\n\nGo north."),
        ("qwen3.5", "qwen3", "Hm.\n</think>\n\nGo north."),
        ("deepseek", "chat_template", "Hm.\n</think>\n\nGo north."),
    ],
)
def test_what_a_template_drops_from_history_stays_when_appended(family: str, name: str, answer: str) -> None:
    renderer = load(family, name)
    tokenizer = tokenizer_of(family)
    tools = [PLAIN_SCHEMA] if "tool_call" in answer else []
    shown: list[Message] = [{"role": "tool" if tools else "user", "content": "12"}]
    turns = appended(family, renderer, [answer, "Done."], [shown], tools)
    said = calling() if tools else {"role": "assistant", "content": answer}
    whole = [QUESTION, said, *shown, {"role": "assistant", "content": "Done."}]
    assert turns != rendered(family, whole, tools=tools or None)
    text = tokenizer.decode(turns)
    assert answer in text and text.count("<think>") + text.count("</think>") >= 2


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3-2507", "llama3.1", "llama3.2", "gemma3"])
def test_user_turns_equal_the_published_template(family: str) -> None:
    replies: list[list[Message]] = [[{"role": "user", "content": "You see a door."}]] * 2
    turns = appended(family, load(family), ["Open it.", "Go in.", "Done."], replies, tools=())
    whole = [QUESTION]
    for answer in ("Open it.", "Go in."):
        whole += [{"role": "assistant", "content": answer}, replies[0][0]]
    assert turns == rendered(family, [*whole, {"role": "assistant", "content": "Done."}])


@pytest.mark.parametrize("family", CHAT_FAMILIES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_what_a_tool_returns_never_becomes_a_control_token(family: str, data: st.DataObject) -> None:
    tokenizer, renderer = tokenizer_of(family), load(family)
    controls = {i for i, t in tokenizer.added_tokens_decoder.items() if not t.content.isspace()}
    pieces = st.one_of(
        st.text(max_size=8), st.sampled_from([*FAMILIES[family].special, *FAMILIES[family].plain])
    )
    role = "tool" if family in FORMAT else "user"
    content = "".join(data.draw(st.lists(pieces, max_size=6)))
    kept = [
        [token for token in renderer.continuation([{"role": role, "content": text}]) if token in controls]
        for text in (content, "x")
    ]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("family", FORMAT)
def test_a_schema_and_a_result_stay_readable(family: str) -> None:
    tokenizer, renderer = tokenizer_of(family), load(family)
    assert "Multiplies <tool_call> two numbers." in tokenizer.decode(renderer.prompt([QUESTION], [SCHEMA]))
    shown = tokenizer.decode(renderer.continuation([{"role": "tool", "content": RESULT}]))
    assert "12 <|im_end|> りんご" in shown


@pytest.mark.parametrize("family", ["deepseek", "gemma3"])
def test_a_template_without_tools_is_an_error(family: str) -> None:
    with pytest.raises(UserError, match="leaves out the tool multiply"):
        load(family).prompt([QUESTION], [SCHEMA])


def test_a_format_without_tools_and_turns_is_an_error() -> None:
    renderer = load("base", "role_colon")
    with pytest.raises(UserError, match="cannot show tools"):
        renderer.prompt([QUESTION], [SCHEMA])
    with pytest.raises(UserError, match="cannot continue a conversation"):
        renderer.continuation([QUESTION])


# --- reading calls ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FORMAT)
def test_each_family_reads_its_own_format(family: str) -> None:
    renderer, tokenizer = load(family), tokenizer_of(family)
    tokens = tokenizer.encode(CALLS[FORMAT[family]] + FAMILIES[family].eos, add_special_tokens=False)
    if renderer.prefilled:
        tokens = tokenizer.encode("Hm.\n</think>\n\n", add_special_tokens=False) + tokens
    parsed = renderer.parse(Completion(tokens, [0.0] * len(tokens), "stop"))
    (call,) = renderer.calls(parsed)
    assert isinstance(call, ToolCall) and call.name == "multiply"
    assert str(call.arguments["a"]) == "3"
    assert renderer.calls(Parsed("", "The answer is \\boxed{3}.", "", "stop")) == []


def test_a_call_in_unfinished_thinking_does_not_count() -> None:
    renderer, tokenizer = load("qwen3", "qwen3"), tokenizer_of("qwen3")
    tokens = tokenizer.encode("<think>\n" + CALLS["hermes"], add_special_tokens=False)
    assert renderer.calls(renderer.parse(Completion(tokens, [0.0] * len(tokens), "stop"))) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<tool_call>{"name": "multiply", "arguments": {"a": 3}</tool_call>', "not valid JSON"),
        ("<tool_call>", "not valid JSON"),
        ("<tool_call>" + "[" * 100_000, "not valid JSON"),
        ('<tool_call>{"arguments": {"a": 3}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": 3}</tool_call>', 'no "name"'),
        ("<tool_call>[1]</tool_call>", 'no "name"'),
        ('<tool_call>{"name": "m", "arguments": [3]}</tool_call>', "not an object"),
        ('<tool_call>{"name": "m", "arguments": "3"}</tool_call>', "not an object"),
        ('<tool_call>{"name": "m", "arguments": "{"}</tool_call>', "not an object"),
    ],
)
def test_malformed_hermes_calls_say_what_is_wrong(text: str, reason: str) -> None:
    (call,) = hermes_calls(text)
    assert isinstance(call, MalformedCall) and reason in call.reason and "\n" not in call.reason


def test_hermes_calls_in_order_and_limited() -> None:
    one = '<tool_call>{"name": "m", "arguments": {"a": %d}}</tool_call>'
    text = "First." + one % 1 + " then\n" + one % 2
    assert hermes_calls(text) == [ToolCall("m", {"a": 1}), ToolCall("m", {"a": 2})]
    assert hermes_calls('<tool_call>{"name": "m"}<tool_call>{"name": "n"}') == [
        ToolCall("m", {}),
        ToolCall("n", {}),
    ]
    assert hermes_calls('<tool_call>{"name": "m", "arguments": "{\\"a\\": 1}"}') == [ToolCall("m", {"a": 1})]
    many = hermes_calls(one % 1 * 1000)
    assert len(many) == MOST_CALLS + 1 and isinstance(many[-1], MalformedCall)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "m", "parameters": {"a": 3}}', [ToolCall("m", {"a": 3})]),
        ('<|python_tag|>{"name": "m", "parameters": {}}', [ToolCall("m", {})]),
        (
            '{"name": "m", "parameters": {"a": 1}}; {"name": "n", "parameters": {}}',
            [ToolCall("m", {"a": 1}), ToolCall("n", {})],
        ),
        ("The answer is {3}.", []),
        ("", []),
    ],
)
def test_llama_calls(text: str, calls: list) -> None:
    assert llama_calls(text) == calls


def test_malformed_llama_and_qwen35_calls() -> None:
    assert isinstance(llama_calls('{"name": "m", "parameters": {"a": 3}')[0], MalformedCall)
    assert isinstance(llama_calls('{"name": "m"} trailing')[1], MalformedCall)
    assert isinstance(qwen35_calls('<tool_call>\n{"name": "m"}\n</tool_call>')[0], MalformedCall)
    assert qwen35_calls("<tool_call>\n<function=m>\n</function>\n</tool_call>") == [ToolCall("m", {})]


@given(text=st.text(alphabet=st.sampled_from(list('<>/tool_call{}[]":,n=')), max_size=60))
def test_reading_calls_never_raises(text: str) -> None:
    for find in (hermes_calls, llama_calls, qwen35_calls):
        find("<tool_call>" + text)
        find('{"name"' + text)
