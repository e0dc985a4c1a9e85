"""The keys of a blueprint that name a file or folder: a run keeps them absolute, and what they name may be moved."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Whether a place holds what it held is told by its contents: data.json, base.json and renderer.txt have fingerprints.
PLACES = ("model.path", "data.path", "data.test_path", "data.source.path", "renderer.template")
PROJECT = Path(__file__).resolve().parents[1]


def place_in(tree: Mapping[str, Any], key: str) -> str | None:
    """The place that a tree names under a dotted key; None when it names none."""
    node: Any = tree
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node if isinstance(node, str) and node else None


def with_places(tree: Mapping[str, Any], places: Mapping[str, str | None]) -> dict[str, Any]:
    """A copy of the tree with those of the places that are not None in the place of its own."""
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
    """A copy of the tree whose places do not depend on the folder that the command was started in.

    What the project ships (assets/tiny) stays relative to the project, wherever that lies.
    """
    return with_places(tree, {key: _absolute(place_in(tree, key)) for key in PLACES})


def _absolute(place: str | None) -> str | None:
    if place is None:
        return None
    path = Path(place).expanduser()
    shipped = PROJECT / path
    if shipped.exists() and (not path.exists() or path.samefile(shipped)) and not path.is_absolute():
        return place
    return str(path.absolute())
