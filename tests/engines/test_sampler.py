"""The fast ways to sample give what the plain ones give: shared prompts, compaction, chunks, rare looks, torch.compile."""

from __future__ import annotations

import copy
import os
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl import signals
from rl.engines.base import SamplingParams
from rl.engines.local import decode, sampler
from rl.engines.local.decode import ModelDecoder, cache_bytes, decoder_for
from rl.engines.local.decode_llama import LlamaDecoder, decodes
from rl.engines.local.prefill import prefill
from rl.engines.local.sampler import draw, sample
from tests.helpers.models import ARCHITECTURES
from tests.helpers.recipes import ROOT

UNLIMITED = 1e12
PROMPTS = [[5] * 7, [6, 7, 8], list(range(20, 43)), [9], [11, 12, 13, 14]]
# A random model of 263 tokens ends on these after 13 tokens on average: some rows early, some never.
STOPS = frozenset(range(20))
NO_STOP = frozenset({-1})
PARAMS = SamplingParams(max_tokens=24, temperature=1.0, stop_ids=STOPS, seed=4)

YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
VARIANTS = {
    **{name: (name, {}) for name in ARCHITECTURES},
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "one head a key": ("llama", {"num_key_value_heads": 4}),
    "wide heads": ("qwen3", {"head_dim": 24}),
    "tied": ("qwen3", {"tie_word_embeddings": True}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "yarn": ("llama", {"rope_parameters": YARN}),
}


@pytest.fixture(params=VARIANTS)
def model(request, tiny_random_model):
    architecture, changes = VARIANTS[request.param]
    return tiny_random_model(architecture, **changes)[0].eval()


@pytest.fixture
def sample_with_own_forward(monkeypatch):
    """`sample` with the model's own forward pass, whatever the model."""

    def run(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(decode, "decodes", lambda model: False)
            return sample(*arguments)

    return run


def assert_same(completions, expected, tolerance=1e-5) -> None:
    assert [[c.tokens for c in group] for group in completions] == [
        [c.tokens for c in group] for group in expected
    ]
    for group, other in zip(completions, expected, strict=True):
        for a, b in zip(group, other, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=tolerance)
            assert a.stop_reason == b.stop_reason


def test_the_decoder_of_known_layers_equals_the_model(model, sample_with_own_forward):
    assert decodes(model)
    completions = sample(model, PROMPTS, 3, PARAMS, UNLIMITED)
    assert_same(completions, sample_with_own_forward(model, PROMPTS, 3, PARAMS, UNLIMITED))
    assert len({len(c.tokens) for group in completions for c in group}) > 3


def test_an_adapter_is_part_of_the_model(tiny_random_model, sample_with_own_forward):
    import peft

    base = tiny_random_model()[0].eval()
    without = sample(base, PROMPTS, 2, PARAMS, UNLIMITED)
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(base, config).eval()
    adapted_model = adapted.get_base_model()
    completions = sample(adapted_model, PROMPTS, 2, PARAMS, UNLIMITED)
    assert_same(completions, sample_with_own_forward(adapted_model, PROMPTS, 2, PARAMS, UNLIMITED))
    assert completions != without
    with adapted.disable_adapter():
        assert_same(sample(adapted_model, PROMPTS, 2, PARAMS, UNLIMITED), without)


def forward_logprobs(model, prompt, tokens):
    """[T] log-probabilities by one forward pass over the whole text."""
    logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).squeeze(-1)


@torch.inference_mode()
def test_logprobs_of_the_embedded_model_are_those_of_its_forward_pass():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(ROOT / "assets" / "tiny").eval()
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "assets" / "tiny")
    assert decodes(model)
    questions = (
        "Mika has 3 pens and buys 4 more. How many pens?",
        "4 - 1",
        "りんごが3個あります。2個買うと何個ですか。",
    )
    turns = [[{"role": "user", "content": question}] for question in questions]
    texts = [tokenizer.apply_chat_template(t, tokenize=False, add_generation_prompt=True) for t in turns]
    prompts = [tokenizer(text).input_ids for text in texts]
    params = SamplingParams(
        96, 1.0, frozenset(tokenizer.convert_tokens_to_ids(["<|im_end|>", "</think>"])), seed=1
    )
    completions = sample(model, prompts, 8, params, UNLIMITED)
    reference = copy.deepcopy(model).double()
    errors, own_errors = [], []
    for prompt, group in zip(prompts, completions, strict=True):
        for completion in group:
            exact = forward_logprobs(reference, prompt, completion.tokens)
            errors.append((torch.tensor(completion.logprobs) - exact).abs().max())
            own_errors.append((forward_logprobs(model, prompt, completion.tokens) - exact).abs().max())
    assert max(errors) <= max(own_errors) + 1e-5  # a float32 pass is itself about 1e-5 from the truth
    assert len({len(c.tokens) for group in completions for c in group}) > 5


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "setting", [("COMPACT_AT", 1e-9), ("COMPACT_AT", 1.0), ("LOOK_EVERY", {"cpu": 5}), ("LOOK_EVERY", {"cpu": 99})]
)  # fmt: skip
def test_when_rows_leave_does_not_change_the_tokens(known, setting, tiny_random_model, monkeypatch):
    model = tiny_random_model()[0].eval()
    monkeypatch.setattr(decode, "decodes", lambda model: known)
    expected = sample(model, PROMPTS, 3, PARAMS, UNLIMITED)
    monkeypatch.setattr(sampler, *setting)
    assert_same(sample(model, PROMPTS, 3, PARAMS, UNLIMITED), expected)


@pytest.mark.parametrize("known", [True, False])
def test_finished_rows_are_not_decoded(known, tiny_random_model, monkeypatch):
    """The rows of all steps together: at most a third more than the tokens that are kept, and some were compacted."""
    model = tiny_random_model()[0].eval()
    monkeypatch.setattr(decode, "decodes", lambda model: known)
    batches = []
    kind = LlamaDecoder if known else ModelDecoder
    step = kind.step
    monkeypatch.setattr(kind, "step", lambda self, tokens: batches.append(len(tokens)) or step(self, tokens))
    completions = sample(model, PROMPTS, 16, PARAMS, UNLIMITED)
    kept = sum(len(c.tokens) for group in completions for c in group)
    assert sum(batches) < kept * 4 / 3 < 80 * 24 * 0.8
    assert batches[0] == 80 and batches[-1] < 40


def test_other_models_take_their_own_forward_pass(tiny_random_model):
    sliding = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    assert not decodes(tiny_random_model("qwen2", **sliding)[0])
    assert not decodes(tiny_random_model("gemma3_text", head_dim=8)[0])
    assert not decodes(tiny_random_model()[0].bfloat16())


def held_bytes(decoder) -> int:
    """Bytes of all keys and values that a decoder keeps."""
    if isinstance(decoder, LlamaDecoder):
        return sum(t.nbytes for cache in decoder.caches for t in vars(cache).values())
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in decoder.cache.layers)


@torch.inference_mode()
@pytest.mark.parametrize(("known", "expected"), [(True, 2 * (10 + 4 * 6)), (False, 2 * (4 * 10 + 4 * 6))])
def test_the_cache_takes_the_memory_it_was_planned_with(known, expected, tiny_random_model, monkeypatch):
    """A token is 2 (key and value) x 2 layers x 2 heads x 8 x 4 bytes; 2 prompts of 10 tokens, 4 completions of 6."""
    model = tiny_random_model()[0].eval()
    monkeypatch.setattr(decode, "decodes", lambda model: known)
    assert cache_bytes(model, 2, 8, 10, 6, compiled=False) == expected * 256
    decoder = decoder_for(model, prefill(model, [[5] * 10, [6] * 10]), 4, 6, compiled=False)
    assert held_bytes(decoder) == expected * 256


@pytest.mark.parametrize("known", [True, False])
def test_waiting_prompts_take_the_room_of_finished_rows(known, tiny_random_model, monkeypatch):
    """The same tokens as all at once, within the memory, in fewer steps than one batch after the other would take.

    40 prompts, of which three fit at a time: the rows write around the ring of 24 columns more than once.
    """
    model = tiny_random_model()[0].eval()
    monkeypatch.setattr(decode, "decodes", lambda model: known)
    prompts = [[5 + p] * (1 + 7 * p % 11) for p in range(40)]
    expected = sample(model, prompts, 4, PARAMS, UNLIMITED)
    cap = 3 * cache_bytes(model, 1, 4, 11, 24, compiled=False)
    kind = LlamaDecoder if known else ModelDecoder
    step, admit = kind.step, kind.admit
    steps, admitted, held = [], [], []

    def spied_step(self, tokens):
        steps.append(self)
        held.append(held_bytes(self))
        return step(self, tokens)

    def spied_admit(self, more):
        admit(self, more)
        admitted.append(len(more.visible))
        held.append(held_bytes(self))

    monkeypatch.setattr(kind, "step", spied_step)
    monkeypatch.setattr(kind, "admit", spied_admit)
    assert_same(sample(model, prompts, 4, PARAMS, cap), expected)
    assert max(held) <= cap
    assert sum(admitted) > 20
    assert max(steps.count(decoder) for decoder in set(steps)) > 2 * 24
    longest = [max(len(c.tokens) for c in group) for group in expected]
    by_length = sorted(range(40), key=lambda p: -len(prompts[p]))
    in_turns = sum(max(longest[p] for p in by_length[i : i + 3]) - 1 for i in range(0, 40, 3))
    assert len(steps) < 0.8 * in_turns


@pytest.mark.parametrize("cap", [UNLIMITED, 1])
def test_rows_are_told_of_when_they_leave(cap, tiny_random_model, monkeypatch):
    """Each at most once, as what they will be in the result, and before the last token of the batch is drawn."""
    model = tiny_random_model()[0].eval()
    told, events = {}, []

    def arrived(p, completions):
        told.setdefault(p, []).extend(completions)
        events.append("told")

    draw = sampler.draw
    monkeypatch.setattr(sampler, "draw", lambda *arguments: events.append("drawn") or draw(*arguments))
    completions = sample(model, PROMPTS, 8, PARAMS, cap, arrived=arrived)
    assert_same(completions, sample(model, PROMPTS, 8, PARAMS, cap), tolerance=0)
    for p, group in told.items():
        left = list(completions[p])
        for completion in group:
            left.remove(completion)
    assert sum(map(len, told.values())) >= 20
    assert events.index("told") < len(events) - events[::-1].index("drawn") - 5


def test_a_signal_ends_sampling_at_the_next_token(tiny_random_model):
    model = tiny_random_model()[0].eval()
    with signals.handled(), signals.safe_points():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(signals.Interrupted):
            sample(model, PROMPTS, 1, PARAMS, UNLIMITED)


@given(
    st.lists(
        st.lists(st.floats(-50, 50, width=32), min_size=5, max_size=5), min_size=1, max_size=4
    ),
    st.floats(-1e4, 1e4, width=32),
    st.floats(0, 1 - 1e-6),
    st.sampled_from([0.5, 1.0, 1.7]),
)  # fmt: skip
def test_draw_is_the_inverse_of_the_cdf(rows, shift, uniform, temperature):
    """In float64: the drawn token's interval of the CDF holds the uniform number, whatever the logits' level."""
    logits = torch.tensor(rows) + shift
    params = SamplingParams(1, temperature, NO_STOP, 0)
    before = logits.clone()
    tokens, logprobs, _ = draw(logits, torch.full((len(rows),), uniform), params)
    assert torch.equal(logits, before)
    exact = (logits.double() / temperature).log_softmax(-1)
    cdf = exact.exp().cumsum(-1)
    for r, token in enumerate(tokens.tolist()):
        below = cdf[r, token - 1] if token else 0.0
        assert below - 1e-6 <= uniform <= cdf[r, token] + 1e-6
        # The logits' own rounding is the limit far from 0.
        assert logprobs[r].item() == pytest.approx(exact[r, token].item(), abs=1e-5 + 1e-7 * abs(shift) * 4)


@pytest.mark.slow
def test_the_compiled_step_samples_the_same(tiny_random_model):
    model = tiny_random_model()[0].eval()
    expected = sample(model, PROMPTS, 3, PARAMS, UNLIMITED)
    assert not hasattr(model, "_compiled_call")  # nothing is compiled unless asked for
    for seed in (4, 5):
        params = SamplingParams(24, 1.0, STOPS, seed)
        plain = expected if seed == 4 else sample(model, PROMPTS[:3], 2, params, UNLIMITED)
        prompts, n = (PROMPTS, 3) if seed == 4 else (PROMPTS[:3], 2)
        assert_same(sample(model, prompts, n, params, UNLIMITED, compiled=True), plain)
