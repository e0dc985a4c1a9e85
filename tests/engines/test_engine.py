"""The local engine: what is sampled, what is scored, what is learnt, on small random models of each architecture."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rl.engines.base import SamplingConfig, SamplingParams
from rl.engines.local.config import LocalEngineConfig
from rl.engines.local.engine import open_engine
from rl.engines.local.learner import LocalLearner
from rl.engines.local.sampler import draw, sample, uniforms_of
from rl.errors import NotFinite, UserError
from rl.losses.cispo import CISPO
from rl.losses.dr_grpo import DrGRPO
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.grpo import GRPO
from rl.losses.gspo import GSPO
from rl.losses.maxrl import MaxRL
from rl.losses.reinforce_pp import ReinforcePlusPlus
from rl.losses.rloo import RLOO
from rl.optimizer import OptimizerConfig
from rl.rollouts import TrainingRow
from tests.helpers.models import ARCHITECTURES
from tests.helpers.rollouts import one_turn_row

NO_STOP = frozenset({-1})
UNLIMITED = 1e12


@pytest.fixture(params=[*ARCHITECTURES, "gemma3_text"])
def model(request, tiny_random_model):
    changes = (
        {"sliding_window": 8, "head_dim": 8, "num_hidden_layers": 6} if request.param == "gemma3_text" else {}
    )
    return tiny_random_model(request.param, **changes)[0].eval()


PROMPTS = [[5] * 7, [6, 7, 8], list(range(20, 43)), [9]]


def plain_sample(model, prompt, uniforms, stop_ids):
    """The sampler's promise, written the slow way: no batch, no cache, the whole text again for each token."""
    ids, logprobs = list(prompt), []
    for u in uniforms:
        logits = model(torch.tensor([ids])).logits[0, -1]
        probabilities = logits.double().softmax(-1)
        token = int((probabilities.cumsum(-1) <= u * probabilities.sum()).sum())
        ids.append(token)
        logprobs.append(float(logits.log_softmax(-1)[token]))
        if token in stop_ids:
            break
    return ids[len(prompt) :], logprobs


@torch.inference_mode()
def test_sampler_equals_the_plain_loop(model):
    stop_ids = frozenset(range(12))
    params = SamplingParams(20, 1.0, stop_ids, seed=12)
    completions = sample(model, PROMPTS, 3, params, UNLIMITED)
    uniforms = uniforms_of(len(PROMPTS), 3, 20, seed=12)
    endings = Counter()
    for p, prompt in enumerate(PROMPTS):
        for g, completion in enumerate(completions[p]):
            tokens, logprobs = plain_sample(model, prompt, uniforms[p, g], stop_ids)
            assert completion.tokens == tokens
            assert completion.logprobs == pytest.approx(logprobs, abs=2e-5)
            assert completion.stop_reason == ("stop" if tokens[-1] in stop_ids else "length")
            endings[completion.stop_reason] += 1
    assert len(endings) == 2 and len({len(c.tokens) for group in completions for c in group}) > 3


@torch.inference_mode()
def test_eager_attention_samples_the_same(tiny_random_model):
    base = tiny_random_model()[0].eval()
    params = SamplingParams(12, 1.0, frozenset(range(30)), seed=2)
    expected = sample(base, PROMPTS, 2, params, UNLIMITED)
    base.set_attn_implementation("eager")
    assert [c.tokens for g in sample(base, PROMPTS, 2, params, UNLIMITED) for c in g] == [
        c.tokens for g in expected for c in g
    ]


def test_memory_cap_does_not_change_the_tokens(model):
    params = SamplingParams(12, 1.0, frozenset(range(30)), seed=2)
    at_once, one_by_one = sample(model, PROMPTS, 4, params, UNLIMITED), sample(model, PROMPTS, 4, params, 1)
    assert [[c.tokens for c in g] for g in at_once] == [[c.tokens for c in g] for g in one_by_one]


def test_draw_follows_the_distribution():
    """200,000 draws of a known distribution at temperature 2: frequencies within four standard errors."""
    logits = torch.log(torch.tensor([0.64, 0.32, 0.04]))
    expected = torch.tensor([0.8, 0.8 / math.sqrt(2), 0.2])
    expected = expected / expected.sum()
    count = 200_000
    uniforms = torch.rand(count, generator=torch.Generator().manual_seed(0))
    tokens, logprobs, _ = draw(logits.expand(count, 3), uniforms, SamplingParams(1, 2.0, NO_STOP, 0))
    for token in range(3):
        share = (tokens == token).float().mean().item()
        assert abs(share - expected[token]) < 4 * math.sqrt(expected[token] * (1 - expected[token]) / count)
        assert logprobs[tokens == token].unique().tolist() == pytest.approx(
            [math.log(expected[token])], abs=1e-6
        )


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[0.0, -math.inf, 0.0, -math.inf]])
    uniforms = torch.tensor([0.0, 0.5, 1 - 1e-6])
    tokens, _, _ = draw(logits.expand(3, 4), uniforms, SamplingParams(1, 1.0, NO_STOP, 0))
    assert tokens.tolist() == [0, 2, 2]


def test_truncated_support_reports_the_log_probability_it_drew_with():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    params = SamplingParams(1, 1.0, NO_STOP, 0, SamplingConfig(top_k=2, allow_truncated_support=True))
    tokens, logprobs, _ = draw(logits.expand(2, 4), torch.tensor([0.1, 0.9]), params)
    assert tokens.tolist() == [0, 1]
    assert logprobs.tolist() == pytest.approx([math.log(0.625), math.log(0.375)], abs=1e-6)


def test_greedy_takes_the_most_likely_token():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    tokens, logprobs, _ = draw(logits, torch.tensor([0.99]), SamplingParams(1, 0.0, NO_STOP, 0))
    assert tokens.tolist() == [1]
    assert logprobs.item() == pytest.approx(2 - math.log(1 + math.e + math.e**2), abs=1e-6)


def test_entropies_are_those_of_the_whole_distribution():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    from rl.engines.local.sampler import entropy

    assert entropy(logits).item() == pytest.approx(1.039721, abs=1e-6)
    assert entropy(torch.tensor([[0.0, -math.inf]])).item() == 0.0


def rollouts(model, temperature: float = 1.0) -> list[TrainingRow]:
    """Sampled rows with advantages of both signs."""
    params = SamplingParams(10, temperature, frozenset(range(40)), seed=5)
    completions = sample(model, PROMPTS, 2, params, UNLIMITED)
    pairs = [(prompt, c) for prompt, group in zip(PROMPTS, completions, strict=True) for c in group]
    return [
        one_turn_row(prompt, c.tokens, c.logprobs, [(-1) ** n * 0.1] * len(c.tokens))
        for n, (prompt, c) in enumerate(pairs)
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_learner_scores_what_the_sampler_drew(model, temperature):
    """max |log rho| on policy, at any temperature: the ratio of an untouched policy is 1."""
    rows = rollouts(model, temperature)
    scored = LocalLearner(model, OptimizerConfig(), temperature, 64).logprobs(rows)
    drift = [
        abs(a - b)
        for row, values in zip(rows, scored, strict=True)
        for a, b in zip(row.behavior_logprobs, values, strict=True)
    ]
    assert max(drift) < 1e-5


@pytest.mark.parametrize(
    "loss",
    [GRPO(), DrGRPO(), FlashReinforce(), RLOO(), ReinforcePlusPlus(), MaxRL(), CISPO(), GSPO()],
    ids=lambda loss: loss.name,
)
def test_micro_batches_do_not_change_the_step(tiny_random_model, loss):
    """Micro-batches of 1, 2, 4 and all rows: the same gradient within 1e-6."""
    base = tiny_random_model()[0]
    rows = [
        one_turn_row([5, 6], list(range(40, 48)), [-5.0] * 8, [(-1) ** n * 0.01 * n] * 8) for n in range(8)
    ]
    scored = LocalLearner(base, OptimizerConfig(), 1.0, 10_000).logprobs(rows)
    rows = [replace(r, behavior_logprobs=s) for r, s in zip(rows, scored, strict=True)]
    gradients = []
    for microbatch in (1, 2, 4, 8):
        learner = LocalLearner(base, OptimizerConfig(max_grad_norm=math.inf), 1.0, microbatch * 10)
        stats = learner.update(rows, loss, learning_rate=0.0)
        assert stats.stepped
        gradients.append(torch.cat([p.grad.flatten() for p in learner.parameters]))
    for gradient in gradients[1:]:
        assert torch.allclose(gradient, gradients[0], atol=1e-6)
    assert gradients[0].abs().max() > 1e-3


def test_head_in_pieces_equals_head_at_once(tiny_random_model, monkeypatch):
    base = tiny_random_model()[0]
    rows = rollouts(base.eval())
    gradients = []
    for values in (2**25, 1024):
        monkeypatch.setattr("rl.engines.local.learner.LOGITS_AT_ONCE", values)
        learner = LocalLearner(base, OptimizerConfig(), 1.0, 10_000)
        learner.update(rows, GRPO(), learning_rate=0.0)
        gradients.append(torch.cat([p.grad.flatten() for p in learner.parameters]))
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)


def test_a_batch_without_signal_takes_no_step(tiny_random_model):
    """Momentum and weight decay would move the weights even for a zero gradient."""
    base = tiny_random_model()[0]
    learner = LocalLearner(base, OptimizerConfig(weight_decay=0.5), 1.0, 10_000)
    rows = rollouts(base.eval())
    assert learner.update(rows, GRPO(), 1e-2).stepped
    before = [p.clone() for p in learner.parameters]
    silent = [replace(r, coefficients=[0.0] * len(r.coefficients)) for r in rows]
    stats = learner.update(silent, GRPO(), 1e-2)
    assert not stats.stepped and stats.grad_norm == 0
    assert all(torch.equal(a, b) for a, b in zip(before, learner.parameters, strict=True))


def test_a_gradient_that_is_not_finite_takes_no_step(tiny_random_model):
    base = tiny_random_model()[0]
    learner = LocalLearner(base, OptimizerConfig(), 1.0, 10_000)
    rows = rollouts(base.eval())
    before = [p.clone() for p in learner.parameters]
    rows[0] = replace(rows[0], coefficients=[math.inf] * len(rows[0].coefficients))
    assert not learner.update(rows, GRPO(), 1e-2).stepped
    assert all(torch.equal(a, b) for a, b in zip(before, learner.parameters, strict=True))


def test_schedules_by_hand():
    cosine = OptimizerConfig(schedule="cosine", warmup=0.2, final_ratio=0.1)
    rates = [cosine.rate(1.0, step, 10) for step in range(1, 11)]
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert rates[5] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 3 / 8)) / 2)
    assert rates[-1] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 7 / 8)) / 2)
    linear = OptimizerConfig(schedule="linear")
    assert [linear.rate(1.0, step, 5) for step in range(1, 6)] == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])
    assert linear.rate(1.0, 1, 1) == 1  # a single step is no step without a rate
    assert {OptimizerConfig().rate(3e-4, step, 7) for step in range(1, 8)} == {3e-4}


@pytest.mark.parametrize("total", [1, 2, 28, 58])
@pytest.mark.parametrize("warmup", [0.0, 0.03, 0.5, 0.99])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decays_are_those_of_transformers_and_never_stand_still(schedule, warmup, total):
    import transformers

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    warmup_steps = round(warmup * total)
    make = getattr(transformers, f"get_{schedule}_schedule_with_warmup")
    theirs = make(optimizer, num_warmup_steps=warmup_steps, num_training_steps=total).lr_lambdas[0]
    ours = OptimizerConfig(schedule=schedule, warmup=warmup)
    for step in range(1, total + 1):
        assert ours.rate(1.0, step, total) > 0
        if step > warmup_steps:  # theirs begins the warm-up at 0
            assert ours.rate(1.0, step, total) == pytest.approx(theirs(step - 1))


def engine_for(path, tokenizer, **model):
    """A local engine as the blueprint opens it, on a checkpoint folder."""
    from rl.models.config import LoraConfig, ModelConfig

    lora = model.pop("lora", None)
    spec = ModelConfig(name="test", path=str(path), lora=LoraConfig(**lora) if lora else None)
    blueprint = SimpleNamespace(
        model=spec, device="cpu", optimizer=OptimizerConfig(), temperature=1.0, seed=0
    )
    return open_engine(LocalEngineConfig(), blueprint, tokenizer)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}])
def test_save_load_export(architecture, lora, tiny_random_model, tmp_path):
    """Saved state restores weights and optimiser bit for bit; an export loads with transformers or peft alone."""
    model, tokenizer = tiny_random_model(architecture)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    engine = engine_for(tmp_path / "base", tokenizer, lora=lora)
    learner = engine.learner
    rows = rollouts(engine.sampler.model.eval())
    learner.update(rows, GRPO(), 1e-2)
    (tmp_path / "saved").mkdir()
    learner.save(tmp_path / "saved")
    continued = [learner.update(rows, GRPO(), 1e-2).loss, learner.logprobs(rows)]

    restored = engine_for(tmp_path / "base", tokenizer, lora=lora).learner
    restored.load(tmp_path / "saved")
    assert [restored.update(rows, GRPO(), 1e-2).loss, restored.logprobs(rows)] == continued

    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    learner.export(tmp_path / "final")
    if lora:
        loaded = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "final"
        )
    else:
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    ids = torch.tensor([[*rows[0].prompt_tokens, *rows[0].response_tokens]])
    with torch.no_grad():
        values = loaded.eval()(ids).logits.log_softmax(-1)[0, len(rows[0].prompt_tokens) - 1 : -1]
    expected = values.gather(-1, torch.tensor(rows[0].response_tokens)[:, None]).squeeze(-1).tolist()
    assert learner.logprobs(rows[:1])[0] == pytest.approx(expected, abs=1e-5)


def test_a_checkpoint_that_lacks_tensors_is_refused(tiny_random_model, tmp_path):
    from safetensors.torch import load_file, save_file

    model, tokenizer = tiny_random_model()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 1 of the model's tensors .*layers\.1\.mlp\.up_proj"):
        engine_for(tmp_path, tokenizer)


def test_a_damaged_checkpoint_is_one_line(tiny_random_model, tmp_path):
    model, tokenizer = tiny_random_model()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match="transformers cannot load this checkpoint"):
        engine_for(tmp_path, tokenizer)


def test_more_tokens_than_the_context_holds_are_refused(tiny_random_model, tmp_path):
    model, tokenizer = tiny_random_model(max_position_embeddings=32)
    model.save_pretrained(tmp_path)
    engine = engine_for(tmp_path, tokenizer)
    with pytest.raises(
        UserError, match="make 33 tokens, and the model's context holds 32; type max_tokens=25"
    ):
        engine.sampler.sample([[5] * 7], 1, SamplingParams(26, 1.0, NO_STOP, 0))


def test_logits_that_are_not_numbers_stop_the_sampler(tiny_random_model):
    model = tiny_random_model()[0].eval()
    with torch.no_grad():
        model.lm_head.weight.fill_(math.nan)
    with pytest.raises(NotFinite, match="logits are not finite"):
        sample(model, PROMPTS, 2, SamplingParams(4, 1.0, NO_STOP, 0), UNLIMITED)


def test_lora_on_a_tied_head_is_refused(tiny_random_model, tmp_path):
    model, tokenizer = tiny_random_model(tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="ties its head"):
        engine_for(tmp_path, tokenizer, lora={"target_modules": ["q_proj", "lm_head"]})


def test_unknown_lora_target_is_one_line(tiny_random_model, tmp_path):
    model, tokenizer = tiny_random_model()
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"model\.lora\.target_modules=\['quary_proj'\]"):
        engine_for(tmp_path, tokenizer, lora={"target_modules": ["quary_proj"]})
