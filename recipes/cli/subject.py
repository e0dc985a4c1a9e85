"""Finds what `recipes.sample` and `recipes.evaluate` look at: a base model, or a run or an adapter beside its base."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from recipes.cli.compose import Composed, resolved
from recipes.cli.overrides import parse_override
from rewards.from_config import with_reward_set
from rl.errors import UserError
from rl.evaluation.base_and_trained import read_config
from rl.models.export import find_weights

SHARED = ("eval_data", "thinking_tokens")  # root keys of a run that a command takes over if it has them
NODES = ("model", "data", "renderer", "rewards")  # the nodes taken from a run's config.yaml


def subject_of(
    composed: Composed, budget: Callable[[int], dict[str, Any]]
) -> tuple[dict[str, Any], Path | None, int]:
    """The config's tree, the folder of trained weights (or None), and the seed of generated problems.

    budget: turns a run's `max_tokens` into the root key that it sets if that key is not typed.

    Raises UserError if `run` is not a run, for a folder without weights, and for an engine that samples only in a job.
    """
    if composed.choices.get("engine") == "molt":  # its file sets keys that only training has
        raise UserError("engine=molt: it samples only inside its own job; type engine=local, or engine=vllm")
    run, adapter = composed.tree["run"], composed.tree["adapter"]
    if run is not None and adapter is not None:
        raise UserError("run, adapter: expected only one of them; a run brings its own model and weights")
    tree, seed = composed.tree, 0
    weights = None if adapter is None else find_weights(str(adapter), "adapter")
    if run is not None:
        weights = find_weights(str(run), "run")
        config = read_config(weights)
        if missing := [key for key in (*NODES, "seed", "max_tokens") if key not in config]:
            raise UserError(
                f"run={run}: its config.yaml lacks {missing[0]}; expected the folder of a training run"
            )
        tree, seed = with_run(composed, config, budget(config["max_tokens"])), config["seed"]
    return with_reward_set(tree), weights, seed


def with_run(composed: Composed, run: Mapping[str, Any], budget: Mapping[str, Any]) -> dict[str, Any]:
    """The composed tree with the run's model, data, renderer, rewards and budget; typed keys take precedence."""
    typed = typed_keys(composed)
    if any(key.partition(".")[0] == "model" for key in typed - {"model.path"}):
        raise UserError(
            f"run={composed.tree['run']}: a run brings its own model; leave out model (or type model.path=FOLDER if it"
            " was moved), or type adapter=FOLDER instead of run"
        )
    config = copy.deepcopy(composed.raw)
    OmegaConf.set_struct(config, False)
    for key, value in budget.items():
        if key not in typed:
            config[key] = value
    if "data" in typed and "eval_data" not in typed:
        run = {**run, "eval_data": {}}  # typed data replaces all that the run was evaluated on
    shared = (key for key in SHARED if key in config)
    for node in (*NODES, "environment", "length", "truncated", *shared):
        if node in run and node not in typed:  # runs of older versions lack some of them
            kept = {key: OmegaConf.select(config, key) for key in typed if key.startswith(f"{node}.")}
            config[node] = run[node]
            for key, value in kept.items():
                OmegaConf.update(config, key, value, merge=False)
    return resolved(config)


def typed_keys(composed: Composed) -> set[str]:
    """The groups and dotted keys on the command line."""
    return {str(parse_override(text).key_or_group) for text in composed.overrides}
