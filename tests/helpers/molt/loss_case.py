"""Runs in Molt's environment: its advantage estimator and loss module with the flags of a blueprint, on given tensors.

stdin: [{"flags": {...}, "case": {"logprobs", "behavior_logprobs", "rewards", "groups", "action_mask", "split"}}]; split: rows of
each micro-batch. stdout, last line: [{"grad", "advantages", "filtered"}].
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path

import torch

# molt.models itself imports NVIDIA's AutoModel, which needs CUDA; its loss module does not.
models = types.ModuleType("molt.models")
models.__path__ = [str(Path(importlib.util.find_spec("molt").origin).parent / "models")]
sys.modules["molt.models"] = models

from molt.models.loss import PolicyLoss  # noqa: E402
from molt.trainer.algorithm.advantage import AdvantageContext, get_advantage_estimator  # noqa: E402


def run(flags, case):
    level = flags["algo.advantage.is_correction_level"]
    threshold = flags.get("algo.advantage.is_correction_threshold")
    if threshold == "inf":
        threshold = float("inf")
    clip = flags.get("actor.eps_clip_low_high", (0.2, 0.2))
    loss = PolicyLoss(
        clip_eps_low=clip[0],
        clip_eps_high=clip[1],
        loss_mode=flags.get("actor.loss_mode", "ppo"),
        is_correction_level=level,
        is_correction_mode=flags.get("algo.advantage.is_correction_mode", "mask"),
        is_correction_threshold=None if level == "off" else [float("-inf"), threshold],
        is_correction_gating=flags.get("algo.advantage.is_correction_gating", "ratio"),
        loss_agg_mode=flags["actor.loss_agg_mode"],
    )
    mask = torch.tensor(case["action_mask"], dtype=torch.bool)
    logprobs = torch.tensor(case["logprobs"], dtype=torch.float64, requires_grad=True)
    behavior = torch.tensor(case["behavior_logprobs"], dtype=torch.float64)
    rewards = torch.tensor(case["rewards"], dtype=torch.float64)
    count, groups = len(rewards), {}
    for row, group in enumerate(case["groups"]):
        groups.setdefault(group, []).append(row)
    context = AdvantageContext(
        sample_to_rollout=torch.arange(count), exp_len=[count], action_masks=[mask], kl_coef=0.0, gamma=1.0, lam=1.0,
        kls=[torch.zeros_like(behavior)],
    )  # fmt: skip
    estimator = get_advantage_estimator(flags["algo.advantage.estimator"])
    (advantages,), _ = estimator(rewards, list(groups.values()), context)
    filtered, first = [], 0
    for rows in case["split"]:
        part = slice(first, first + rows)
        first += rows
        total, *_, ratio = loss(
            logprobs[part], logprobs[part].detach(), advantages[part], action_mask=mask[part],
            rollout_log_probs=behavior[part], dp_size=1, batch_num_tokens=mask.sum(), global_batch_size=count,
        )  # fmt: skip
        total.backward()
        filtered += [] if ratio is None else ratio.tolist()
    return {"grad": logprobs.grad.tolist(), "advantages": advantages.tolist(), "filtered": filtered}


if __name__ == "__main__":
    print(json.dumps([run(**request) for request in json.load(sys.stdin)]))
