"""RLOO, REINFORCE++, MaxRL, CISPO, GSPO and the KL penalty: weights and objectives by hand, and an independent derivation."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl.errors import UserError
from rl.losses.cispo import CISPO
from rl.losses.dapo import DAPO
from rl.losses.dr_grpo import DrGRPO
from rl.losses.grpo import GRPO
from rl.losses.gspo import GSPO
from rl.losses.kl import token_kl
from rl.losses.maxrl import MaxRL
from rl.losses.reinforce_pp import ReinforcePlusPlus
from rl.losses.rloo import RLOO

NEW = [RLOO(), ReinforcePlusPlus(), MaxRL(), CISPO(), GSPO()]
ALL = [*NEW, GRPO(), DrGRPO(), DAPO()]
# Two groups of two, rewards 1 0 | 1 0.5, lengths 1 2 3 4: N = 4, sum T = 10.
REWARDS, GROUPS, LENGTHS = [1.0, 0.0, 1.0, 0.5], [0, 0, 1, 1], [1, 2, 3, 4]
MASK = torch.arange(4) < torch.tensor(LENGTHS)[:, None]


def by_name(loss) -> str:
    return loss.name


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        # R minus the other reward of the group, over N.
        (RLOO(), [1 / 4, -1 / 4, 0.5 / 4, -0.5 / 4]),
        # R - mu = 0.5 -0.5 0.25 -0.25; their variance (2 * 0.25 + 2 * 0.0625) / 3 = 0.208333; over 10 tokens.
        (ReinforcePlusPlus(), [x / math.sqrt(0.625 / 3) / 10 for x in (0.5, -0.5, 0.25, -0.25)]),
        # mu is 0.5 and 0.75: advantages 1 -1 1/3 -1/3, over 4 T_n.
        (MaxRL(), [1 / 4, -1 / 8, 1 / 36, -1 / 48]),
        # sigma is 0.5 sqrt 2 and 0.25 sqrt 2: advantages +-0.7071 (less 1e-4 in sigma), over 10 tokens or 4 T_n.
        (CISPO(), [0.07071, -0.07071, 0.07071, -0.07071]),
        (GSPO(), [0.17678, -0.08839, 0.05893, -0.04419]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_weights_by_hand(loss, expected):
    assert loss.weights(REWARDS, GROUPS, LENGTHS, 99) == pytest.approx(expected, rel=4e-4)


def test_a_leave_one_out_baseline_is_the_mean_of_the_others():
    rewards = [1.0, 0.2, 0.0, 0.7, 0.3]
    expected = [r - (sum(rewards) - r) / 4 for r in rewards]
    assert RLOO().advantages(rewards, [0] * 5) == pytest.approx(expected)
    # A group that lost a member has its own size.
    assert RLOO().advantages([1.0, 0.0, 0.5, 1.0, 0.0], [0, 0, 1, 1, 1]) == pytest.approx(
        [1, -1, 0, 0.75, -0.75]
    )


def test_maxrl_has_no_signal_where_the_mean_reward_is_not_positive():
    rewards = [0.0, 0.0, -1.0, 1.0, -1.0, 0.5, 1.0, 0.0]
    assert MaxRL().advantages(rewards, [0, 0, 1, 1, 2, 2, 3, 3]) == [0, 0, 0, 0, 0, 0, 1, -1]


def test_scale_rewards_divides_by_the_spread():
    centred = [0.5, -0.5, 0.25, -0.25]
    for loss in (GRPO, DAPO, DrGRPO, GSPO):
        assert loss(scale_rewards=False).advantages(REWARDS, GROUPS) == centred
        assert loss(scale_rewards=True).advantages(REWARDS, GROUPS) == GRPO().advantages(REWARDS, GROUPS)
    assert DrGRPO() == DrGRPO(scale_rewards=False) and GRPO() == GRPO(scale_rewards=True)


def ratio_sums(values: numpy.ndarray) -> numpy.ndarray:
    """[N, T] values, 0 beyond each length."""
    return numpy.where(MASK.numpy(), values, 0)


@pytest.mark.parametrize("loss", NEW, ids=by_name)
def test_the_loss_and_its_gradient_far_off_policy(loss):
    """Written anew from each paper's formula, in numpy: the loss, and d loss / d log p by the chain rule."""
    draw = numpy.random.default_rng(3)
    behavior = -draw.random((4, 4)) * 2
    current = behavior + draw.normal(size=(4, 4)) * (1e-3 if loss.name == "gspo" else 0.8)
    weight = numpy.array(loss.weights(REWARDS, GROUPS, LENGTHS, 99))[:, None]
    ratio, lengths = numpy.exp(current - behavior), numpy.array(LENGTHS)[:, None]
    if loss.name == "rloo":
        value, slope = ratio, ratio
    elif loss.name == "cispo":
        slope = numpy.minimum(ratio, 5)
        value = slope * current
    else:
        low, high = (1 - 3e-4, 1 + 4e-4) if loss.name == "gspo" else (0.8, 1.2)
        if loss.name == "gspo":
            mean = ratio_sums(current - behavior).sum(-1, keepdims=True) / lengths
            ratio = numpy.exp(mean).repeat(4, 1)
        active = ~((weight > 0) & (ratio > high) | (weight < 0) & (ratio < low))
        assert 0 < active[MASK.numpy()].mean() < 1  # some tokens are clipped, some are not
        value = numpy.where(active, ratio, numpy.clip(ratio, low, high))
        slope = numpy.where(active, ratio, 0)  # of a sequence: T tokens of slope ratio / T
    logprobs = torch.tensor(current, requires_grad=True)
    coefficients = torch.tensor(ratio_sums(numpy.broadcast_to(weight, (4, 4))))
    result = loss.surrogate(logprobs, torch.tensor(behavior), coefficients, MASK)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-ratio_sums(weight * value).sum(), abs=1e-12)
    assert logprobs.grad is not None
    assert torch.allclose(logprobs.grad, torch.tensor(-ratio_sums(weight * slope)), atol=1e-12)


@pytest.mark.parametrize("loss", ALL, ids=by_name)
def test_on_policy_every_gradient_is_the_weight_times_that_of_log_p(loss):
    logprobs = -torch.rand(4, 4, dtype=torch.float64).requires_grad_()
    logprobs.retain_grad()
    coefficients = torch.tensor(loss.weights(REWARDS, GROUPS, LENGTHS, 9))[:, None] * MASK.double()
    loss.surrogate(logprobs, logprobs.detach(), coefficients, MASK).loss.backward()
    assert logprobs.grad is not None and torch.allclose(logprobs.grad, -coefficients, atol=1e-12)


def test_cispo_caps_the_weight_and_keeps_the_gradient():
    """Ratios e^3 = 20.1, capped at 5, and e^-3, not bounded from below."""
    logprobs = torch.tensor([[-1.0, -4.0]], dtype=torch.float64, requires_grad=True)
    behavior = torch.tensor([[-4.0, -1.0]], dtype=torch.float64)
    ones = torch.ones(1, 2)
    CISPO().surrogate(logprobs, behavior, ones, ones.bool()).loss.backward()
    assert logprobs.grad is not None and logprobs.grad[0].tolist() == pytest.approx([-5, -math.exp(-3)])


@given(st.floats(-10, 10), st.integers(2, 9))
def test_uniform_groups_carry_exactly_no_signal(reward, count):
    """Alone, and beside a group that has a signal."""
    for loss in ALL:
        assert loss.weights([reward] * count, [0] * count, [3] * count, 8) == [0.0] * count
        beside = loss.weights([reward] * count + [1, 0], [0] * count + [1] * 2, [3] * (count + 2), 8)
        assert beside[:count] == [0.0] * count and beside[-1] < 0 < beside[-2]


@pytest.mark.parametrize("loss", NEW, ids=by_name)
@pytest.mark.parametrize("size", [1, 3])
def test_micro_batches_do_not_change_the_gradient(loss, size):
    torch.manual_seed(1)
    behavior = -torch.rand(4, 4, dtype=torch.float64) * 3
    start = behavior + torch.randn(4, 4, dtype=torch.float64) * 1e-3
    coefficients = torch.tensor(loss.weights(REWARDS, GROUPS, LENGTHS, 9))[:, None] * MASK.double()
    gradients = []
    for step in (4, size):
        logprobs = start.clone().requires_grad_()
        for i in range(0, 4, step):
            rows = slice(i, i + step)
            loss.surrogate(logprobs[rows], behavior[rows], coefficients[rows], MASK[rows]).loss.backward()
        gradients.append(logprobs.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-12) and gradients[0].abs().max() > 0


@pytest.mark.parametrize("loss", NEW, ids=by_name)
def test_padding_may_hold_nan(loss):
    coefficients = torch.tensor(loss.weights(REWARDS, GROUPS, LENGTHS, 9))[:, None].expand(4, 4)
    results = []
    for filler in (0.0, math.nan):
        logprobs = torch.full((4, 4), -1.0).masked_fill(~MASK, filler).requires_grad_()
        behavior = torch.full((4, 4), -1.0002).masked_fill(~MASK, filler)
        result = loss.surrogate(logprobs, behavior, coefficients.masked_fill(~MASK, filler), MASK)
        result.loss.backward()
        assert torch.isfinite(logprobs.grad).all()
        results.append((result.loss.item(), logprobs.grad.tolist()))
    assert results[0] == results[1]


def test_the_kl_of_a_token_by_hand():
    """d = ln 2: 2 - ln 2 - 1 = 0.306853, slope 1 - 2; d = -ln 2: 0.5 + ln 2 - 1 = 0.193147, slope 1 - 0.5; d = 0: 0."""
    logprobs = torch.tensor([-2.0, -2.0, -2.0, -90.0], dtype=torch.float64, requires_grad=True)
    difference = torch.tensor([math.log(2), -math.log(2), 0.0, 89.0], dtype=torch.float64)
    values = token_kl(logprobs, logprobs.detach() + difference)
    values.sum().backward()
    assert values[:3].tolist() == pytest.approx([0.306853, 0.193147, 0.0], abs=1e-6)
    assert logprobs.grad is not None and logprobs.grad[:3].tolist() == pytest.approx([-1.0, 0.5, 0.0])
    assert torch.isfinite(values).all() and torch.isfinite(logprobs.grad).all()


def test_the_kl_is_averaged_as_the_objective_is():
    sequences = [0.04 / (4 * length) for length in LENGTHS]
    expected = {
        "grpo": sequences, "gspo": sequences, "maxrl": sequences, "dapo": [0.004] * 4, "cispo": [0.004] * 4,
        "reinforce_pp": [0.004] * 4, "dr_grpo": [0.04 / (4 * 9)] * 4, "rloo": [0.01] * 4,
    }  # fmt: skip
    for loss in ALL:
        assert loss.kl_weights(LENGTHS, 9) == [0.0] * 4 and not loss.needs_reference
        with_penalty = type(loss)(kl_beta=0.04)
        assert with_penalty.kl_weights(LENGTHS, 9) == pytest.approx(expected[loss.name])
        assert with_penalty.needs_reference


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CISPO(clip_high=0.0), "loss.clip_high=0.0"),
        (lambda: GSPO(clip_low=0.0), "loss.clip_low=0.0"),
        (lambda: RLOO(kl_beta=-0.1), "loss.kl_beta=-0.1"),
        (lambda: GRPO(kl_beta=math.nan), "loss.kl_beta=nan"),
        (lambda: MaxRL(updates_per_batch=0), "loss.updates_per_batch=0"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(UserError, match=words):
        make()
