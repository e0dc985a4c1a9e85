"""Losses: the reference cases, numbers derived by hand, and what must hold for any batch."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl.errors import UserError
from rl.losses.base import PolicyLoss, highest_entropy, weigh
from rl.losses.dapo import DAPO
from rl.losses.dr_grpo import DrGRPO
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.grpo import GRPO
from rl.rollouts import Completion, Parsed, Problem
from tests.helpers.recipes import ROOT
from tests.helpers.rollouts import one_turn


def coefficients(loss: PolicyLoss, rewards, groups, lengths, max_tokens: int) -> torch.Tensor:
    """[N, T] coefficients as the loop makes them, padded with 0."""
    rollouts = [
        one_turn(
            Problem("p", "q", "1", "en", "test"), group, [1], Completion([2] * length, [-1.0] * length, "stop"),
            Parsed("", "", "", "stop"), reward=reward,
        )
        for reward, group, length in zip(rewards, groups, lengths, strict=True)
    ]  # fmt: skip
    rows = weigh(rollouts, loss, max_tokens)
    table = torch.zeros(len(rows), max(lengths), dtype=torch.float64)
    for n, row in enumerate(rows):
        table[n, : lengths[n]] = torch.tensor(row.coefficients, dtype=torch.float64)
    return table


def mask_of(lengths) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


CASES = ROOT / "tests/data/flashreinforce.json"


@pytest.mark.parametrize("number", range(8))
def test_flashreinforce_reference_case(number):
    case = json.loads(CASES.read_text())[number]
    expected = case["expected"]
    loss = FlashReinforce(
        delta=math.inf if case["delta"] is None else case["delta"],
        negative_token_fraction=case["negative_token_fraction"],
    )
    mask = torch.tensor(case["action_mask"], dtype=torch.bool)
    logprobs = torch.tensor(case["logprobs"], dtype=torch.float64, requires_grad=True)
    behavior = torch.tensor(case["behavior_logprobs"], dtype=torch.float64)
    count = len(case["rewards"])
    lengths = mask.sum(-1).tolist()
    weights = loss.weights(case["rewards"], range(count), lengths, 99)
    coef = torch.zeros_like(behavior)
    for n, length in enumerate(lengths):
        coef[n, :length] = weights[n]
        if case["failures"] and case["failures"][n]:
            kept = highest_entropy(case["entropies"][n][:length], case["negative_token_fraction"])
            coef[n, :length] *= torch.tensor(kept, dtype=torch.float64)
    result = loss.surrogate(logprobs, behavior, coef, mask)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(expected["loss"], abs=1e-9)
    assert torch.allclose(
        logprobs.grad, torch.tensor(expected["grad"], dtype=torch.float64), atol=1e-9, rtol=0
    )
    assert torch.allclose(
        result.sequence_kl, torch.tensor(expected["sequence_kl"], dtype=torch.float64), atol=1e-9
    )
    assert result.admitted.int().tolist() == expected["admitted"]
    assert ((coef != 0) & result.admitted[:, None]).sum(-1).tolist() == expected["retained_tokens"]


def test_flashreinforce_by_hand():
    """Three rows, rewards 1, 0, 1; the third row's one token drifted from p = e^-0.3 to e^-2 and is rejected."""
    logprobs = torch.tensor([[-0.5, -1, 0], [-0.7, -0.2, -1.5], [-2, 0, 0]], dtype=torch.float64)
    behavior = torch.tensor([[-0.52, -1.01, 0], [-0.7, -0.25, -1.45], [-0.3, 0, 0]], dtype=torch.float64)
    lengths, rewards = [2, 3, 1], [1.0, 0.0, 1.0]
    for delta, expected in ((3e-3, -0.0886656), (math.inf, -0.0480692)):
        loss = FlashReinforce(delta=delta)
        coef = coefficients(loss, rewards, [0, 1, 2], lengths, 8)
        result = loss.surrogate(logprobs, behavior, coef, mask_of(lengths))
        # -sum_n A_n / (N T_n) sum_t rho_t logp_t, over the admitted rows.
        by_hand = -sum(
            (reward - 2 / 3)
            / (3 * length)
            * sum(math.exp(p - b) * p for p, b in list(zip(row, old, strict=True))[:length])
            for reward, length, row, old in list(
                zip(rewards, lengths, logprobs.tolist(), behavior.tolist(), strict=True)
            )[: 2 if delta < 1 else 3]
        )
        assert result.loss.item() == pytest.approx(by_hand, abs=1e-12)
        assert result.loss.item() == pytest.approx(expected, abs=1e-7)
    assert result.sequence_kl.tolist() == pytest.approx([0.000165, 0.001823, 0.947126], abs=1e-6)
    on_policy = FlashReinforce().surrogate(logprobs, logprobs, coef, mask_of(lengths))
    assert on_policy.loss.item() == pytest.approx(0.1277778, abs=1e-7)


def test_flashreinforce_with_a_token_mean():
    """Rewards 1 and 0, lengths 2 and 8: each of the 10 tokens has 0.5 / 10; the long row weighs four times as much."""
    loss = FlashReinforce(weighting="token_mean", allow_unstable=True)
    assert loss.weights([1.0, 0.0], [0, 1], [2, 8], 8) == pytest.approx([0.05, -0.05])
    assert FlashReinforce().weights([1.0, 0.0], [0, 1], [2, 8], 8) == pytest.approx([0.125, -0.03125])


def test_length_bias_of_the_two_group_losses():
    """Advantages +a and -a, lengths 2 and 8, ratio 1: GRPO averages each sequence, Dr.GRPO divides by the budget 16.

    DAPO divides by all 10 tokens of the batch: the longer sequence weighs four times as much.
    """
    logprobs = torch.full((2, 8), -1.0, dtype=torch.float64)
    mask = mask_of([2, 8])
    for loss, expected in ((GRPO(), 0.0), (DrGRPO(), (8 - 2) / (2 * 16)), (DAPO(), (8 - 2) / 10)):
        a = loss.advantages([1.0, 0.0], [0, 0])[0]
        coef = torch.zeros(2, 8, dtype=torch.float64)
        coef[0, :2], coef[1, :] = (w / a for w in loss.weights([1.0, 0.0], [0, 0], [2, 8], 16))
        assert loss.surrogate(logprobs, logprobs, coef, mask).loss.item() == pytest.approx(
            expected, abs=1e-12
        )


def test_grpo_advantages_use_the_sample_standard_deviation():
    assert GRPO().advantages([1, 0, 0, 1], [0] * 4) == pytest.approx(
        [0.86588, -0.86588, -0.86588, 0.86588], abs=1e-5
    )
    assert DrGRPO().advantages([1, 0, 0, 1], [0] * 4) == [0.5, -0.5, -0.5, 0.5]


@pytest.mark.parametrize("loss", [GRPO(), DrGRPO()])
def test_a_group_is_its_own_baseline(loss):
    first, second = (
        loss.advantages([1, 0, 1, 1], [0, 0, 1, 1])[:2],
        loss.advantages([1, 0, 1, 1], [0, 0, 1, 1])[2:],
    )
    assert first[0] == -first[1] > 0 and second == [0.0, 0.0]
    assert loss.advantages([1, 0, 0.5], [0, 0, 1])[2] == 0.0  # groups of unequal size


@given(st.floats(-10, 10), st.integers(2, 9))
def test_uniform_rewards_carry_exactly_no_signal(reward, count):
    for loss in (GRPO(), DrGRPO(), DAPO(), FlashReinforce()):
        assert loss.weights([reward] * count, [0] * count, [3] * count, 8) == [0.0] * count


def test_clipping_by_hand():
    """Ratio e^0.5 = 1.6487: a positive advantage is clipped at 1.2 and has no gradient, a negative one is not."""
    behavior = torch.tensor([[-1.0], [-1.0]], dtype=torch.float64)
    logprobs = torch.tensor([[-0.5], [-0.5]], dtype=torch.float64, requires_grad=True)
    coef = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    result = GRPO().surrogate(logprobs, behavior, coef, torch.ones(2, 1, dtype=torch.bool))
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-1.2 + math.exp(0.5), abs=1e-12)
    assert logprobs.grad.flatten().tolist() == pytest.approx([0.0, math.exp(0.5)], abs=1e-12)


@pytest.mark.parametrize("loss", [FlashReinforce(), FlashReinforce(delta=math.inf), GRPO(), DrGRPO()])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_micro_batches_do_not_change_the_gradient(loss, size):
    torch.manual_seed(1)
    lengths = [3, 7, 1, 5, 7, 2, 4, 6]
    coef = coefficients(loss, torch.rand(8).tolist(), [0, 0, 1, 1, 2, 2, 3, 3], lengths, 10)
    behavior = -torch.rand(8, 7, dtype=torch.float64) * 3
    start = behavior + torch.randn(8, 7, dtype=torch.float64) * 0.05
    gradients = []
    for step in (8, size):
        logprobs = start.clone().requires_grad_()
        for i in range(0, 8, step):
            rows = slice(i, i + step)
            loss.surrogate(logprobs[rows], behavior[rows], coef[rows], mask_of(lengths)[rows]).loss.backward()
        gradients.append(logprobs.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-12)
    assert gradients[0].abs().max() > 0


@pytest.mark.parametrize("loss", [FlashReinforce(), GRPO(), DrGRPO()])
def test_padding_may_hold_nan(loss):
    lengths = [2, 4]
    coef = coefficients(loss, [1.0, 0.0], [0, 0], lengths, 4)
    clean = torch.tensor([[-1.0, -2.0, 0, 0], [-1.0, -2.0, -0.5, -0.1]])
    dirty = clean.masked_fill(~mask_of(lengths), math.nan)
    results = []
    for values in (clean, dirty):
        logprobs = values.clone().requires_grad_()
        result = loss.surrogate(
            logprobs, values, coef.masked_fill(~mask_of(lengths), math.nan), mask_of(lengths)
        )
        result.loss.backward()
        results.append((result.loss.item(), logprobs.grad[mask_of(lengths)]))
        assert torch.isfinite(logprobs.grad).all()
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_all_rows_rejected_gives_zero_and_finite_gradients():
    logprobs = torch.tensor([[-0.01], [-200.0]], requires_grad=True)
    behavior = torch.tensor([[-5.0], [-0.01]])
    result = FlashReinforce().surrogate(
        logprobs, behavior, torch.ones(2, 1), torch.ones(2, 1, dtype=torch.bool)
    )
    result.loss.backward()
    assert result.loss.item() == 0.0
    assert not result.admitted.any()
    assert logprobs.grad.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("loss", [FlashReinforce(delta=math.inf), GRPO()])
def test_bfloat16_input_is_computed_in_float32(loss):
    exact = torch.tensor([[-12.375, -0.00390625]], dtype=torch.float64)  # both representable in bfloat16
    behavior = exact - 0.003
    coef, mask = torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    result = loss.surrogate(exact.bfloat16(), behavior, coef, mask)
    assert result.loss.dtype == torch.float32
    assert result.loss.item() == pytest.approx(
        loss.surrogate(exact, behavior, coef, mask).loss.item(), rel=1e-5
    )


def test_entropy_filter_keeps_the_most_uncertain_tokens_ties_by_position():
    assert highest_entropy([0.1, 0.5, 0.5, 0.2], 0.25) == [False, True, False, False]
    assert highest_entropy([0.1, 0.5, 0.5, 0.2], 0.5) == [False, True, True, False]
    assert sum(highest_entropy([0.0] * 15, 0.2)) == 3  # 0.2 * 15 is 3.0000000000000004 in floats


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FlashReinforce(updates_per_batch=2), "one optimiser step a batch"),
        (lambda: FlashReinforce(updates_per_batch=2), "loss.allow_unstable=true"),
        (lambda: FlashReinforce(weighting="token_mean"), "loss.weighting=token_mean: long rollouts"),
        (lambda: FlashReinforce(correction="recomputed"), "loss.correction=recomputed: the trust region"),
        (lambda: FlashReinforce(delta=0.0), "loss.delta=0.0"),
        (lambda: FlashReinforce(negative_token_fraction=0.0), "loss.negative_token_fraction=0.0"),
        (lambda: GRPO(clip_low=1.5), "loss.clip_low=1.5"),
        (lambda: GRPO(updates_per_batch=0), "loss.updates_per_batch=0"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(UserError, match=words):
        make()
