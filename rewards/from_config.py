"""A RewardSet from plain config nodes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from rewards.base import Reward
from rewards.length.base import LengthRule
from rewards.reward_set import FunctionReward, RewardSet
from rewards.truncated import Truncated
from rl.data.config import DataConfig
from rl.errors import UserError
from rl.schema import TARGET, build, convert, locate, target_parameters, unknown_key


def with_reward_set(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with the nodes `rewards`, `length` and `truncated` as one RewardSet."""
    rest = {key: value for key, value in tree.items() if key not in ("length", "truncated")}
    return {**rest, "rewards": reward_set_from(tree["rewards"], tree.get("length"), tree.get("truncated"))}


def reward_set_from(
    node: Mapping[str, Any],
    length: Mapping[str, Any] | None = None,
    truncated: Mapping[str, Any] | None = None,
) -> RewardSet:
    """A RewardSet from the nodes `rewards`, `length` and `truncated`.

    In YAML, rewards sit beside the set's own options, so that `rewards.format.weight=0.2` works.
    """
    terms = {
        name: reward_from(child, f"rewards.{name}")
        for name, child in node.items()
        if isinstance(child, Mapping)
    }
    choices = {name: child for name, child in node.items() if name not in terms}
    for name, example in {"length": "length=kimi", "truncated": "truncated=mask"}.items():
        if name in choices:
            raise UserError(f"rewards.{name}={choices[name]}: the rule is no part of a set; type {example}")
    rule = convert(length, LengthRule, "length") if length else None
    cut = convert(truncated, Truncated, "truncated") if truncated else Truncated()
    return build(RewardSet, {**choices, "terms": terms, "length": rule, "truncated": cut}, "rewards")


def rewards_on(rewards: RewardSet, own: DataConfig, data: DataConfig) -> RewardSet:
    """The rewards of a run whose data set is `own`, for answers to the questions of `data`.

    Where the rewards differ from what `own` says, the user typed how to read answers, and that holds for every set.
    """
    region = data.answer_region if rewards.answer_region == own.answer_region else rewards.answer_region
    tolerance = data.tolerance if rewards.tolerance == own.tolerance else rewards.tolerance
    return rewards.reading(region, tolerance)


def reward_from(node: Mapping[str, Any], key: str) -> Any:
    """A reward built from its node: an instance of its class, or a user's function `f(rollouts, ...)` wrapped as one."""
    target = locate(node[TARGET], f"{key}.{TARGET}") if TARGET in node else None
    if target is None or inspect.isclass(target):
        return convert(node, Reward, key)
    parameters = target_parameters(target)
    known = {*parameters, "weight", "baseline", "needs_grading", TARGET}
    for name in node:
        if name not in known:
            raise unknown_key(key, name, known)
    own = {name: value for name, value in node.items() if name in parameters}
    rest = {name: value for name, value in node.items() if name not in own and name != TARGET}
    function = convert({TARGET: node[TARGET], **own}, Reward, key)
    return build(FunctionReward, {**rest, "function": function}, key)
