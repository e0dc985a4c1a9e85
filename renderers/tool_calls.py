"""Tool calls in a model's answer, in the two JSON formats of the catalogue's families."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_MOST_CALLS = 16  # of one turn; the rest become one malformed call
_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wrote: the tool's name and its arguments, not yet checked against a schema."""

    name: str
    arguments: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class MalformedCall:
    """Text that was meant as a call and cannot be read. `reason` is the message to the model."""

    reason: str


Call = ToolCall | MalformedCall


def hermes_calls(text: str) -> list[Call]:
    """The calls between `<tool_call>` and `</tool_call>`, as Qwen and Hermes models write them."""
    return _limited([_read(body) for body in _HERMES.findall(text)])


def llama_calls(text: str) -> list[Call]:
    """The calls of a Llama 3 answer: the whole answer is a JSON object with a name, or several joined by `;`."""
    body = text.strip().removeprefix(_PYTHON_TAG).strip()
    if not (body.startswith("{") and '"name"' in body):
        return []
    decoder, calls, position = json.JSONDecoder(), [], 0
    while position < len(body):
        try:
            value, end = decoder.raw_decode(body, position)
        except (ValueError, RecursionError) as error:
            calls.append(_not_json(error))
            break
        calls.append(_checked(value))
        position = len(body) - len(body[end:].lstrip("; \n"))
    return _limited(calls)


def _read(body: str) -> Call:
    try:
        return _checked(json.loads(body.strip()))
    except (ValueError, RecursionError) as error:  # RecursionError: thousands of nested brackets
        return _not_json(error)


def _not_json(error: Exception) -> MalformedCall:
    why = error.msg if isinstance(error, json.JSONDecodeError) else "too long or too deeply nested"
    return MalformedCall(
        f'the call is not valid JSON ({why}); expected {{"name": ..., "arguments": {{...}}}}'
    )


def _checked(value: Any) -> Call:
    """Hermes names the arguments `arguments`, Llama 3 `parameters`. Some models quote them as a JSON string."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return MalformedCall('the call has no "name"; expected {"name": ..., "arguments": {...}}')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        return MalformedCall('"arguments" is not an object; expected {"name": ..., "arguments": {...}}')
    return ToolCall(value["name"], arguments)


def _limited(calls: list[Call]) -> list[Call]:
    if len(calls) <= _MOST_CALLS:
        return calls
    return [
        *calls[:_MOST_CALLS],
        MalformedCall(f"more than {_MOST_CALLS} calls in one turn; the rest were ignored"),
    ]
