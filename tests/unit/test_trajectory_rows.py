"""Trajectories of several turns as training rows: only sampled tokens have weight, and all tokens are read."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rl.engines.local.learner import LocalLearner
from rl.engines.tinker.rows import datum, row_logprobs, stats_of
from rl.losses.base import weigh
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.groups import STD_EPSILON
from rl.losses.grpo import GRPO
from rl.losses.gspo import GSPO
from rl.optimizer import OptimizerConfig
from rl.rollouts import Completion, Parsed, Problem, Rollout, TrainingRow, Turn

PARSED = Parsed("", "", "", "stop")


def trajectory(reward: float, *turns: tuple[list[int], list[int]], group: int = 0, entropies=None) -> Rollout:
    """Turns of (new prompt tokens, sampled tokens), each sampled with log-probability -1."""
    made = [
        Turn(
            shown,
            Completion(tokens, [-1.0] * len(tokens), "stop", entropies and entropies[number]),
            PARSED,
        )
        for number, (shown, tokens) in enumerate(turns)
    ]
    return Rollout(Problem("p", "q", "1", "en", "test"), group, made, "answered", reward=reward)


# T_n of 4, 2 and 3 sampled tokens; 2, 1 and 2 + 1 tokens of the environment in between.
BATCH = [
    trajectory(1.0, ([10, 11], [20, 21, 22]), ([30, 31], [23])),
    trajectory(0.0, ([10, 11], [24]), ([32], [25])),
    trajectory(1.0, ([12], [26]), ([33, 34], [27]), ([35], [28])),
]


def test_a_row_holds_the_whole_trajectory_and_marks_what_was_sampled():
    row = weigh(BATCH, FlashReinforce(), 8)[2]
    assert (row.prompt_tokens, row.response_tokens) == ([12], [26, 33, 34, 27, 35, 28])
    assert row.mask == [True, False, False, True, False, True]
    assert row.behavior_logprobs == [-1, 0, 0, -1, 0, -1]
    assert BATCH[2].length == 3 and BATCH[2].context == 7
    assert BATCH[2].completion == Completion([26, 27, 28], [-1.0] * 3, "stop")


def test_flashreinforce_counts_sampled_tokens_only():
    """(R - 2/3) / (3 T_n)."""
    rows = weigh(BATCH, FlashReinforce(), 8)
    assert rows[0].coefficients == pytest.approx([1 / 36] * 3 + [0, 0] + [1 / 36])
    assert rows[1].coefficients == pytest.approx([-1 / 9, 0, -1 / 9])
    assert rows[2].coefficients == pytest.approx([1 / 27, 0, 0, 1 / 27, 0, 1 / 27])


def test_grpo_counts_sampled_tokens_only():
    """Rewards 1, 0, 1 of one group: mean 2/3, standard deviation sqrt(1/3); each rollout's mean is over its T_n."""
    rows = weigh(BATCH, GRPO(kl_beta=0.6), 8)
    spread = math.sqrt(1 / 3) + STD_EPSILON
    weights = [(1 / 3) / spread / (3 * 4), (-2 / 3) / spread / (3 * 2), (1 / 3) / spread / (3 * 3)]
    for row, weight in zip(rows, weights, strict=True):
        assert row.coefficients == pytest.approx([weight * sampled for sampled in row.mask])
    assert [row.kl_weight for row in rows] == pytest.approx([0.6 / 12, 0.6 / 6, 0.6 / 9])


def test_the_tokens_of_highest_entropy_are_chosen_over_all_turns():
    failed = trajectory(0.0, ([1], [2, 3]), ([4], [5, 6]), entropies=[[0.1, 0.9], [0.8, 0.2]])
    right = trajectory(1.0, ([1], [2]), entropies=[[0.5]])
    failed.verdict, right.verdict = (type("Verdict", (), {"correct": c}) for c in (False, True))
    rows = weigh([failed, right], FlashReinforce(negative_token_fraction=0.5), 8)
    assert rows[0].coefficients == pytest.approx([0, -1 / 16, 0, -1 / 16, 0])
    assert rows[1].coefficients == pytest.approx([1 / 4])


def tensors(rows: list[TrainingRow], logprobs: list[list[float]]) -> list[torch.Tensor]:
    """[N, T] logprobs, behaviour, coefficients and mask; what is not sampled holds NaN."""
    width = max(len(row.response_tokens) for row in rows)

    def padded(values: list) -> torch.Tensor:
        return torch.tensor(
            [list(own) + [math.nan] * (width - len(own)) for own in values], dtype=torch.float64
        )

    mask = padded([row.mask for row in rows]) == 1
    values = [
        padded(logprobs),
        *(padded([getattr(r, n) for r in rows]) for n in ("behavior_logprobs", "coefficients")),
    ]
    return [*(value.where(mask, torch.tensor(math.nan)) for value in values), mask]


# On policy but for one token of the third row: p fell from 0.5 to 0.1.
BEHAVIOR = [[-1.0] * 6, [-1.0] * 3, [math.log(0.5)] * 6]
CURRENT = [[-1.0] * 6, [-1.0] * 3, [math.log(0.5)] * 3 + [math.log(0.1)] + [math.log(0.5)] * 2]
DRIFT = 0.5 * math.log(5) + 0.5 * math.log(0.5 / 0.9)  # Bernoulli KL of that token, 0.511 nats


def drifted_rows(loss) -> list[TrainingRow]:
    return [replace(row, behavior_logprobs=b) for row, b in zip(weigh(BATCH, loss, 8), BEHAVIOR, strict=True)]


@pytest.mark.parametrize(("delta", "admitted"), [(0.12, [True, True, False]), (0.18, [True] * 3)])
def test_the_gate_is_the_mean_over_the_trajectorys_sampled_tokens(delta, admitted):
    """0.511 / 3 = 0.170; over all six tokens of the response it would be 0.085, and the row would pass."""
    loss = FlashReinforce(delta=delta)
    rows = drifted_rows(loss)
    found = loss.surrogate(*tensors(rows, CURRENT))
    assert found.sequence_kl.tolist() == pytest.approx([0, 0, DRIFT / 3])
    assert found.admitted.tolist() == admitted
    # - sum c rho log p: 4 tokens of 1/36, 2 of -1/9, both with rho = 1 and log p = -1.
    expected = 4 / 36 - 2 / 9
    if all(admitted):
        expected -= (2 * math.log(0.5) + 0.2 * math.log(0.1)) / 27  # rho = 1, 1 and 0.2
    assert found.loss.item() == pytest.approx(expected)


def test_grpo_with_a_clipped_token_by_hand():
    """One group; the third row's ratio of 0.2 is below 1 - 0.2, and its advantage positive: min(A rho, A clip) = 0.2 A."""
    loss = GRPO()
    rows = drifted_rows(loss)
    found = loss.surrogate(*tensors(rows, CURRENT))
    weights = [row.coefficients[0] for row in rows]
    assert found.loss.item() == pytest.approx(-(4 * weights[0] + 2 * weights[1] + 2.2 * weights[2]))


def test_a_sequence_ratio_is_over_the_sampled_tokens():
    loss = GSPO(clip_low=0.9, clip_high=9)
    rows = drifted_rows(loss)
    found = loss.surrogate(*tensors(rows, CURRENT))
    ratio = 0.2 ** (1 / 3)  # exp(mean_t log rho)
    weights = [row.coefficients[0] for row in rows]
    assert found.loss.item() == pytest.approx(-(4 * weights[0] + 2 * weights[1] + 3 * ratio * weights[2]))


# -- learners ----------------------------------------------------------------------------------------------------------


def scored(model, rows: list[TrainingRow]) -> list[list[float]]:
    return LocalLearner(model, OptimizerConfig(), 1.0, 10_000).logprobs(rows)


def test_the_learner_reads_all_tokens_and_scores_the_sampled_ones(tiny_random_model):
    model = tiny_random_model()[0].eval()
    rows = weigh(BATCH, FlashReinforce(), 8)
    for row, values in zip(rows, scored(model, rows), strict=True):
        ids = torch.tensor([[*row.prompt_tokens, *row.response_tokens]])
        logprobs = model(ids).logits.log_softmax(-1)[0, len(row.prompt_tokens) - 1 : -1]
        expected = logprobs.gather(-1, ids[0, len(row.prompt_tokens) :, None]).squeeze(-1)
        assert values == pytest.approx((expected * torch.tensor(row.mask)).tolist(), abs=1e-5)
    shown = replace(rows[0], response_tokens=[20, 21, 22, 99, 31, 23])  # the environment said something else
    before, after = scored(model, [rows[0], shown])
    assert before[:3] == pytest.approx(after[:3], abs=1e-6) and abs(before[-1] - after[-1]) > 1e-3


@pytest.mark.parametrize("loss", [GRPO(), FlashReinforce(delta=0.05)], ids=["grpo", "flashreinforce"])
@pytest.mark.parametrize("packed", [True, False])
def test_micro_batches_packing_and_padding_do_not_change_the_step(tiny_random_model, loss, packed):
    """The same gradient as autograd's of the sum over the sampled tokens, with a rejected row for flashreinforce."""
    model = tiny_random_model()[0].eval()
    rows = weigh(BATCH, loss, 8)
    behavior = scored(model, rows)
    behavior[2][3] = -0.1  # far from the current policy
    rows = [replace(row, behavior_logprobs=b) for row, b in zip(rows, behavior, strict=True)]
    model.zero_grad()
    total = torch.zeros(())
    for row in rows:
        ids = torch.tensor([[*row.prompt_tokens, *row.response_tokens]])
        logprobs = model(ids).logits.log_softmax(-1)[0, len(row.prompt_tokens) - 1 : -1]
        current = logprobs.gather(-1, ids[0, len(row.prompt_tokens) :, None]).T
        given = (torch.tensor([getattr(row, n)]) for n in ("behavior_logprobs", "coefficients", "mask"))
        total = total + loss.surrogate(current, *given).loss
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert expected.abs().max() > 1e-3
    for tokens in (1, 12, 10_000):
        learner = LocalLearner(model, OptimizerConfig(max_grad_norm=math.inf), 1.0, tokens)
        if not packed:
            learner.packed_implementation = None
        stats = learner.update(rows, loss, learning_rate=0.0)
        gradient = torch.cat([p.grad.flatten() for p in learner.parameters])
        assert torch.allclose(gradient, expected, atol=1e-6)
        assert stats.admitted == [True, True, not isinstance(loss, FlashReinforce)]
        assert stats.ratio_max == pytest.approx(1, abs=1e-4) and stats.ratio_min < 0.3


def test_tinker_gets_the_same_rows(tiny_random_model):
    """Advantages are 0 at observations; measurements of its log-probabilities are the local learner's."""
    tinker = pytest.importorskip("tinker")
    del tinker
    model, loss = tiny_random_model()[0].eval(), FlashReinforce(delta=0.05)
    rows = weigh(BATCH, loss, 8)
    sent = datum(rows[2], 2.0)
    assert sent.model_input.to_ints() == [12, 26, 33, 34, 27, 35]
    assert sent.loss_fn_inputs["target_tokens"].data == [26, 33, 34, 27, 35, 28]
    assert sent.loss_fn_inputs["advantages"].data == pytest.approx([2 / 27, 0, 0, 2 / 27, 0, 2 / 27])
    answers = [[-0.5] * (row.length - 1) for row in rows]
    output = type("Output", (), {"loss_fn_outputs": [{"logprobs": torch.tensor(a)} for a in answers]})
    values = row_logprobs(output, rows)
    assert values[2] == [-0.5, 0, 0, -0.5, 0, -0.5] and values[0] == [-0.5] * 3 + [0, 0, -0.5]
    current = scored(model, rows)
    learner = LocalLearner(model, OptimizerConfig(), 1.0, 10_000)
    here, there = learner.update(rows, loss, 0.0), stats_of(rows, current, loss)
    for name in ("loss", "ratio_mean", "ratio_max", "ratio_min", "sequence_kl", "admitted"):
        assert getattr(there, name) == pytest.approx(getattr(here, name), abs=1e-5), name


def test_trl_attends_to_the_whole_response_and_learns_from_what_was_sampled():
    trainer = pytest.importorskip("rl.engines.trl.trainer")
    rows = weigh(BATCH, FlashReinforce(), 8)
    made = trainer._tensors(rows, range(3), 0, torch.device("cpu"))
    assert made["completion_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0], [1] * 6]
    assert made["sampled"].tolist()[1:] == [
        [True, False, True, False, False, False],
        [True, False, False, True, False, True],
    ]
    assert made["completion_ids"].tolist()[0] == [20, 21, 22, 30, 31, 23]
