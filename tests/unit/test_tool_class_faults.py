"""Faults of a user's tool class: one line each, whatever the class raises or returns."""

from __future__ import annotations

import pytest

from environments.base import Environment
from environments.tool_class import ToolClassConfig
from renderers.tool_calls import hermes_calls
from rl.errors import Stopped, UserError, first_line, one_line, reason_of
from rl.rollouts import Parsed, Problem
from rl.schema import locate
from tests.helpers.faulty_tool_classes import Unspeakable

PROBLEM = Problem("p1", "?", "1", "en", "test")


def config(name: str) -> ToolClassConfig:
    return ToolClassConfig(name="class", path=f"tests.helpers.faulty_tool_classes.{name}")


def started(name: str) -> Environment:
    environment = config(name).make(lambda parsed: hermes_calls(parsed.text))
    environment.start(PROBLEM)
    return environment


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ExitsAtOnce", "cannot be made: SystemExit: not today; expected a class whose constructor"),
        ("AnyNumber", "its tool go takes *places: 'str', which a call cannot pass by name; expected arguments with"),
        ("AnyNames", "its tool go takes **places: 'str', which a call cannot pass by name"),
        ("ByPosition", "its tool go takes place: 'str', which a call cannot pass by name"),
    ],
)  # fmt: skip
def test_a_class_that_cannot_work_is_refused_in_one_line(name, words):
    with pytest.raises(UserError) as refused:
        config(name).check()
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "TooLarge",
            "get_reward returned int that cannot be shown on problem p1; expected a number",
        ),
        ("TwoNumbers", "get_reward returned array([1., 2.]) on problem p1; expected a number"),
        ("Words", "get_reward returned '1\\n2' on problem p1; expected a number"),
        ("Raises", "get_reward raised Unspeakable on problem p1"),
    ],
)
def test_a_reward_that_is_no_number_stops_the_run_in_one_line(name, words):
    with pytest.raises(Stopped) as stopped:
        started(name).reward()
    assert words in str(stopped.value) and "\n" not in str(stopped.value)


def test_a_scalar_is_a_number_and_none_is_no_reward():
    assert started("Half").reward() == 0.5
    assert started("Nothing").reward() is None


def test_each_tool_is_called_by_the_name_that_the_model_is_shown():
    shown = [tool["function"]["name"] for tool in config("OtherNames").tools]
    assert shown == ["go", "run", "walk"]
    texts = []
    for name, arguments in (("go", "{}"), ("run", '{"place": "sea"}'), ("walk", "{}")):
        text = f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
        messages = started("OtherNames").step(Parsed("", text, text, "stop"))
        assert messages is not None
        texts.append(messages[0]["content"])
    assert texts == ["gone", "ran to sea", "gone"]


def test_an_exception_without_readable_text_is_still_a_message_to_the_model():
    environment = started("Raises")
    text = '<tool_call>{"name": "go", "arguments": {}}</tool_call>'
    messages = environment.step(Parsed("", text, text, "stop"))
    assert messages is not None and messages[0]["content"] == "error: Unspeakable: Unspeakable"
    assert environment.counts == {"tool_calls": 1, "tool_errors": 1, "tool_errors_raised": 1}


def test_an_error_that_cannot_be_read_is_reported_by_its_type():
    error = Unspeakable()
    assert first_line(error) == "Unspeakable"
    assert one_line(error).startswith("Unspeakable") and reason_of(error) == "Unspeakable"


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("import sys; sys.exit(7)", "faulty_module_exits.X", "cannot be imported (it calls exit(7))"),
        ("raise ValueError('one\\ntwo')", "faulty_module_raises.X", "cannot be imported (one); expected"),
        ("", "Shop", "cannot be imported (no module and name joined by a dot); expected package.module.Name"),
        ("", "", "cannot be imported (no module and name joined by a dot)"),
        ("", "faulty_module.", "cannot be imported (no module and name joined by a dot)"),
        ("", "./my_env.py", "cannot be imported (no module and name joined by a dot)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(source, target, words, tmp_path, monkeypatch):
    if source:
        (tmp_path / f"{target.partition('.')[0]}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as refused:
        locate(target, "environment.path")
    assert words in str(refused.value) and "\n" not in str(refused.value)
