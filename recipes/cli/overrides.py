"""Parses `key=value` overrides in Hydra's grammar, including the several values of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig

from rl.errors import UserError


def parse_override(text: str) -> Override:
    """One command-line override. Raises UserError that shows the quoting Hydra needs."""
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{text}: expected key=value; e.g. max_tokens=256 (see --help)") from None
        escaped = value.strip("'\"").replace("'", "\\'")
        raise UserError(
            f"{text}: this value needs quotes inside the shell's quotes: type \"{key}='{escaped}'\""
            " (for text with Japanese, braces, commas or backslashes a YAML file is easier: --config-dir)"
        ) from None


def with_quotes(text: str) -> str:
    """`key=PATH` of an existing path, such as `run=sweep/loss=grpo,seed=1`, quoted for Hydra's grammar."""
    key, _, path = text.partition("=")
    return f"{key}='{path}'" if "=" in path and "'" not in path and Path(path).expanduser().exists() else text


def values_of(override: Override) -> Iterable[Any]:
    """The value, or all values of a sweep."""
    if override.is_sweep_override() and override.is_discrete_sweep():
        return [v.strip("'\"") if isinstance(v, str) else v for v in override.sweep_string_iterator()]
    return [override.value()]


def first_value(override: Override) -> str:
    """The override as typed; for a sweep, with its first value."""
    if override.is_sweep_override():
        if not override.is_discrete_sweep():
            return f"{override.get_key_element()}=0"
        return f"{override.get_key_element()}={next(iter(override.sweep_string_iterator()))}"
    return str(override.input_line)


def grid_size(sweeper: DictConfig, overrides: list[Override]) -> int:
    """How many jobs the sweeper starts at once: Optuna one batch, the basic sweeper the whole grid."""
    if "n_jobs" in sweeper:
        return sweeper.n_jobs
    grid = [parse_override(f"{key}={values}") for key, values in (sweeper.params or {}).items()]
    return math.prod(len(list(values_of(override))) for override in [*grid, *overrides])
