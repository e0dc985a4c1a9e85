"""What Molt can be asked to do: everything of a blueprint that its command line cannot express is refused in one line."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from rl.blueprint import Blueprint
from rl.budget import Constant
from rl.engines.molt.options import MoltOptions
from rl.errors import UserError
from rl.losses.base import PolicyLoss
from rl.losses.dapo import DAPO
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.grpo import GRPO

CLIPPED = {
    GRPO: "seq-mean-token-mean",
    DAPO: "token-mean",
}  # their mean over tokens and rollouts, by Molt's name
MEANS = {
    "sample_mean": "seq-mean-token-mean",
    "token_mean": "token-mean",
}  # the same, of FlashREINFORCE's weighting


@dataclass(frozen=True)
class MoltLoss:
    """A loss as Molt's flags. corrected: whether it weighs rows that an older policy sampled."""

    flags: dict[str, Any]
    corrected: bool


def molt_loss(loss: PolicyLoss, options: MoltOptions) -> MoltLoss:
    """The loss as Molt's flags. Raises UserError for one that Molt cannot express."""
    if loss.correction != "none":
        raise UserError(
            f"loss.correction={loss.correction}: engine=molt has no such correction; type loss.correction=none, or"
            " loss=flashreinforce, which weighs each token itself"
        )
    if type(loss) is FlashReinforce:
        return MoltLoss(_flash_reinforce(loss, options), corrected=True)
    if type(loss) in CLIPPED:
        assert isinstance(loss, GRPO)
        return MoltLoss(_clipped(loss, options), corrected=False)
    raise UserError(
        f"loss={loss.name}: Molt cannot express it; type loss=flashreinforce, loss=grpo or loss=dapo, or engine=trl"
    )


def _flash_reinforce(loss: FlashReinforce, options: MoltOptions) -> dict[str, Any]:
    if loss.negative_token_fraction != 1:
        raise UserError(
            f"loss.negative_token_fraction={loss.negative_token_fraction}: no release of molt-rl has a flag for it; type"
            " loss.negative_token_fraction=1.0, or engine=local or engine=trl"
        )
    return {
        "algo.advantage.estimator": "flash_reinforce",
        "algo.advantage.is_correction_level": "seq",
        "algo.advantage.is_correction_mode": "mask",
        "algo.advantage.is_correction_gating": "binary_kl",
        "algo.advantage.is_correction_threshold": loss.delta,
        "actor.loss_agg_mode": options.loss_agg_mode or MEANS[loss.weighting],
    }


def _clipped(loss: GRPO, options: MoltOptions) -> dict[str, Any]:
    if loss.kl_beta:
        raise UserError(
            f"loss.kl_beta={loss.kl_beta}: engine=molt has no KL penalty to the model before training; type loss.kl_beta=0"
        )
    return {
        "algo.advantage.estimator": "grpo" if loss.scale_rewards else "dr_grpo",
        "algo.advantage.is_correction_level": "off",
        "actor.loss_mode": "ppo",
        "actor.eps_clip_low_high": [loss.clip_low, loss.clip_high],
        "actor.loss_agg_mode": options.loss_agg_mode or CLIPPED[type(loss)],
    }


def require_expressible(blueprint: Blueprint, options: MoltOptions) -> None:
    """Raises UserError for the first choice that Molt cannot carry out."""
    loss = molt_loss(blueprint.loss, options)
    if blueprint.loss.updates_per_batch > 1:
        raise UserError(
            f"loss.updates_per_batch={blueprint.loss.updates_per_batch}: Molt takes one optimiser step a batch here; type"
            " loss.updates_per_batch=1"
        )
    if isinstance(blueprint.loss, FlashReinforce) and blueprint.group_size > 1:
        raise UserError(
            f"group_size={blueprint.group_size}: FlashREINFORCE on Molt samples one completion a problem; type group_size=1"
            f" batch_size={blueprint.batch_size * blueprint.group_size}, or loss=grpo"
        )
    rollouts = blueprint.batch_size * blueprint.group_size
    copies = options.actor_world // options.model_parallel
    if rollouts % copies:
        raise UserError(
            f"engine.actor_gpus={options.actor_gpus}: {copies} copies of the model cannot share a batch of {rollouts} rollouts"
            f" equally; type a number that divides it, e.g. engine.actor_gpus={options.model_parallel}"
        )
    share = rollouts // copies
    if share % options.microbatch_rows:
        raise UserError(
            f"engine.microbatch_rows={options.microbatch_rows}: does not divide the {share} rollouts of a batch that each of"
            f" {copies} copies of the model trains on; e.g. engine.microbatch_rows={math.gcd(share, options.microbatch_rows)}"
        )
    if not loss.corrected and (options.queue > 1 or (options.in_flight or 0) > blueprint.batch_size):
        raise UserError(
            f"engine.queue={options.queue}, engine.in_flight={options.in_flight}: loss={blueprint.loss.name} on Molt does not"
            " weigh rollouts of older policies; type engine.queue=1 engine.in_flight=null, or loss=flashreinforce"
        )
    _require_settings(blueprint)
    _require_context(blueprint, options)


def _require_settings(blueprint: Blueprint) -> None:
    schedule = blueprint.optimizer
    refused = {
        f"optimizer.schedule={schedule.schedule}: Molt fails on this schedule; type optimizer.schedule=cosine, or"
        " constant": schedule.schedule == "linear",
        "budget: Molt samples every step with the same budget; type budget=constant": not isinstance(
            blueprint.budget, Constant
        ),
        f"curriculum={blueprint.curriculum}: Molt shuffles the problems itself; type curriculum=none": (
            blueprint.curriculum != "none"
        ),
        "data.shuffle=false: Molt always shuffles the problems; type data.shuffle=true": not blueprint.data.shuffle,
        f"refill={blueprint.refill}: Molt trains on every batch as it is; type refill=0": blueprint.refill
        > 0,
        f"thinking_tokens={blueprint.thinking_tokens}: Molt samples a turn in one call, so nothing can close its reasoning; type"
        " thinking_tokens=null": blueprint.thinking_tokens is not None,
        f"truncated={blueprint.rewards.truncated.name}: Molt trains on cut completions too; type truncated=zero or"
        " truncated=scale": blueprint.rewards.truncated.masks,
        f"eval_max_tokens={blueprint.eval_max_tokens}: Molt evaluates with max_tokens only; type eval_max_tokens=null": (
            blueprint.eval_max_tokens is not None
        ),
        f"eval_data=[{','.join(blueprint.eval_data)}]: Molt evaluates on the test problems of data; leave eval_data out, or"
        " type data.test_path=FILE instead": bool(blueprint.eval_data),
        f"max_sampled_tokens={blueprint.max_sampled_tokens}: Molt has no limit of sampled tokens; type max_sampled_tokens=null,"
        " and max_steps=N": blueprint.max_sampled_tokens is not None,
        f"device={blueprint.device}: Molt trains on CUDA GPUs; type device=auto": blueprint.device
        not in ("auto", "cuda"),
        f"optimizer.name={schedule.name}: Molt has no 8-bit moments; type optimizer.name=adamw": schedule.name
        != "adamw",
        f"model.quantization={blueprint.model.quantization}: Molt trains 16-bit weights; type model.quantization=null": (
            blueprint.model.quantization is not None
        ),
        f"keep_best={blueprint.keep_best}: Molt keeps its newest checkpoints only here; type keep_best=null": (
            blueprint.keep_best is not None
        ),
        f"preflight={blueprint.preflight}: the check before step 1 samples here, and Molt samples elsewhere; type"
        " preflight=off": blueprint.preflight != "off",
    }
    for message, is_refused in refused.items():
        if is_refused:
            raise UserError(message)
    length = blueprint.rewards.length
    if length is not None and length.needs_groups:
        raise UserError(
            f"length={length.name}: compares the completions of a problem, and Molt scores each alone; type length=none, or a"
            " length that judges each alone: cosine, laser, overlong"
        )
    if lora := blueprint.model.lora:
        if lora.dropout:
            raise UserError(
                f"model.lora.dropout={lora.dropout}: Molt's LoRA has no dropout; type model.lora.dropout=0"
            )
        if lora.alpha != int(lora.alpha):
            raise UserError(
                f"model.lora.alpha={lora.alpha}: Molt takes whole numbers; e.g. model.lora.alpha={round(lora.alpha)}"
            )


def context_length(blueprint: Blueprint, options: MoltOptions) -> int:
    """Tokens of a prompt and everything after it. Raises UserError where no option says it."""
    chosen = options.max_len or blueprint.environment.max_context
    if chosen is not None:
        return chosen
    if blueprint.data.max_prompt_tokens is None:
        raise UserError(
            "data.max_prompt_tokens=null: Molt needs the longest context before it starts; type e.g."
            f" data.max_prompt_tokens=1024, or engine.max_len={1024 + blueprint.max_tokens}"
        )
    return blueprint.data.max_prompt_tokens + blueprint.max_tokens


def _require_context(blueprint: Blueprint, options: MoltOptions) -> None:
    length = context_length(blueprint, options)
    call = options.max_call_tokens or blueprint.max_tokens
    needed = (blueprint.data.max_prompt_tokens or 1) + call
    if needed > length:
        raise UserError(
            f"engine.max_len={length}: the longest prompt and the budget make {needed} tokens; type engine.max_len={needed}, or"
            " a smaller max_tokens or data.max_prompt_tokens"
        )
    context = blueprint.model.context or local_context(blueprint)
    if context is not None and length > context:
        raise UserError(
            f"engine.max_len={length}: the model's context holds {context} tokens; type a smaller max_tokens, or"
            f" model.context={length} (positions beyond its training, RoPE unchanged)"
        )


def local_context(blueprint: Blueprint) -> int | None:
    """The context in a local checkpoint's config.json; None for a model of the Hub, or where it says nothing."""
    if blueprint.model.path is None:
        return None
    try:
        config = json.loads((blueprint.model.local_path / "config.json").read_text(encoding="utf-8"))
    except ValueError:  # reading the tokenizer reports a broken checkpoint
        return None
    text = config.get("text_config") or config
    return text.get("max_position_embeddings")
