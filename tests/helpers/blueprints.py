"""Composing a shipped blueprint without a command line."""

from __future__ import annotations

from typing import Any

from hydra import compose, initialize_config_dir

from recipes.cli.compose import CONF, register_resolvers, resolved
from rl.blueprint import Blueprint, blueprint_from


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def composed(*overrides: str) -> Blueprint:
    return blueprint_from(composed_tree(*overrides))


def composed_tree(*overrides: str) -> dict[str, Any]:
    """The composed config as a run writes it into config.yaml."""
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3", job_name="rl_basic"):
        return resolved(compose("rl_basic", list(overrides)))
