"""`loss=gdpo` by hand, in numpy, and against TRL's normalize_then_sum; how `weigh` treats cut rollouts."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from rl.errors import UserError
from rl.losses.base import weigh
from rl.losses.dapo import DAPO
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.gdpo import GDPO
from rl.losses.grpo import GRPO
from rl.rollouts import Completion, Parsed, Problem, Rollout
from tests.helpers.rollouts import one_turn


def rollout(group: int, size: int = 2, cut: bool = False, reward: float = 0.0, **rewards: float) -> Rollout:
    completion = Completion([7] * size, [-1.0] * size, "length" if cut else "stop")
    parsed = Parsed("", "", "", "length" if cut else "stop")
    problem = Problem(f"p{group}", "q", "1", "en", "test")
    return one_turn(problem, group, [1], completion, parsed, rewards=rewards, reward=reward)


def test_a_reward_cannot_hide_another():
    """(1, 0) and (0, 1) have equal sums: GRPO learns nothing from them. With weights 3 and 1, GDPO prefers the first."""
    batch = [rollout(0, 2, False, 1.0, correct=1.0, short=0.0), rollout(0, 2, False, 1.0, correct=0.0, short=1.0)]  # fmt: skip
    assert [row.coefficients[0] for row in weigh(batch, GRPO(), 9)] == [0, 0]
    weights = {"correct": 3.0, "short": 1.0}
    first, second = (row.coefficients[0] for row in weigh(batch, GDPO(), 9, weights))
    # sigma = 0.7071 (plus 1e-4) for both: z = +-(3 - 1) * 0.70701, sd z = 1.9997; z / sd z = 0.7071; over N T = 4.
    assert first == pytest.approx(0.70707 / 4, rel=1e-4) and second == pytest.approx(-first)
    assert [row.coefficients[0] for row in weigh(batch, GDPO(), 9, {"correct": 1.0, "short": 1.0})] == [0, 0]


def batch_of_eight() -> tuple[list[Rollout], dict[str, float]]:
    """Two groups of four with three rewards; `format` is uniform in the second."""
    draw = numpy.random.default_rng(4)
    rollouts = [
        rollout(
            n // 4, int(draw.integers(1, 6)), correct=float(draw.integers(2)), format=float(n >= 4 or n % 2),
            length=float(draw.normal()),
        )
        for n in range(8)
    ]  # fmt: skip
    return rollouts, {"correct": 0.9, "format": 0.1}


def test_scores_and_weights_by_an_independent_derivation():
    """sum_k w_k (r_k - mu_k) / sigma_k in numpy; `length` is the rule's, with loss.length_weight."""
    rollouts, weights = batch_of_eight()
    loss = GDPO(length_weight=0.5)
    z = numpy.zeros(8)
    for name, weight in (*weights.items(), ("length", 0.5)):
        values = numpy.array([r.rewards[name] for r in rollouts]).reshape(2, 4)
        spread = values.std(axis=1, ddof=1, keepdims=True) + 1e-4
        z += weight * ((values - values.mean(axis=1, keepdims=True)) / spread).ravel()
    assert loss.scores(rollouts, weights) == pytest.approx(z, abs=1e-9)
    expected = z / (z.std(ddof=1) + 1e-4) / (8 * numpy.array([r.length for r in rollouts]))
    found = [row.coefficients[0] for row in weigh(rollouts, loss, 9, weights)]
    assert found == pytest.approx(expected, abs=1e-9)


def test_parity_with_trl(tmp_path, tiny_random_model, monkeypatch):
    """TRL's normalize_then_sum and `_compute_loss` on the same rewards and tensors: loss and gradient within 1e-6."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rollouts, weights = batch_of_eight()
    names = ["correct", "format", "length"]
    loss, lengths = GDPO(), [r.length for r in rollouts]
    width = max(lengths)
    model, tokenizer = tiny_random_model()

    def scored(name):
        return lambda completions, **_: [r.rewards[name] for r in rollouts]

    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=[scored(name) for name in names],
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 8}),
        args=GRPOConfig(
            output_dir=str(tmp_path), beta=0.0, max_completion_length=width, num_generations=4, loss_type="grpo",
            multi_objective_aggregation="normalize_then_sum", reward_weights=[0.9, 0.1, 1.0],
            per_device_train_batch_size=8, bf16=False, report_to="none", use_cpu=True, gradient_checkpointing=False,
        ),
    )  # fmt: skip
    inputs = [{"prompt": "a"} for _ in range(8)]
    prepared = trainer._generate_and_score_completions(inputs)
    theirs = prepared["advantages"]
    ours = torch.tensor(loss.advantages(loss.scores(rollouts, weights), [r.group for r in rollouts]))
    assert torch.allclose(ours.float(), theirs, atol=1e-6) and ours.abs().max() > 0.5

    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    behavior = -torch.rand(8, width, generator=torch.Generator().manual_seed(0))
    start = behavior + 0.3 * torch.randn(8, width, generator=torch.Generator().manual_seed(1))
    current = start.clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (current, torch.zeros(8, width), None)
    trainer.current_gradient_accumulation_steps = 1
    ids = torch.ones(8, width, dtype=torch.long)
    their_loss = trainer._compute_loss(
        trainer.model.train(),
        {
            "prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": mask.long(),
            "advantages": theirs, "old_per_token_logps": behavior, "num_items_in_batch": torch.tensor(sum(lengths)),
        },
    )  # fmt: skip
    their_loss.backward()
    coefficients = torch.zeros(8, width)
    for n, row in enumerate(weigh(rollouts, loss, 9, weights)):
        coefficients[n, : lengths[n]] = torch.tensor(row.coefficients)
    logprobs = start.clone().requires_grad_()
    result = loss.surrogate(logprobs, behavior, coefficients, mask).loss
    result.backward()
    assert result.item() == pytest.approx(their_loss.item(), abs=1e-6)
    assert torch.allclose(logprobs.grad, current.grad, atol=1e-6) and current.grad.abs().max() > 1e-3


def test_groups_without_any_difference_weigh_exactly_nothing():
    uniform = [rollout(0, 3, correct=0.3, format=1.0) for _ in range(3)]
    for beside in ([], [rollout(1, 3, correct=1.0, format=1.0), rollout(1, 3, correct=0.0, format=1.0)]):
        rows = weigh([*uniform, *beside], GDPO(), 9, {"correct": 0.9, "format": 0.1})
        assert all(row.coefficients == [0.0] * 3 for row in rows[:3])
        assert not beside or rows[3].coefficients[0] > 0 > rows[4].coefficients[0]


def test_rewards_that_are_not_finite_weigh_nothing_or_nan():
    """Such a step is skipped either way: no coefficient is a finite number other than 0."""
    lost = [rollout(0, reward=math.nan, correct=math.nan) for _ in range(2)]
    assert all(not c or math.isnan(c) for row in weigh(lost, GDPO(), 9) for c in row.coefficients)


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_a_weight_out_of_range_is_refused(value):
    with pytest.raises(UserError, match=r"loss\.length_weight="):
        GDPO(length_weight=value)


@pytest.mark.parametrize(
    "loss", [GRPO(kl_beta=0.1), DAPO(kl_beta=0.1), FlashReinforce()], ids=lambda loss: loss.name
)
def test_masked_rollouts_stay_in_n_in_the_baseline_and_in_the_lengths(loss):
    """The others weigh what they would weigh without the mask; the cut one weighs 0 and has no KL penalty."""
    batch = [
        rollout(0, 3, False, 1.0),
        rollout(0, 5, True, 0.0),
        rollout(1, 2, False, 1.0),
        rollout(1, 4, False, 0.0),
    ]
    plain, masked = weigh(batch, loss, 9), weigh(batch, loss, 9, mask_truncated=True)
    for n in (0, 2, 3):
        assert masked[n] == plain[n] and plain[n].coefficients[0]
    assert plain[1].coefficients[0] < 0
    assert masked[1].coefficients == [0.0] * 5 and masked[1].kl_weight == 0
