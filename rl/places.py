"""Blueprint keys that hold a path. A run stores them as absolute paths, and the files may be moved later."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Moved files are recognised by content: data.json, base.json and renderer.txt hold fingerprints.
PLACES = ("model.path", "data.path", "data.test_path", "data.source.path", "renderer.template", "pass_rates")
PROJECT = Path(__file__).resolve().parents[1]


def place_in(tree: Mapping[str, Any], key: str) -> str | None:
    """The path under a dotted key of the tree; None if there is none."""
    node: Any = tree
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node if isinstance(node, str) and node else None


def with_places(tree: Mapping[str, Any], places: Mapping[str, str | None]) -> dict[str, Any]:
    """A copy of the tree in which each path in `places` that is not None replaces the tree's own."""
    changed = copy.deepcopy(dict(tree))
    for key, place in places.items():
        if place is not None:
            *parents, last = key.split(".")
            node = changed
            for name in parents:
                node = node.setdefault(name, {})
            node[last] = place
    return changed


def with_absolute_places(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the tree with absolute paths, independent of the current folder.

    Paths to files that ship with the project (assets/tiny) stay relative to the project.
    """
    sets = tree.get("eval_data") or {}
    own = [f"eval_data.{name}.{key}" for name in sets for key in ("path", "test_path")]
    return with_places(tree, {key: _absolute(place_in(tree, key)) for key in (*PLACES, *own)})


def _absolute(place: str | None) -> str | None:
    if place is None:
        return None
    path = Path(place).expanduser()
    shipped = PROJECT / path
    if shipped.exists() and (not path.exists() or path.samefile(shipped)) and not path.is_absolute():
        return place
    return str(path.absolute())
