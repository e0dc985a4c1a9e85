"""Tool calls in a model's answer, in the formats of the catalogue's families."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MOST_CALLS = 16  # of one turn; the rest become one malformed call
_EXPECTED = 'expected {"name": ..., "arguments": {...}}'
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)(?:</function>\s*|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wrote: the tool's name and its arguments, not yet checked against a schema."""

    name: str
    arguments: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class MalformedCall:
    """Text that was meant as a call and cannot be read. reason: what is wrong, to show to the model."""

    reason: str


Call = ToolCall | MalformedCall
Finder = Callable[[str], list[Call]]


def finder_for(template: str) -> Finder:
    """The function that finds calls in the format that a chat template teaches; Hermes JSON if it teaches none."""
    if "<function=" in template:
        return qwen35_calls
    return hermes_calls if "<tool_call>" in template or "ipython" not in template else llama_calls


def hermes_calls(text: str) -> list[Call]:
    """Qwen2.5, Qwen3, Hermes: JSON between `<tool_call>` and `</tool_call>`."""
    return _limited([_read(body) for body in _TAGGED.findall(text)])


def llama_calls(text: str) -> list[Call]:
    """Llama 3.1, 3.2: the whole answer is a JSON object with a name, or several joined by `;`."""
    body = text.strip().removeprefix(_PYTHON_TAG).strip()
    if not (body.startswith("{") and '"name"' in body):
        return []
    decoder, position = json.JSONDecoder(), 0
    calls: list[Call] = []
    while position < len(body):
        try:
            value, position = decoder.raw_decode(body, position)
        except (ValueError, RecursionError) as error:
            calls.append(_not_json(error))
            break
        calls.append(_checked(value))
        position = len(body) - len(body[position:].lstrip("; \n"))
    return _limited(calls)


def qwen35_calls(text: str) -> list[Call]:
    """Qwen3.5: `<function=NAME>` with `<parameter=NAME>` blocks inside `<tool_call>`. Every argument is text."""
    calls: list[Call] = []
    for body in _TAGGED.findall(text):
        found = _FUNCTION.fullmatch(body)
        if found is None:
            calls.append(
                MalformedCall(
                    "the call cannot be read; expected <function=NAME> with <parameter=NAME> blocks"
                )
            )
        else:
            arguments = {name.strip(): value for name, value in _PARAMETER.findall(found[2])}
            calls.append(ToolCall(found[1].strip(), arguments))
    return _limited(calls)


def _read(body: str) -> Call:
    try:
        return _checked(json.loads(body.strip()))
    except (ValueError, RecursionError) as error:  # RecursionError: thousands of nested brackets
        return _not_json(error)


def _not_json(error: Exception) -> MalformedCall:
    why = error.msg if isinstance(error, json.JSONDecodeError) else "too long or too deeply nested"
    return MalformedCall(f"the call is not valid JSON ({why}); {_EXPECTED}")


def _checked(value: Any) -> Call:
    """Llama 3 names the arguments `parameters`. Some models write them as a JSON string."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return MalformedCall(f'the call has no "name"; {_EXPECTED}')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return MalformedCall(f'"arguments" is not an object; {_EXPECTED}')
    if not isinstance(arguments, dict):
        return MalformedCall(f'"arguments" is not an object; {_EXPECTED}')
    return ToolCall(value["name"], arguments)


def _limited(calls: list[Call]) -> list[Call]:
    if len(calls) <= MOST_CALLS:
        return calls
    return [
        *calls[:MOST_CALLS],
        MalformedCall(f"more than {MOST_CALLS} calls in one turn; the others were not run"),
    ]
