"""Checks the arguments of a call against the tool's JSON schema."""

from __future__ import annotations

import json
from typing import Any


class WrongArgument(Exception):
    """An argument that does not fit the schema; the message is for the model."""


def check_arguments(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The arguments as the tool takes them; text that spells a number, for a number, becomes one.

    schema: the `parameters` of a tool's schema. Raises WrongArgument for an unknown or missing argument and for a value
    of another type.
    """
    properties = schema.get("properties", {})
    expected = ", ".join(properties) or "none"
    for name in arguments:
        if name not in properties:
            raise WrongArgument(f"unknown argument {name!r:.80}; expected {expected}")
    for name in schema.get("required", []):
        if name not in arguments:
            raise WrongArgument(f"the argument {name} is missing; expected {expected}")
    return {name: _converted(name, value, properties[name]) for name, value in arguments.items()}


def _converted(name: str, value: Any, schema: dict[str, Any]) -> Any:
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if schema.get("nullable") and value is None:
        return None
    if kinds and not any(_is(value, kind) for kind in kinds):
        value = _reread(value)
        if not any(_is(value, kind) for kind in kinds):
            raise WrongArgument(f"the argument {name} is {value!r:.80}; expected {' or '.join(kinds)}")
    if "enum" in schema and value not in schema["enum"]:
        choices = ", ".join(map(str, schema["enum"]))
        raise WrongArgument(f"the argument {name} is {value!r:.80}; expected one of {choices}")
    return int(value) if kinds == ["integer"] else value


def _reread(value: Any) -> Any:
    """Qwen3.5's format writes every argument as text, and other models sometimes quote a number."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _is(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        if isinstance(value, float):
            return kind == "number" or value.is_integer()
        return isinstance(value, int) and not isinstance(value, bool)
    kinds: dict[str, type | tuple[type, ...]] = {
        "string": str, "boolean": bool, "array": list, "object": dict, "null": type(None),
    }  # fmt: skip
    return kind not in kinds or isinstance(value, kinds[kind])
