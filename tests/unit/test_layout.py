"""The structure of the code: no import cycles, layers that do not import upwards, and no file of more than 300 lines."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("recipes", "rl", "rewards", "renderers", "environments")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
}
MOST_LINES = 300


def imported(module: str) -> set[str]:
    """The project's modules that a file imports anywhere: at its top, inside functions, and for types only."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module is not None
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    missing = {name for name in found - MODULES.keys() if name.partition(".")[0] in PACKAGES}
    assert not missing, f"{module} imports {missing}, which do not exist"
    return (found & MODULES.keys()) - {module}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other (Tarjan's strongly connected components of more than one)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_no_two_files_import_each_other():
    assert circles({module: imported(module) for module in MODULES}) == []


@pytest.mark.parametrize("package", ["rl", "rewards", "renderers", "environments"])
def test_the_method_knows_no_command_line(package):
    """Nothing below recipes/ imports it, Hydra or OmegaConf."""
    for module, path in MODULES.items():
        if module.partition(".")[0] == package:
            text = path.read_text(encoding="utf-8")
            tops = {
                name.partition(".")[0]
                for node in ast.walk(ast.parse(text))
                for name in (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                    if isinstance(node, ast.ImportFrom)
                    else []
                )
            }
            assert not tops & {"recipes", "hydra", "omegaconf"}, module


def test_files_stay_short():
    long = {
        str(p.relative_to(ROOT)): n
        for p in MODULES.values()
        if (n := len(p.read_text().splitlines())) > MOST_LINES
    }
    assert long == {}
