"""The learner's layouts: packed rows give what padded rows give, and only where the model allows it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.engines.local.learner import LocalLearner
from rl.engines.local.packing import microbatches, packed_implementation, packed_layout, padded_layout
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.grpo import GRPO
from rl.optimizer import OptimizerConfig
from rl.rollouts import TrainingRow
from tests.helpers.models import ARCHITECTURES
from tests.helpers.rollouts import one_turn_row

CPU = torch.device("cpu")


def row(prompt: list[int], completion: list[int], coefficient: float = 0.0) -> TrainingRow:
    return one_turn_row(prompt, completion, [-3.0] * len(completion), [coefficient] * len(completion))


def group_rows(seed: int = 0) -> list[TrainingRow]:
    """Four groups of four rows of unlike lengths, their members scattered, with coefficients of both signs."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(5, 250) for _ in range(length)] for length in (3, 17, 9, 1)]
    return [
        row(prompt, [draw.randrange(5, 250) for _ in range(draw.randint(1, 24))], draw.choice([-0.02, 0.03]))
        for prompt in prompts * 4
    ]


def on_policy(model, rows: list[TrainingRow], shift: float = 0.0) -> list[TrainingRow]:
    """The rows as if sampled from the model, or from one whose log-probabilities are `shift` higher."""
    scores = LocalLearner(model, OptimizerConfig(), 1.0, 10_000).logprobs(rows)
    return [
        replace(r, behavior_logprobs=[s + shift for s in scored])
        for r, scored in zip(rows, scores, strict=True)
    ]


def gradient_and_stats(model, rows, loss, microbatch_tokens: int, packed: bool):
    learner = LocalLearner(model, OptimizerConfig(max_grad_norm=math.inf), 1.0, microbatch_tokens)
    assert learner.packs
    if not packed:
        learner.packed_implementation = None
    stats = learner.update(rows, loss, learning_rate=0.0)
    return torch.cat([p.grad.flatten() for p in learner.parameters]), stats


@pytest.mark.parametrize("loss", [GRPO(), FlashReinforce(delta=1e-3)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_rows_learn_what_padded_rows_learn(architecture, loss, tiny_random_model):
    model = tiny_random_model(architecture)[0]
    rows = on_policy(model, group_rows(), shift=0.05)
    expected, plain = gradient_and_stats(model, rows, loss, 10_000, packed=False)
    assert expected.abs().max() > 1e-2
    for microbatch_tokens in (1, 60, 10_000):
        gradient, stats = gradient_and_stats(model, rows, loss, microbatch_tokens, packed=True)
        assert torch.allclose(gradient, expected, atol=1e-5)
        assert stats.loss == pytest.approx(plain.loss, abs=1e-5)
        assert stats.sequence_kl == pytest.approx(plain.sequence_kl, abs=1e-6)
        assert stats.admitted == plain.admitted
        assert (stats.ratio_min, stats.ratio_mean, stats.ratio_max) == pytest.approx(
            [math.exp(-0.05)] * 3, abs=1e-4
        )


def test_checkpointed_layers_are_run_again_on_packed_rows(tiny_random_model):
    model = tiny_random_model()[0].train()
    rows = on_policy(model, group_rows())
    expected, _ = gradient_and_stats(model, rows, GRPO(), 10_000, packed=False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    gradient, _ = gradient_and_stats(model, rows, GRPO(), 60, packed=True)
    assert torch.allclose(gradient, expected, atol=1e-5)


@pytest.mark.parametrize(
    "architecture, changes, packs",
    [
        ("gpt_neox", {}, True),
        ("gemma3_text", {"sliding_window": 8, "head_dim": 8, "num_hidden_layers": 6}, False),  # a window
        (
            "lfm2",
            {"layer_types": ["conv", "full_attention"]},
            False,
        ),  # a convolution mixes neighbouring tokens
    ],
)
def test_rows_are_packed_only_where_that_is_right(architecture, changes, packs, tiny_random_model):
    model = tiny_random_model(architecture, **changes)[0].eval()
    learner = LocalLearner(model, OptimizerConfig(), 1.0, 10_000)
    assert learner.packs == packs
    rows = group_rows()
    for r, values in zip(rows, learner.logprobs(rows), strict=True):
        ids = torch.tensor([[*r.prompt_tokens, *r.response_tokens]])
        logits = model(ids).logits[0, len(r.prompt_tokens) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, ids[0, len(r.prompt_tokens) :, None]).squeeze(-1)
        assert values == pytest.approx(expected.tolist(), abs=1e-4)


def test_eager_attention_gets_padded_rows(tiny_random_model):
    model = tiny_random_model()[0]
    assert packed_implementation(model) == "sdpa"
    model.set_attn_implementation("eager")
    assert packed_implementation(model) is None
    assert model.config._attn_implementation == "eager"


def test_a_prompt_stands_once_and_nothing_is_padded():
    """By hand: prompts A = 7 8 and B = 9; rows A+(1 2 3), B+(4), A+(5)."""
    rows = [row([7, 8], [1, 2, 3]), row([9], [4]), row([7, 8], [5])]
    layout = packed_layout(rows, CPU, "sdpa")
    assert layout.inputs["input_ids"].tolist() == [[7, 8, 1, 2, 3, 9, 4, 5]]
    assert layout.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2]]
    packing = layout.inputs["packing"]
    assert [r[:n] for r, n in zip(packing.rows.tolist(), (5, 2, 3), strict=True)] == [
        [0, 1, 2, 3, 4],
        [5, 6],
        [0, 1, 7],
    ]
    assert packing.rows.flatten()[packing.places].tolist() == list(range(8))
    assert layout.predicting.tolist() == [1, 2, 3, 5, 1]
    assert layout.targets.tolist() == [1, 2, 3, 4, 5]
    assert layout.by_row(layout.targets).tolist() == [[1, 2, 3], [4, 0, 0], [5, 0, 0]]
    plain = padded_layout(rows, CPU)
    assert plain.inputs["input_ids"].tolist() == [[7, 8, 1, 2, 3], [9, 4, 0, 0, 0], [7, 8, 5, 0, 0]]
    assert plain.predicting.tolist() == [1, 2, 3, 5, 11]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30)), min_size=1, max_size=40),
    st.integers(1, 100),
    st.booleans(),
)
def test_micro_batches_hold_every_row_once_inside_the_limit(shapes, limit, packed):
    rows = [row([prompt] * (prompt + 1), [1] * length) for prompt, length in shapes]
    batches = list(microbatches(rows, limit, packed))
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    lay_out = (lambda r: packed_layout(r, CPU, "sdpa")) if packed else (lambda r: padded_layout(r, CPU))
    for batch in batches:
        assert len(batch) == 1 or lay_out([rows[i] for i in batch]).inputs["input_ids"].numel() <= limit


def test_padding_is_under_a_tenth():
    """128 rows of 30-70 prompt tokens and 20-64 completion tokens, padded: rows of like length lie together."""
    draw = random.Random(1)
    rows = [row([5] * draw.randint(30, 70), [6] * draw.randint(20, 64)) for _ in range(128)]
    padded = sum(
        padded_layout([rows[i] for i in batch], CPU).inputs["input_ids"].numel()
        for batch in microbatches(rows, 1024, False)
    )
    assert padded < 1.1 * sum(len(r.prompt_tokens) + len(r.response_tokens) for r in rows)


def test_rows_without_signal_are_scored_without_a_backward_pass(tiny_random_model):
    """A group of equal rewards has coefficients of 0: no gradient, but its ratio and KL still count."""
    model = tiny_random_model()[0]
    teaching = on_policy(model, group_rows())
    silent = [
        replace(r, coefficients=[0.0] * len(r.coefficients))
        for r in on_policy(model, group_rows(1), shift=0.5)
    ]
    mixed = [r for pair in zip(silent, teaching, strict=True) for r in pair]
    expected, alone = gradient_and_stats(model, teaching, GRPO(), 100, packed=True)

    with_gradient = []
    model.model.register_forward_hook(
        lambda module, args, output: with_gradient.append(output[0].requires_grad)
    )
    gradient, stats = gradient_and_stats(model, mixed, GRPO(), 10_000, packed=True)
    assert with_gradient[-2:] == [True, False]
    assert torch.allclose(gradient, expected, atol=1e-6)
    assert stats.loss == pytest.approx(alone.loss, abs=1e-6)
    assert stats.sequence_kl[1::2] == pytest.approx(alone.sequence_kl, abs=1e-6)
    assert min(stats.sequence_kl[::2]) > 1e-5 > max(stats.sequence_kl[1::2])
    assert stats.ratio_min == pytest.approx(math.exp(-0.5), abs=1e-4) and stats.ratio_max == pytest.approx(
        1, abs=1e-4
    )
