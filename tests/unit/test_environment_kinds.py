"""Tool classes, driven as a trajectory drives them: what the model is shown for each of its calls."""

from __future__ import annotations

import math
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments import deadline
from environments.arguments import WrongArgument, check_arguments
from environments.base import EnvironmentConfig
from environments.calculator import Calculator, CalculatorConfig
from environments.tool_class import ToolClassConfig, ToolError
from renderers.tool_calls import Call, hermes_calls
from rl.errors import Stopped, UserError
from rl.rollouts import Parsed, Problem

PROBLEM = Problem("p1", "What to buy?", "10", "en", "test", extra={"goods": ["apple"]})


def config(name: str, **options: object) -> ToolClassConfig:
    return ToolClassConfig(name="class", path=f"tests.helpers.tool_classes.{name}", **options)  # type: ignore[arg-type]


def find_calls(parsed: Parsed) -> list[Call]:
    return hermes_calls(parsed.text)


def started(name: str, **options: object):
    environment = config(name, **options).make(find_calls)
    environment.start(PROBLEM)
    return environment


def turn(environment, text: str) -> list[str] | None:
    messages = environment.step(Parsed("", text, text, "stop"))
    assert messages is None or all(message["role"] == "tool" for message in messages)
    return None if messages is None else [message["content"] for message in messages]


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def test_a_trajectory_of_a_shop():
    environment = config("Shop").make(find_calls)
    assert environment.start(PROBLEM) == " You have 10 dollars."
    assert turn(environment, call("buy", '{"item": "apple"}')) == ["1 bought"]
    two = call("buy", '{"item": "apple", "count": 2}') + call("buy", '{"item": "apple", "count": "3"}')
    assert turn(environment, two) == ["2 bought", "3 bought"]
    assert turn(environment, "I am done.") is None
    assert environment.reward() == 0.6
    assert environment.counts == {"tool_calls": 3}


def test_reset_gets_the_row_and_each_trajectory_its_own_object():
    environments = [started("Shop") for _ in range(2)]
    turn(environments[0], call("buy", '{"item": "apple", "count": 4}'))
    assert [environment.reward() for environment in environments] == [0.4, 0.0]
    row = environments[0]._tools._row
    assert row["question"] == "What to buy?" and row["answer"] == "10" and row["goods"] == ["apple"]
    assert row["prompt"] == [{"role": "user", "content": "What to buy?"}]
    assert started("Troubled")._tools.question == "What to buy?"  # a reset without **row gets what it names
    assert started("Troubled").reward() is None


def test_schemas_are_those_of_transformers():
    from transformers.utils import get_json_schema

    from tests.helpers.tool_classes import Shop

    assert config("Shop").tools == [get_json_schema(Shop().buy)]
    assert [tool["function"]["name"] for tool in config("Troubled").tools] == [
        "hang", "later", "leave", "long", "unreachable",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ('<tool_call>{"name": "buy"', "json", "not valid JSON"),
        (call("sell"), "name", "no tool 'sell'; there is buy"),
        (call("_private"), "name", "no tool '_private'"),
        (call("reset"), "name", "no tool 'reset'"),
        (call("get_reward"), "name", "no tool 'get_reward'"),
        (call("buy"), "arguments", "argument item is missing"),
        (call("buy", '{"item": "apple", "colour": "red"}'), "arguments", "unknown argument 'colour'"),
        (call("buy", '{"item": "apple", "count": "many"}'), "arguments", "count is 'many'; expected integer"),
        (call("buy", '{"item": "apple", "count": 1.5}'), "arguments", "expected integer"),
        (call("buy", '{"item": ["apple"]}'), "arguments", "expected string"),
        (call("buy", '{"item": "pear"}'), "raised", "ValueError: no pear here"),
    ],
)
def test_each_fault_of_the_model_is_a_short_message_and_counted(text: str, kind: str, words: str):
    environment = started("Shop")
    (shown,) = turn(environment, text)
    assert words in shown and shown.startswith("error: ") and len(shown) < 200 and "\n" not in shown
    assert environment.counts == {"tool_calls": 1, "tool_errors": 1, f"tool_errors_{kind}": 1}
    assert turn(environment, call("buy", '{"item": "apple"}')) == ["1 bought"]  # and the trajectory goes on


def test_a_tool_that_leaves_the_interpreter_is_an_error_message():
    assert turn(started("Troubled"), call("leave")) == ["error: SystemExit: 1"]


def test_coroutines_are_tools_too():
    assert turn(started("Troubled"), call("later")) == ["later"]


def test_a_long_result_is_cut():
    (shown,) = turn(started("Troubled", characters=100), call("long"))
    assert len(shown) == 100 and shown.endswith("… (cut)")


def test_a_tool_that_hangs_is_given_up():
    environment = started("Troubled", seconds=0.2)
    assert turn(environment, call("hang", '{"seconds": 1}')) == [
        "error: the tool did not answer within 0.2 s"
    ]
    assert turn(environment, call("later")) == ["error: the tool still works on an earlier call"]
    assert environment.counts["tool_errors_time"] == 2
    assert turn(started("Troubled", seconds=0.2), call("later")) == [
        "later"
    ]  # another trajectory is not held up
    time.sleep(1)
    assert turn(environment, call("later")) == ["later"]


def test_too_many_calls_that_never_return_end_the_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deadline, "MOST_HANGING", 1)
    monkeypatch.setattr(deadline, "_hanging", [])
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError):
            deadline.Worker(0.01).run(release.wait)
        with pytest.raises(Stopped, match="never returned"):
            deadline.Worker(0.01).run(release.wait)
    finally:
        release.set()


def test_a_tool_server_that_is_down_ends_the_run_in_one_line():
    with pytest.raises(Stopped, match="unreachable cannot reach its server: nothing listens on port 9"):
        turn(started("Troubled"), call("unreachable"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Untyped", "no schema for its tool buy"),
        ("NoReset", "no method reset"),
        ("NoTools", "no public method"),
        ("NeedsArguments", "constructor needs no arguments"),
        ("Nowhere", "cannot be imported"),
    ],
)
def test_a_class_outside_the_contract_is_one_line(name: str, words: str):
    with pytest.raises(UserError, match=words) as caught:
        config(name).check()
    assert "\n" not in str(caught.value)


def test_a_class_that_is_not_named_is_one_line():
    with pytest.raises(UserError, match=r"type environment\.path=my_env\.Shop"):
        ToolClassConfig(name="class").check()


def test_reset_and_get_reward_that_fail_end_the_run():
    with pytest.raises(Stopped, match="reset raised KeyError on problem p1: 'goods'"):
        started("BadReset")
    with pytest.raises(Stopped, match="get_reward returned 'much'"):
        started("BadReward").reward()


def test_options_out_of_range():
    for options in ({"max_turns": 0}, {"max_context": 1}, {"seconds": 0.0}, {"characters": 3}):
        with pytest.raises(UserError, match=f"environment.{next(iter(options))}="):
            config("Shop", **options)
    assert EnvironmentConfig(name="none").tools == []


# --- arguments --------------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "price": {"type": "number"},
        "name": {"type": "string"},
        "fresh": {"type": "boolean"},
        "size": {"type": "string", "enum": ["s", "l"]},
        "note": {"type": "string", "nullable": True},
        "key": {"type": ["integer", "string"]},
        "free": {},
    },
}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"count": "3"}, {"count": 3}),
        ({"count": 3.0}, {"count": 3}),
        ({"price": 3}, {"price": 3}),
        ({"price": "2.5"}, {"price": 2.5}),
        ({"name": "3"}, {"name": "3"}),
        ({"fresh": "true"}, {"fresh": True}),
        ({"size": "s"}, {"size": "s"}),
        ({"note": None}, {"note": None}),
        ({"key": "x"}, {"key": "x"}),
        ({"free": [1]}, {"free": [1]}),
        ({"count": 10**400}, {"count": 10**400}),
    ],
)
def test_arguments_that_fit(given: dict, taken: dict):
    checked = check_arguments(given, SCHEMA)
    assert checked == taken and list(map(type, checked.values())) == list(map(type, taken.values()))


@pytest.mark.parametrize(
    "given",
    [
        {"count": True},
        {"count": "3.5"},
        {"count": math.inf},
        {"name": 3},
        {"fresh": 1},
        {"size": "m"},
        {"price": None},
    ],
)
def test_arguments_that_do_not_fit(given: dict):
    with pytest.raises(WrongArgument):
        check_arguments(given, SCHEMA)


# --- calculator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("47*68", "3196"), ("47 × 68 =", "3196"), ("1,000+1", "1001"), ("(1+2)*3", "9"), ("-7//2", "-4"), ("7%4", "3"),
        ("1/4", "0.25"), ("-1/8", "-0.125"), ("1/3", "0.333333333333"), ("0.1+0.2", "0.3"), ("2^10", "1024"),
        ("2**-1", "0.5"), ("12÷4", "3"),
    ],
)  # fmt: skip
def test_calculator(expression: str, result: str):
    assert Calculator().calculate(expression) == result


@pytest.mark.parametrize(
    "expression",
    ["", "1/0", "9**9**9", "2**100000", "(" * 150, "__import__('os')", "a", "1;2", "[1]*9", "'x'*9", "1j", "1" * 201,
     "0**-1", "2**0.5", "1e999999", "1 if 1 else 2", "True+1"],
)  # fmt: skip
def test_what_the_calculator_refuses(expression: str):
    with pytest.raises(ToolError) as caught:
        Calculator().calculate(expression)
    assert str(caught.value).startswith("error: ") and len(str(caught.value)) < 150


@given(a=st.integers(-999, 999), b=st.integers(-999, 999))
def test_calculator_agrees_with_python(a: int, b: int):
    for sign in "+-*":
        assert Calculator().calculate(f"{a}{sign}({b})") == str(eval(f"{a}{sign}({b})"))


def test_calculator_as_an_environment():
    environment = CalculatorConfig(name="calculator").make(find_calls)
    environment.start(PROBLEM)
    assert turn(environment, call("calculate", '{"expression": "47*68"}')) == ["3196"]
    assert turn(environment, call("calculate", '{"expression": "47*"}'))[0].startswith("error: '47*' cannot")
    assert turn(environment, "3196") is None and environment.counts["tool_errors_raised"] == 1
