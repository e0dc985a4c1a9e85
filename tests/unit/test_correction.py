"""`loss.correction`: weights by hand, an independent derivation, TRL's own loss, and that nothing divides twice."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl.engines.base import UpdateStats
from rl.errors import UserError
from rl.losses.cispo import CISPO
from rl.losses.correction import BOUNDS, corrected, correction_metrics, correction_weights
from rl.losses.dapo import DAPO
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.grpo import GRPO
from rl.losses.gspo import GSPO
from rl.losses.rloo import RLOO
from rl.rollouts import TrainingRow
from rl.train import update
from tests.helpers.rollouts import one_turn_row
from tests.unit.test_losses import mask_of

KINDS = ["tis", "icepop", "sequence_mask"]
LN = [math.log(w) for w in (0.25, 0.5, 1.0, 4.0, 8.0)]


@pytest.mark.parametrize(
    ("kind", "bounds", "expected"),
    [
        ("none", None, [1, 1, 1, 1, 1]),
        ("recomputed", None, [1, 1, 1, 1, 1]),
        ("tis", None, [0.25, 0.5, 1, 2, 2]),
        ("tis", (0.5, 5.0), [0.5, 0.5, 1, 4, 5]),
        ("icepop", None, [0, 0.5, 1, 4, 0]),
        ("icepop", (0.3, 10.0), [0, 0.5, 1, 4, 8]),
        # The geometric mean is (0.25 * 0.5 * 4 * 8) ** (1 / 5) = 1.3195.
        ("sequence_mask", None, [0, 0, 0, 0, 0]),
        ("sequence_mask", (0.9, 1.32), [1, 1, 1, 1, 1]),
        ("sequence_mask", (0.9, 1.31), [0, 0, 0, 0, 0]),
    ],
)
def test_weights_by_hand(kind, bounds, expected):
    assert correction_weights(kind, bounds, LN) == pytest.approx(expected)


def rows_of(seed: int = 0, spread: float = 0.8) -> tuple[list[TrainingRow], list[list[float]]]:
    """Four rows of 3, 6, 2 and 5 tokens, and the learner's log-probabilities of their tokens."""
    draw = numpy.random.default_rng(seed)
    rows, own = [], []
    for length, coefficient in ((3, 0.5), (6, -0.2), (2, 0.0), (5, 0.3)):
        sampled = -2 * draw.random(length)
        own.append((sampled + spread * draw.normal(size=length)).tolist())
        rows.append(one_turn_row([1], [2] * length, sampled.tolist(), [coefficient] * length))
    return rows, own


@pytest.mark.parametrize("kind", KINDS)
def test_corrected_rows_by_an_independent_derivation(kind):
    """In numpy, from the formulas: min(w, 2); w inside [0.5, 5]; a row whose geometric mean is inside its bounds."""
    rows, own = rows_of(spread=0.8 if kind != "sequence_mask" else 1e-3)
    for row, mine, found in zip(rows, own, corrected(rows, own, kind, None), strict=True):
        w = numpy.exp(numpy.array(mine) - row.behavior_logprobs)
        if kind == "sequence_mask":
            mean = numpy.prod(w) ** (1 / len(w))
            weight = numpy.full(len(w), 1.0 if 1 / 1.001 <= mean <= 1.001 else 0.0)
        else:
            weight = numpy.minimum(w, 2) if kind == "tis" else numpy.where((w >= 0.5) & (w <= 5), w, 0)
        numpy.testing.assert_allclose(found.coefficients, weight * row.coefficients, atol=1e-12)
        assert found.behavior_logprobs == mine and found.response_tokens == row.response_tokens


@given(st.sampled_from(KINDS), st.lists(st.floats(-9, 0), min_size=1, max_size=9))
def test_a_sampler_that_computes_what_the_learner_does_needs_no_correction(kind, logprobs):
    row = one_turn_row([1], [2] * len(logprobs), logprobs, [0.25] * len(logprobs))
    assert corrected([row], [logprobs], kind, None) == [row]


def tensors(rows: list[TrainingRow]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Behaviour log-probabilities and coefficients, [4, 6], and the mask."""
    lengths = [len(row.response_tokens) for row in rows]
    behavior, coefficients = torch.zeros(4, 6), torch.zeros(4, 6)
    for n, row in enumerate(rows):
        behavior[n, : lengths[n]] = torch.tensor(row.behavior_logprobs)
        coefficients[n, : lengths[n]] = torch.tensor(row.coefficients)
    return behavior, coefficients, mask_of(lengths)


def loss_and_gradient(loss, rows, current) -> tuple[float, torch.Tensor]:
    logprobs = current.clone().requires_grad_()
    result = loss.surrogate(logprobs, *tensors(rows)).loss
    result.backward()
    return result.item(), logprobs.grad


def test_the_samplers_probability_divides_exactly_once():
    """rho over the learner's own times an unbounded w is rho over the sampler's: RLOO, which clips nothing, does not change."""
    rows, own = rows_of()
    current = tensors(rows)[0] + torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    plain = loss_and_gradient(RLOO(), rows, current)
    once = loss_and_gradient(RLOO(), corrected(rows, own, "tis", (0.0, 1e9)), current)
    assert once[0] == pytest.approx(plain[0], rel=1e-5) and torch.allclose(once[1], plain[1], atol=1e-6)
    assert plain[1].abs().max() > 0.1


def test_recomputed_log_probabilities_hide_the_difference():
    """The coefficients stay, and FlashREINFORCE's trust region, which rejects these rows, admits them all."""
    rows, own = rows_of()
    loss = FlashReinforce(correction="recomputed", allow_unstable=True)
    recomputed = corrected(rows, own, loss.correction, None)
    assert [row.coefficients for row in recomputed] == [row.coefficients for row in rows]
    assert [row.behavior_logprobs for row in recomputed] == own
    current = tensors(recomputed)[0]
    assert not loss.surrogate(current, *tensors(rows)).admitted.any()
    assert loss.surrogate(current, *tensors(recomputed)).admitted.all()
    assert loss.passes == FlashReinforce().passes + 1


@pytest.mark.parametrize("size", [1, 3])
def test_micro_batches_and_shards_are_corrected_as_the_whole_batch(size):
    """Each row is corrected by itself, so any split gives the same rows."""
    rows, own = rows_of()
    for kind in KINDS:
        whole = corrected(rows, own, kind, None)
        parts = [
            r for i in range(0, 4, size) for r in corrected(rows[i : i + size], own[i : i + size], kind, None)
        ]
        assert parts == whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", [GRPO(), DAPO(), CISPO(), GSPO(clip_low=0.05, clip_high=0.1)], ids=lambda loss: loss.name)  # fmt: skip
def test_parity_with_trl(loss, kind, tmp_path, tiny_random_model):
    """TRL's `_compute_loss` with its vLLM correction on: ratios over old log-probabilities, times the weights it is given."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    more = {"loss_type": loss.name, "epsilon": getattr(loss, "clip_low", 0.2), "epsilon_high": loss.clip_high}
    if loss.name == "cispo":
        more["epsilon_high"] = 1 + loss.clip_high
    if loss.name == "gspo":
        more |= {"importance_sampling_level": "sequence", "loss_type": "grpo"}
    model, tokenizer = tiny_random_model()
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 4}),
        args=GRPOConfig(
            output_dir=str(tmp_path), beta=0.0, max_completion_length=10, num_generations=4, **more,
            per_device_train_batch_size=4, bf16=False, report_to="none", use_cpu=True, gradient_checkpointing=False,
        ),
    )  # fmt: skip
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    rows, own = rows_of(spread=0.8 if kind != "sequence_mask" else 1e-3)
    lengths = [len(row.response_tokens) for row in rows]
    advantages = [0.7, -1.1, 0.4, 0.9]
    divisors = loss.divisors(lengths, 10)
    rows = [
        one_turn_row(r.prompt_tokens, r.response_tokens, r.behavior_logprobs, [a / d] * len(r.response_tokens))
        for r, a, d in zip(rows, advantages, divisors, strict=True)
    ]  # fmt: skip
    ours = corrected(rows, own, kind, None)
    old, _, mask = tensors(ours)
    weights = torch.zeros(4, 6)
    for n, row in enumerate(rows):
        ratio = torch.tensor(own[n]) - torch.tensor(row.behavior_logprobs)
        weights[n, : lengths[n]] = torch.tensor(correction_weights(kind, None, ratio.tolist()))
    start = old + 0.3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(2))

    current = start.clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (current, torch.zeros(4, 6), None)
    trainer.current_gradient_accumulation_steps = 1
    ids = torch.ones(4, 6, dtype=torch.long)
    theirs = trainer._compute_loss(
        trainer.model.train(),
        {
            "prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": mask.long(),
            "advantages": torch.tensor(advantages), "old_per_token_logps": old, "importance_sampling_ratio": weights,
            "num_items_in_batch": torch.tensor(sum(lengths)),
        },
    )  # fmt: skip
    theirs.backward()
    value, gradient = loss_and_gradient(loss, ours, start)
    assert value == pytest.approx(theirs.item(), abs=1e-6)
    assert torch.allclose(gradient, current.grad, atol=1e-6) and gradient.abs().max() > 1e-3


class Learner:
    """Notes the rows that it is given; its own log-probabilities are `own` before the first update only."""

    def __init__(self, own):
        self.own, self.updates = own, []

    def logprobs(self, rows):
        assert not self.updates
        return self.own

    def update(self, rows, loss, learning_rate):
        self.updates.append(rows)
        return UpdateStats(0.0, 1.0, True, [0.0], [True], 1.0, 1.0, 1.0, {"own": 3.0})


def test_all_updates_of_a_batch_divide_by_the_learner_before_the_first():
    rows, own = rows_of()
    learner, batch = Learner(own), SimpleNamespace(rows=rows, learning_rate=0.1)
    stats = update(learner, batch, GRPO(correction="icepop", updates_per_batch=3))
    assert learner.updates == [corrected(rows, own, "icepop", None)] * 3
    assert stats.metrics == {"own": 3.0, **correction_metrics(rows, learner.updates[0])}
    assert GRPO(correction="icepop", updates_per_batch=3).passes == 4
    untouched = Learner(None)
    update(untouched, batch, GRPO())
    assert untouched.updates == [rows]


def test_metrics_by_hand():
    """w = 1/4, 1, 8 and 1; the third row has no coefficients, so its token is not counted as lost."""
    rows = [one_turn_row([1], [2, 3], [math.log(0.4), -1.0], [1.0, 1.0]), one_turn_row([1], [2, 3], [math.log(0.1), -1.0], [0.0, 0.0])]  # fmt: skip
    after = corrected(rows, [[math.log(0.1), -1.0], [math.log(0.8), -1.0]], "icepop", None)
    found = correction_metrics(rows, after)
    assert found == pytest.approx({
        "mismatch/mean": (0.25 + 1 + 8 + 1) / 4, "mismatch/max": 8, "mismatch/min": 0.25, "correction/kept": 0.5,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GRPO(correction_bounds=(0.5, 2.0)), "loss.correction_bounds=.0.5,2.: there is nothing to bound"),
        (lambda: GRPO(correction="tis", correction_bounds=(2.0, 1.0)), r"e.g. loss.correction_bounds=\[0,2\]"),
        (lambda: GRPO(correction="icepop", correction_bounds=(1.5, 5.0)), r"loss.correction_bounds=\[0.5,5\]"),
        (lambda: GRPO(correction="tis", correction_bounds=(-1.0, 2.0)), "two numbers around 1"),
        (lambda: FlashReinforce(correction="tis"), "loss.correction=tis: flashreinforce already weighs"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(make, words):
    with pytest.raises(UserError, match=words):
        make()


def test_the_bounds_are_the_published_ones():
    assert BOUNDS == {"tis": (0.0, 2.0), "icepop": (0.5, 5.0), "sequence_mask": (1 / 1.001, 1.001)}


def test_what_the_environment_wrote_is_not_compared():
    """Three tokens, the middle one shown by a tool: the geometric mean is of e^0.1 and e^-0.1, 1, so the row stays."""
    row = TrainingRow([1], [2, 3, 4], [True, False, True], [-1.0, 0.0, -1.0], [0.5, 0.0, 0.5])
    own = [-0.9, -7.0, -1.1]
    (kept,) = corrected([row], [own], "sequence_mask", (0.99, 1.01))
    assert list(kept.coefficients) == [0.5, 0.0, 0.5]
    (clipped,) = corrected([row], [own], "tis", (0.0, 1.0))
    assert list(clipped.coefficients) == pytest.approx([0.5, 0.0, 0.5 * math.exp(-0.1)])
    metrics = correction_metrics([row], [clipped])
    assert metrics["mismatch/min"] == pytest.approx(math.exp(-0.1)) and metrics["correction/kept"] == 1.0
