"""engine=molt against the molt-rl package itself: `make test-molt` installs it (on a CPU: parser, agents, loss module)."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess

import pytest
import torch

from rl.engines.molt.checks import Answer, ask, explained, unchecked
from rl.engines.molt.command import Command, environment
from rl.engines.molt.expressible import molt_loss
from rl.losses.base import PolicyLoss
from rl.losses.dapo import DAPO
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.grpo import GRPO
from tests.helpers.blueprints import composed
from tests.helpers.molt.package import HELPERS, in_molt, molt_python
from tests.helpers.molt.presets import PRESETS, command_of
from tests.helpers.recipes import ROOT


def asked(*overrides: str) -> Answer:
    return ask(
        command_of(composed("engine=molt", f"engine.python={molt_python()}", *overrides)), address=None
    )


@pytest.mark.parametrize("overrides", PRESETS, ids=" ".join)
def test_molts_own_parser_accepts_every_preset(overrides):
    answer = asked(*overrides)
    assert answer.accepted, answer.words
    assert answer.packages["molt"] == "0.2.1"


def test_molts_own_words_are_reported():
    small = ("loss=flashreinforce", "data.max_prompt_tokens=64")
    unknown = asked(*small, "+engine.flags.vllm.speed=9")
    assert not unknown.accepted and "unrecognized arguments: --vllm.speed 9" in explained(unknown)
    short = asked(*small, "+engine.flags.rollout.batch_siz=64")  # argparse alone would replace our batch size
    assert not short.accepted and "unrecognized arguments: --rollout.batch_siz 64" in short.words
    invalid = asked(*small, "+engine.flags.train.routing_replay=true", "engine.in_flight=1000")
    assert "incompatible with --train.partial_rollout_enable" in explained(invalid)
    replay = asked(*small, "+engine.flags.train.routing_replay=true")  # a variant that AutoModel must support
    assert unchecked(replay) == "the package nemo_automodel is not installed"


def test_a_cluster_that_is_not_there_is_said(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    command = command_of(composed("experiment=molt_flashreinforce_r1", f"engine.python={molt_python()}"))
    answer = ask(command, command.environment["RAY_ADDRESS"])
    assert (
        answer.accepted and answer.gpus == 0 and "Could not find any running Ray instance" in answer.cluster
    )


def test_a_running_cluster_is_counted_and_left_running():
    answer = in_molt("ray_cluster.py")
    assert (answer["gpus"], answer["cluster"], answer["still_there"]) == (8, "", True)
    assert "--actor.model_name_or_path is required" in answer["words"]


def test_the_recorded_flags_are_those_of_the_package():
    now = in_molt("record.py")
    before = json.loads((ROOT / "tests/data/molt_flags.json").read_text())
    assert now == before, (
        f"tests/data/molt_flags.json is stale: {molt_python()} tests/helpers/molt/record.py write"
    )


def padded_case(seed: int, turns: bool) -> dict:
    """Random rows of unequal lengths, some far off policy; with `turns`, tool text between sampled tokens."""
    draw = random.Random(seed)
    lengths = [draw.randint(1, 12) for _ in range(6)]
    width, scales = max(lengths), [0.01, 0.05, 2.0, 0.02, 1.0, 0.03]
    logprobs = [[-draw.random() * 3 - 0.01 for _ in range(width)] for _ in lengths]
    return {
        "logprobs": logprobs,
        "behavior_logprobs": [
            [min(-1e-4, value + draw.uniform(-scale, scale)) for value in row]
            for row, scale in zip(logprobs, scales, strict=True)
        ],
        "rewards": [draw.choice([0.0, 0.1, 1.0]) for _ in lengths],
        "groups": [0, 0, 0, 1, 1, 1],
        "action_mask": [
            [t < length and (not turns or t % 3 != 1) for t in range(width)] for length in lengths
        ],
        "split": [1, 2, 3],
    }


def ours(loss: PolicyLoss, case: dict):
    """Our gradient, advantages per row, and which rows are rejected."""
    mask = torch.tensor(case["action_mask"], dtype=torch.bool)
    lengths = mask.sum(-1).tolist()
    logprobs = torch.tensor(case["logprobs"], dtype=torch.float64, requires_grad=True)
    behavior = torch.tensor(case["behavior_logprobs"], dtype=torch.float64)
    weights = loss.weights(case["rewards"], case["groups"], lengths, 99)
    coefficients = torch.tensor(weights, dtype=torch.float64)[:, None] * mask
    surrogate = loss.surrogate(logprobs, behavior, coefficients, mask)
    surrogate.loss.backward()
    return logprobs.grad, (~surrogate.admitted).float().tolist()


def shipped_cases() -> list[tuple[float, dict]]:
    cases = json.loads((ROOT / "tests/data/flashreinforce.json").read_text())
    for case in cases:
        case |= {"groups": list(range(len(case["rewards"]))), "split": [1] * len(case["rewards"])}
    return [(math.inf if case["delta"] is None else case["delta"], case) for case in cases]


def test_flashreinforce_is_molts_own_loss():
    """Gradient, baseline and admission agree within 1e-6: the eight shipped cases, unequal lengths, turns, micro-batches."""
    cases = shipped_cases() + [
        (delta, padded_case(seed, seed % 2 == 1)) for seed in range(8) for delta in (3e-3, 1e-1)
    ]
    options = composed("engine=molt", "loss=flashreinforce").engine
    losses = [FlashReinforce(delta=delta) for delta, _ in cases]
    requests = [
        {"flags": jsonable(molt_loss(loss, options).flags), "case": case}
        for loss, (_, case) in zip(losses, cases, strict=True)
    ]
    rejected = 0
    for loss, (_, case), found in zip(losses, cases, in_molt("loss_case.py", requests), strict=True):
        gradient, filtered = ours(loss, case)
        assert torch.allclose(gradient, torch.tensor(found["grad"], dtype=torch.float64), atol=1e-6, rtol=0)
        assert filtered == found["filtered"]
        mean = sum(case["rewards"]) / len(case["rewards"])
        for reward, row, mask in zip(case["rewards"], found["advantages"], case["action_mask"], strict=True):
            assert row == pytest.approx([(reward - mean) * kept for kept in mask], abs=1e-6)
        rejected += sum(filtered)
    assert rejected > 5


def test_group_losses_are_molts_on_policy():
    """On policy, Molt's ratio is 1. It divides by the deviation + 1e-9, we by the deviation + 1e-4."""
    options = composed("engine=molt", "loss=grpo").engine
    cases = [padded_case(seed, seed % 2 == 1) for seed in range(4)]
    for case in cases:
        case["behavior_logprobs"] = case["logprobs"]
    losses = [kind(scale_rewards=scaled) for kind in (GRPO, DAPO) for scaled in (True, False)]
    pairs = [(loss, case) for loss in losses for case in cases]
    requests = [{"flags": molt_loss(loss, options).flags, "case": case} for loss, case in pairs]
    for (loss, case), found in zip(pairs, in_molt("loss_case.py", requests), strict=True):
        gradient, _ = ours(loss, case)
        relative = 2e-3 if loss.scale_rewards else 0
        assert torch.allclose(
            gradient, torch.tensor(found["grad"], dtype=torch.float64), atol=1e-6, rtol=relative
        )


def jsonable(flags: dict) -> dict:
    return {name: str(value) if value == math.inf else value for name, value in flags.items()}


def test_ray_forwards_the_lines_that_metrics_are_read_from():
    """A real Ray on this CPU: an actor logs as Molt's trainer does, and the driver's output has each line once."""
    from rl.engines.molt.logs import plain, step_metrics

    variables = environment(composed("engine=molt", "engine.ray=start").engine)
    done = subprocess.run(
        [molt_python(), HELPERS / "ray_lines.py"],
        text=True,
        capture_output=True,
        timeout=280,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    found = [found for line in done.stdout.splitlines() if (found := step_metrics(plain(line)))]
    assert [step for step, _ in found] == [1, 2, 3]
    assert found[0][1]["reward_total"] == 0.5 and math.isnan(found[0][1]["molt/kl"])


def test_a_python_without_molt_is_named():
    import sys

    command = command_of(composed("engine=molt", "loss=flashreinforce", "data.max_prompt_tokens=64"))
    answer = ask(Command(sys.executable, command.flags, {}, command.folder), address=None)
    assert answer.packages["molt"] is None and not answer.accepted
