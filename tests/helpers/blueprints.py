"""Composing a shipped blueprint without a command line."""

from __future__ import annotations

from hydra import compose, initialize_config_dir

from recipes.cli.compose import CONF, register_resolvers, resolved
from rl.blueprint import Blueprint, blueprint_from


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def composed(*overrides: str) -> Blueprint:
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3", job_name="rl_basic"):
        return blueprint_from(resolved(compose("rl_basic", list(overrides))))
