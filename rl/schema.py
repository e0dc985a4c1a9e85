"""Plain config trees (dicts, lists, scalars) into typed dataclasses, with errors a user can act on.

A node either has a fixed dataclass, or names its class or function with `_target_` (a dataclass with `from_target`
builds such a node itself). Keys and value types are checked against the signature; for an unknown key the error
suggests the nearest known one.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Union

from rl.errors import UserError, first_line, nearest

TARGET = "_target_"


def build(cls: type, tree: Mapping[str, Any], path: str = "") -> Any:
    """An instance of dataclass `cls` from `tree`; `path` is the dotted key of the node, for the error text.

    Raises UserError on an unknown or missing key, a value of the wrong type, or a target that cannot be imported.
    """
    return _call(cls, dict(tree), path)


def locate(target: str, key: str) -> Any:
    """The class or function that `package.module.Name` names."""
    module_name, _, name = str(target).rpartition(".")
    try:
        if not all(str(target).split(".")) or not module_name:
            raise ValueError("no module and name joined by a dot")
        found = getattr(importlib.import_module(module_name), name)
        if not callable(found):
            raise TypeError(f"{name} is {type(found).__name__}, no class or function")
        inspect.signature(found)
        return found
    except (Exception, SystemExit) as error:  # the user's own module may raise anything, or call exit()
        why = f"it calls exit({error.code!r})" if isinstance(error, SystemExit) else first_line(error)
        raise UserError(
            f"{key}={target}: cannot be imported ({why}); expected package.module.Name of a class or function"
            " on the Python path (PYTHONPATH=FOLDER or --config-dir=FOLDER adds one)"
        ) from None


def target_parameters(target: Any, given: int | None = None) -> dict[str, inspect.Parameter]:
    """The keyword parameters of a class or function, without the first `given`, which are passed by position.

    given: None means 0 for a class and 1 for a function, whose first argument is a batch.
    """
    parameters = inspect.signature(target).parameters
    named = {
        k: p
        for k, p in parameters.items()
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"
    }
    if given is None:
        given = 0 if inspect.isclass(target) else 1
    return dict(list(named.items())[given:])


def bound(target: Any, tree: Mapping[str, Any], path: str, given: Sequence[str]) -> functools.partial[Any]:
    """`target` with `tree` as keyword arguments, to be called with the arguments named in `given`, by position.

    Raises UserError as `build` does, and when `target` does not accept that many positional arguments.
    """
    values = _arguments(target, tree, path, len(given))
    try:
        inspect.signature(target).bind(*given, **values)
    except TypeError as error:
        raise UserError(
            f"{_join(path, TARGET)}: {target.__module__}.{target.__qualname__} cannot be called this way ({error}); expected a"
            f" class or function that takes ({', '.join(given)}) first"
        ) from None
    return functools.partial(target, **values)


def _call(target: Any, tree: Mapping[str, Any], path: str) -> Any:
    values = _arguments(target, tree, path)
    return target(**values) if inspect.isclass(target) else functools.partial(target, **values)


def _arguments(target: Any, tree: Mapping[str, Any], path: str, given: int | None = None) -> dict[str, Any]:
    parameters = target_parameters(target, given)
    hints = _hints(target)
    for key in tree:
        if key not in parameters:
            raise unknown_key(path, key, parameters)
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in tree:
            raise UserError(f"{_join(path, key)}: missing; expected {_describe(hints.get(key, Any))}")
    return {key: convert(value, hints.get(key, Any), _join(path, key)) for key, value in tree.items()}


def unknown_key(path: str, key: Any, known: Iterable[str]) -> UserError:
    """The error for an unknown key: suggests the nearest known key, or lists all of them."""
    known = sorted(known)
    close = nearest(str(key), known)
    hint = f"did you mean {_join(path, close[0])}?" if close else f"known keys: {', '.join(known)}"
    return UserError(f"{_join(path, key)}: no such key; {hint}")


def _hints(target: Any) -> dict[str, Any]:
    # get_type_hints resolves a dataclass's hints in the module of each base; its __init__ has only one module.
    if inspect.isclass(target) and not dataclasses.is_dataclass(target):
        target = target.__init__
    return typing.get_type_hints(target)


def convert(value: Any, hint: Any, key: str) -> Any:
    """`value` as type `hint`, strictly: an int field refuses 1e3 and "08", a string field refuses numbers."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or not isinstance(value, (Mapping, list, tuple, str, int, float, type(None))):
        return value  # not a plain value: already built
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _convert_union(value, [a for a in arguments if a is not type(None)], hint, key)
    if origin is Literal:
        return _convert_literal(value, arguments, key)
    if origin is list:
        if isinstance(value, (list, tuple)):
            return [convert(item, arguments[0], f"{key}[{i}]") for i, item in enumerate(value)]
        raise _wrong(value, hint, key)
    if origin is tuple:
        if isinstance(value, (list, tuple)) and len(value) == len(arguments):
            return tuple(
                convert(v, a, f"{key}[{i}]") for i, (v, a) in enumerate(zip(value, arguments, strict=True))
            )
        raise _wrong(value, hint, key)
    if origin is dict:
        if isinstance(value, Mapping):
            return {str(k): convert(v, arguments[1], _join(key, k)) for k, v in value.items()}
        raise _wrong(value, hint, key)
    if isinstance(value, Mapping) and TARGET in value:
        if hasattr(hint, "from_target"):
            return hint.from_target(value, key)
        rest = {k: v for k, v in value.items() if k != TARGET}
        return _call(locate(value[TARGET], f"{key}.{TARGET}"), rest, key)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return build(typing.cast(type, hint), value, key)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UserError(
                f"{key}: a whole number of {value.bit_length()} bits; expected a number below 1e308"
            ) from None
    if hint in (int, float, str, bool) and type(value) is hint:
        return value
    raise _wrong(value, hint, key)


def _convert_union(value: Any, options: list[Any], hint: Any, key: str) -> Any:
    if len(options) == 1:
        try:
            return convert(value, options[0], key)
        except UserError as error:
            if isinstance(value, Mapping):
                raise
            raise (_wrong(value, hint, key) if not typing.get_args(options[0]) else error) from None
    for option in options:
        try:
            return convert(value, option, key)
        except UserError:
            continue
    raise _wrong(value, hint, key)


def _convert_literal(value: Any, options: tuple[Any, ...], key: str) -> Any:
    if value in options and not (
        isinstance(value, bool) and value not in [o for o in options if isinstance(o, bool)]
    ):
        return value
    close = nearest(str(value), [str(o) for o in options])
    hint = f"; did you mean {key}={close[0]}?" if close else ""
    raise UserError(f"{key}={_show(value)}: expected one of {', '.join(map(str, options))}{hint}")


EXAMPLES: dict[Any, Callable[[str], str]] = {
    int: lambda key: f"a whole number, e.g. {key}=8",
    float: lambda key: f"a number, e.g. {key}=0.5",
    bool: lambda key: f"true or false, e.g. {key}=true",
    str: lambda key: f"text (quote what looks like a number: {key}=\"'1e3'\")",
}


def _wrong(value: Any, hint: Any, key: str) -> UserError:
    options = (
        [a for a in typing.get_args(hint) if a is not type(None)]
        if type(None) in typing.get_args(hint)
        else [hint]
    )
    expected = " or ".join(EXAMPLES[o](key) if o in EXAMPLES else _describe(o) for o in options)
    nullable = ", or null" if type(None) in typing.get_args(hint) else ""
    return UserError(f"{key}={_show(value)}: expected {expected}{nullable}")


def _describe(hint: Any) -> str:
    names: dict[Any, str] = {
        Any: "a value",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
    }
    if hint in names:
        return names[hint]
    origin = typing.get_origin(hint)
    if origin is tuple:
        return f"a list of {len(typing.get_args(hint))} values in brackets"
    if origin is list:
        return "a list in brackets"
    if origin is dict or dataclasses.is_dataclass(hint):
        return "a mapping"
    return getattr(hint, "__name__", str(hint))


def _show(value: Any) -> str:
    """A value as typed: text that would be parsed as another type is quoted."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and _looks_like_another_type(value):
        return f"'{value}'"
    return "null" if value is None else str(value)


def _looks_like_another_type(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.strip().lower() in ("", "null", "~", "true", "false")
    return True


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def known_keys(schema: Any, tree: Mapping[str, Any], path: str = "") -> set[str]:
    """Every dotted key that may be set: those of `tree` and those of its dataclasses.

    A node that takes keys of any name (a dict, or a set of `_target_` nodes) appears as `key.*`.
    """
    if isinstance(tree.get(TARGET), str):
        try:
            schema = locate(tree[TARGET], path)
        except UserError:  # reported when the node is built
            schema = None
    hints = _hints(schema) if dataclasses.is_dataclass(schema) else {}
    keys = set()
    for key in {*tree, *(target_parameters(schema) if hints else {})}:
        dotted = _join(path, key)
        keys.add(dotted)
        hint = next(
            (a for a in typing.get_args(hints.get(key)) if dataclasses.is_dataclass(a)), hints.get(key)
        )
        node = tree.get(key)
        if typing.get_origin(hint) is dict or (isinstance(node, Mapping) and _holds_targets(node)):
            keys.add(f"{dotted}.*")
        if isinstance(node, Mapping) or dataclasses.is_dataclass(hint):
            keys |= known_keys(hint, node if isinstance(node, Mapping) else {}, dotted)
    return keys


def _holds_targets(node: Mapping[str, Any]) -> bool:
    return any(isinstance(child, Mapping) and TARGET in child for child in node.values())


def takes_any(known: set[str], key: str) -> bool:
    """Whether a node above `key` takes keys of any name."""
    parts = key.split(".")
    return any(".".join([*parts[:i], "*"]) in known for i in range(1, len(parts)))
