"""The KL penalty to the model before training: what the local learner adds to the gradient, and who refuses it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rl.engines.local.learner import LocalLearner
from rl.losses.grpo import GRPO
from rl.losses.rloo import RLOO
from rl.models.config import LoraConfig
from rl.models.loading import add_lora
from rl.optimizer import OptimizerConfig
from rl.rollouts import TrainingRow
from tests.helpers.recipes import rl_basic
from tests.helpers.rollouts import one_turn_row

SMALL = ("max_steps=3", "batch_size=2", "group_size=2", "eval_every=0", "preflight=off", "device=cpu")


def adapted(tiny_random_model, moved: bool) -> LocalLearner:
    """A learner of an adapter; `moved`: as if trained, so that it differs from its base."""
    model, adapter = add_lora(tiny_random_model()[0], LoraConfig(rank=4, alpha=8, dropout=0.0), False, 0)
    if moved:
        torch.manual_seed(5)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
    return LocalLearner(model, OptimizerConfig(max_grad_norm=math.inf), 0.8, 10_000, adapter)


def rows_for(learner: LocalLearner, coefficients=(0.1, -0.1, 0.0, 0.0)) -> list[TrainingRow]:
    rows = [
        one_turn_row([5, 6], list(range(40, 42 + n)), [-1.0] * (2 + n), [c] * (2 + n), 0.02 / (2 + n))
        for n, c in enumerate(coefficients)
    ]
    scores, references = learner.logprobs(rows), learner.reference_logprobs(rows)
    return [
        replace(row, behavior_logprobs=s, reference_logprobs=r)
        for row, s, r in zip(rows, scores, references, strict=True)
    ]


def test_the_reference_is_the_model_before_training(tiny_random_model):
    base = LocalLearner(tiny_random_model()[0], OptimizerConfig(), 0.8, 10_000)
    learner = adapted(tiny_random_model, moved=True)
    rows = rows_for(learner)
    for row, expected in zip(rows, base.logprobs(rows), strict=True):
        assert list(row.reference_logprobs) == pytest.approx(expected, abs=1e-5)
    assert max(abs(row.reference_logprobs[0] - row.behavior_logprobs[0]) for row in rows) > 1e-2
    assert learner.update(rows, GRPO(kl_beta=0.1), 1e-2).stepped  # the adapter is on again, and trains
    assert list(learner.reference_logprobs(rows)[3]) == pytest.approx(
        list(rows[3].reference_logprobs), abs=1e-5
    )


@pytest.mark.parametrize("microbatch_tokens", [1, 10_000])
def test_the_penalty_and_its_gradient(microbatch_tokens, tiny_random_model):
    """Rows whose group carries no signal are pulled towards the reference too; micro-batches change nothing."""
    learner = adapted(tiny_random_model, moved=True)
    rows, loss = rows_for(learner), RLOO(kl_beta=0.1)
    learner.microbatch_tokens = microbatch_tokens
    stats = learner.update(rows, loss, learning_rate=0.0)
    found = torch.cat([p.grad.flatten() for p in learner.parameters])

    learner.optimizer.zero_grad()
    expected, divergences = torch.zeros(()), []
    for row in rows:
        ids = torch.tensor([[*row.prompt_tokens, *row.response_tokens]])
        logits = learner.model(ids).logits[0, 1:-1] / 0.8
        current = logits.log_softmax(-1).gather(-1, ids[0, 2:, None]).squeeze(-1)
        d = torch.tensor(row.reference_logprobs) - current
        kl = d.exp() - d - 1
        divergences += kl.tolist()
        rho = (current - torch.tensor(row.behavior_logprobs)).exp()
        expected = expected + row.kl_weight * kl.sum() - (torch.tensor(row.coefficients) * rho).sum()
    expected.backward()
    wanted = torch.cat([p.grad.flatten() for p in learner.parameters])
    assert torch.allclose(found, wanted, atol=1e-5) and wanted.abs().max() > 1e-3
    assert stats.loss == pytest.approx(expected.item(), abs=1e-5)
    assert stats.metrics["kl_reference"] == pytest.approx(sum(divergences) / len(divergences), rel=1e-3)
    assert sum(divergences) > 0.01


def test_a_fresh_adapter_has_no_divergence(tiny_random_model):
    learner = adapted(tiny_random_model, moved=False)
    stats = learner.update(rows_for(learner), GRPO(kl_beta=0.1), 0.0)
    assert stats.stepped and stats.metrics["kl_reference"] == pytest.approx(0, abs=1e-9)


def test_a_batch_without_signal_takes_no_step_for_the_penalty_alone(tiny_random_model):
    learner = adapted(tiny_random_model, moved=True)
    before = [p.clone() for p in learner.parameters]
    stats = learner.update(rows_for(learner, (0.0, 0.0)), GRPO(kl_beta=0.1), 1e-2)
    assert not stats.stepped and stats.metrics["kl_reference"] > 0
    assert all(torch.equal(a, b) for a, b in zip(before, learner.parameters, strict=True))


def test_a_run_with_the_penalty(tmp_path: Path) -> None:
    result = rl_basic(
        "model.lora.rank=4", "loss.kl_beta=0.5", "loss.updates_per_batch=2", "learning_rate=0.01", *SMALL,
        "batch_size=8", "run_dir=r", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (tmp_path / "r/metrics.jsonl").read_text().splitlines()]
    moved = [row["kl_reference"] for row in rows if not row["skipped"]]
    assert moved and max(moved) > 1e-4 and min(row["kl_reference"] for row in rows) >= 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("engine=local",), "model.lora=null: the reference policy of loss.kl_beta is the model with its adapter off"),
        (("engine=trl",), "model.lora=null: the reference policy of loss.kl_beta is the model with its adapter off"),
        (("engine=tinker", "model.lora.rank=32"), "loss.kl_beta: a Tinker service adds no KL penalty"),
    ],
)  # fmt: skip
def test_engines_without_a_reference_refuse_it_in_one_line(arguments, words, tmp_path):
    result = rl_basic("loss.kl_beta=0.04", *arguments, *SMALL, cwd=tmp_path)
    assert result.returncode == 2 and words in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and "Traceback" not in result.stderr


def test_a_loss_without_groups_has_no_such_key(tmp_path):
    result = rl_basic("loss=flashreinforce", "loss.kl_beta=0.04", *SMALL, "plan=true", cwd=tmp_path)
    assert result.returncode == 2 and "loss.kl_beta" in result.stderr and "Traceback" not in result.stderr
