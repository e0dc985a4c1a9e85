"""Turns that reuse the keys and values of the turn before: the same tokens, and no history is computed again."""

from __future__ import annotations

import random

import pytest
import torch

from rl.engines.base import SamplingParams
from rl.engines.local.decode import decoder_for
from rl.engines.local.histories import Histories
from rl.engines.local.prefill import prefill
from rl.engines.local.sampler import sample

STOP = frozenset(range(30))  # likely enough that rows stop after a few tokens
UNLIMITED = 1e12


def turns(model, histories: Histories | None, max_kv_bytes: float = UNLIMITED, members: int = 3):
    """Three turns of five problems with `members` each, and what was sampled in each turn."""
    draw = random.Random(0)
    live = [[draw.randrange(40, 250) for _ in range(length)] for length in (3, 17, 9, 1, 12)]
    found = []
    for turn in range(3):
        n = 1 if turn else members
        params = SamplingParams(
            12, 1.0, STOP, seed=0, limits=[12 - p % 3 for p in range(len(live))], seeds=range(turn * 100, turn * 100 + len(live)),
        )  # fmt: skip
        sampled = sample(model, live, n, params, max_kv_bytes, histories=histories)
        found.append(sampled)
        live = [
            [*prompt, *completion.tokens, *range(50, 51 + p % 4)]
            for p, (prompt, group) in enumerate(zip(live, sampled, strict=True))
            for completion in group
            if completion.stop_reason == "stop"
        ]
    return found, len(live)


@pytest.mark.parametrize(
    "architecture", ["qwen3", "llama", "gpt_neox"]
)  # our decoder, and the model's own forward pass
@pytest.mark.parametrize("max_kv_bytes", [UNLIMITED, 60_000])
def test_reused_states_give_the_same_tokens(architecture, max_kv_bytes, tiny_random_model):
    model = tiny_random_model(architecture)[0].eval()
    plain, count = turns(model, None, max_kv_bytes)
    histories = Histories(UNLIMITED)
    reused, _ = turns(model, histories, max_kv_bytes)
    assert count >= 3, "the trajectories must live for three turns"
    for before, after in zip(plain, reused, strict=True):
        for one, other in zip(before, after, strict=True):
            assert [c.tokens for c in one] == [c.tokens for c in other]
            for a, b in zip(one, other, strict=True):
                assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    assert histories.computed == histories.needed


def test_without_room_a_history_is_computed_again(tiny_random_model):
    """Every turn then reads its whole prompt; needed are the first prompts, and what was new in later turns."""
    model = tiny_random_model()[0].eval()
    plain, _ = turns(model, None)
    histories = Histories(0)
    again, _ = turns(model, histories)
    assert [[c.tokens for c in group] for turn in again for group in turn] == [
        [c.tokens for c in group] for turn in plain for group in turn
    ]
    assert histories.computed > 2 * histories.needed


def test_a_history_is_found_by_its_longest_prefix():
    histories = Histories(UNLIMITED)
    states = [(torch.zeros(1, 9, 2), torch.zeros(1, 9, 2))]
    for tokens in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 9], [7]):
        histories.keep(tokens, states)
    found = histories.recall([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 8, 9], [1, 2, 3], [8], [1, 9, 9]])
    assert [known.length for known in found] == [
        5,
        4,
        2,
        0,
        2,
    ]  # the last token of a prompt is always computed
    assert histories.computed == histories.needed == 1 + 2 + 1 + 1 + 1
    assert [known.length for known in histories.recall([[1, 9, 9]])] == [0]  # forgotten


def test_states_are_kept_while_they_fit():
    states = [(torch.zeros(1, 4, 2), torch.zeros(1, 4, 2))]  # 64 bytes
    histories = Histories(100)
    histories.keep([1, 2], states)
    histories.keep([3, 4], states)
    assert [(known.length, known.reused) for known in histories.recall([[1, 2, 3], [3, 4, 5]])] == [
        (2, 2),
        (2, 0),
    ]
    assert (histories.computed, histories.needed) == (1 + 3, 1 + 1)


def test_states_read_from_a_decoder_are_those_of_the_model(tiny_random_model):
    """After the ring has turned: a row admitted late, whose columns wrap around."""
    for architecture in ("qwen3", "gpt_neox"):
        model = tiny_random_model(architecture)[0].eval()
        prompts = [[40, 41, 42], [43, 44]]
        with torch.inference_mode():
            decoder = decoder_for(model, prefill(model, prompts[:1]), 1, 4, False)
            for _ in range(3):
                decoder.step(torch.tensor([50]))
            decoder.admit(prefill(model, prompts[1:]))
            for token in (60, 61, 62):
                decoder.step(torch.tensor([50, token]))
            expected = prefill(model, [[43, 44, 60, 61, 62]]).cache
            for (keys, values), layer in zip(decoder.read(1, 2, 3, 3), expected.layers, strict=True):
                assert torch.allclose(keys, layer.keys[0], atol=1e-5)
                assert torch.allclose(values, layer.values[0], atol=1e-5)
