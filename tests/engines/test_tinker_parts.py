"""The parts of engine=tinker without a service: what it refuses, sends, counts, asks again and leaves out."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.single_turn import SingleTurnConfig
from recipes.check_engine import faults
from rl import signals
from rl.collecting import collect
from rl.engines import base
from rl.engines.base import SamplingConfig, SamplingParams
from rl.engines.conformance import Conformance
from rl.engines.prices import Prices, Tokens, batch_tokens, published_prices
from rl.engines.tinker import calls as tinker_calls
from rl.engines.tinker.config import TinkerEngineConfig
from rl.engines.tinker.learner import TinkerLearner, positions
from rl.engines.tinker.ledger import Ledger
from rl.engines.tinker.pending import PendingGroups
from rl.engines.tinker.rows import datum, has_signal, loss_name, row_logprobs
from rl.engines.tinker.sampler import TinkerSampler
from rl.engines.tinker.service import Service, saved
from rl.errors import Stopped, UserError
from rl.losses.cispo import CISPO
from rl.losses.dr_grpo import DrGRPO
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.grpo import GRPO
from rl.losses.gspo import GSPO
from rl.losses.maxrl import MaxRL
from rl.losses.reinforce_pp import ReinforcePlusPlus
from rl.losses.rloo import RLOO
from rl.metrics import lag_metrics
from rl.models.config import LoraConfig
from rl.optimizer import OptimizerConfig
from rl.rollouts import Completion, Parsed, Problem
from rl.task import Task
from rl.train import update
from tests.helpers.rollouts import one_turn_row
from tests.helpers.tinker_server.record import RECORDING
from tests.helpers.tinker_server.replay import Replay

KEY = "tml-not-a-secret"


def blueprint(**changes):
    """What the engine's check reads of a blueprint that it accepts."""
    lora = SimpleNamespace(rank=8, alpha=32.0, dropout=0.0, target_modules="all-linear")
    model = SimpleNamespace(source="Qwen/Qwen3-8B", context=None, lora=lora, quantization=None)
    facts = {
        "model": model,
        "temperature": 1.0,
        "sampling": SamplingConfig(),
        "loss": GRPO(),
        "optimizer": OptimizerConfig(),
    }
    return SimpleNamespace(**(facts | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": 0.7}, "temperature=1.0"),
        ({"loss": FlashReinforce(negative_token_fraction=0.5)}, "negative_token_fraction=1.0"),
        ({"model": SimpleNamespace(source="m", lora=None, quantization=None)}, r"model\.lora\.rank=32"),
        (
            {
                "model": SimpleNamespace(
                    source="m",
                    context=None,
                    lora=SimpleNamespace(dropout=0.0, alpha=16.0),
                    quantization=None,
                )
            },
            r"model\.lora\.alpha=32",
        ),
    ],
)
def test_what_a_service_cannot_do_is_refused(changes, words, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    TinkerEngineConfig().check(blueprint())
    with pytest.raises(UserError, match=words):
        TinkerEngineConfig().check(blueprint(**changes))


def test_a_price_limit_needs_a_price(monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    TinkerEngineConfig(max_usd=5).check(blueprint())
    own = SimpleNamespace(source="me/mine", context=None, lora=blueprint().model.lora, quantization=None)
    unknown = blueprint(model=own)
    with pytest.raises(UserError, match="no price is known for me/mine"):
        TinkerEngineConfig(max_usd=5).check(unknown)
    TinkerEngineConfig(max_usd=5, prices=Prices(prefill=1, sample=1, train=1)).check(unknown)


def test_cost_by_hand():
    """A million prompt tokens at 0.195, two million sampled at 0.60, three million trained at 0.44 USD."""
    prices = published_prices("Qwen/Qwen3-8B")
    assert prices is not None and published_prices("me/mine") is None
    assert Tokens(1_000_000, 2_000_000, 3_000_000).usd(prices) == pytest.approx(0.195 + 1.2 + 1.32)
    assert batch_tokens(10, 20, training_passes=2) == Tokens(10, 20, 60)
    assert Tokens(1, 2, 3) + Tokens(1, 1, 1) * 2 == Tokens(3, 4, 5)


def test_each_loss_has_the_services_name_and_bounds():
    assert loss_name(FlashReinforce()) == ("importance_sampling", {})
    assert loss_name(DrGRPO(clip_low=0.1, clip_high=0.3)) == (
        "ppo",
        {"clip_low_threshold": 0.9, "clip_high_threshold": 1.3},
    )
    assert loss_name(DrGRPO(clip_low=1.0, clip_high=math.inf)) == ("importance_sampling", {})
    assert loss_name(RLOO()) == ("importance_sampling", {})
    bounds = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    assert loss_name(ReinforcePlusPlus()) == loss_name(MaxRL()) == ("ppo", bounds)
    for unmapped in (CISPO(), GSPO()):
        with pytest.raises(UserError, match=f"loss={unmapped.name}: .* no loss with this objective"):
            loss_name(unmapped)

    class Mine(GRPO):
        def objective(self, logprobs, log_ratio, coefficients, mask):
            return coefficients * logprobs

    with pytest.raises(UserError, match="no loss with this objective"):
        loss_name(Mine())


def test_a_row_as_the_service_reads_it():
    """Position i predicts token i+1; the prompt's positions have advantage 0."""
    row = one_turn_row([5, 6, 7], [8, 9], [-0.5, -0.25], [0.125, -2.0])
    sent = datum(row, scale=2.0)
    assert sent.model_input.to_ints() == [5, 6, 7, 8]
    assert {name: tensor.tolist() for name, tensor in sent.loss_fn_inputs.items()} == {
        "target_tokens": [6, 7, 8, 9],
        "logprobs": [0, 0, -0.5, -0.25],
        "advantages": [0, 0, 0.25, -4.0],
    }
    answer = SimpleNamespace(loss_fn_outputs=[{"logprobs": sent.loss_fn_inputs["logprobs"]}])
    assert row_logprobs(answer, [row]) == [[-0.5, -0.25]]
    with pytest.raises(UserError, match="returned 1 rows of 4 tokens, but was sent 2 of 8"):
        row_logprobs(answer, [row, row])


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.lists(st.floats(-1, 1), min_size=1, max_size=9)),
        min_size=1,
        max_size=6,
    )
)
def test_a_server_that_averages_is_undone(shapes):
    """The mean over rows of each row's mean over positions, of rescaled coefficients, is their plain sum."""
    rows = [one_turn_row([1] * p, [2] * len(c), [0.0] * len(c), c) for p, c in shapes]
    sent = [
        datum(row, scale=len(rows) * positions(row)).loss_fn_inputs["advantages"].tolist() for row in rows
    ]
    averaged = sum(sum(values) / len(values) for values in sent) / len(rows)
    assert averaged == pytest.approx(sum(sum(row.coefficients) for row in rows), abs=1e-5)


@pytest.mark.parametrize(
    ("coefficients", "logprobs", "expected"),
    [
        ([0.0, 0.0], [-1.0, -1.0], False),
        ([0.0, 0.5], [-1.0, -1.0], True),
        ([math.nan, 0.5], [-1.0, -1.0], False),
        ([0.5, 0.5], [-1.0, -math.inf], False),
    ],
)
def test_only_finite_rows_with_signal_are_trained(coefficients, logprobs, expected):
    assert has_signal([one_turn_row([1], [2, 3], logprobs, coefficients)]) is expected


class Sampler:
    """Answers from a list for each prompt: a number of completions, or an error."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    def sample(self, prompt, num_samples, sampling_params):
        p = prompt.to_ints()[0]
        self.asked.append((p, sampling_params.seed, tuple(sampling_params.stop)))
        answer, future = self.answers[p].pop(0), Future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            sequence = SimpleNamespace(tokens=[3, 4], logprobs=[-0.5, -0.5], stop_reason="stop")
            future.set_result(SimpleNamespace(sequences=[sequence] * answer))
        return future


def test_a_failed_group_is_asked_again_then_dropped_and_never_rewarded(monkeypatch):
    """Prompt 0 answers; prompt 1 at the third try; prompt 2 never."""
    monkeypatch.setattr(tinker_calls, "_sleep", lambda seconds: None)
    sampler = Sampler({0: [2], 1: [OSError("lost"), 1, 2], 2: [1, OSError("lost"), 0]})
    ledger = Ledger()
    params = SamplingParams(8, 1.0, frozenset({9, 4}), seed=10)
    asked = PendingGroups(sampler, [[0, 0], [1], [2]], 2, params, attempts=3, ledger=ledger)
    assert sampler.asked == [
        (0, 10, (4, 9)),
        (1, 12, (4, 9)),
        (2, 14, (4, 9)),
    ]  # all at once, before any wait; a service draws a prompt's two with seed and seed + 1
    groups = asked.result()
    assert [len(group) for group in groups] == [2, 2, 0]
    assert groups[0][0] == Completion([3, 4], [-0.5, -0.5], "stop")
    # Paid for: both of prompt 0, the lone ones of 1 and 2, both of 1.
    assert ledger == Ledger(tokens=Tokens(prefill=2 * 2 + 1 + 1 + 2, sample=6 * 2), dropped_groups=1)
    assert asked.result() == groups and len(sampler.asked) == 3 + 2 + 2
    assert [p for p, *_ in sampler.asked] == [0, 1, 2, 1, 2, 1, 2]  # again all at once


def test_an_older_server_is_named_and_not_asked_again():
    error = AssertionError("response.sample_sequence_ids is None")
    sampler = Sampler({0: [error, 1]})
    asked = PendingGroups(sampler, [[0]], 1, SamplingParams(8, 1.0, frozenset(), 0), 3, Ledger())
    with pytest.raises(UserError, match=r"pip install tinker==0\.25\.0"):
        asked.result()
    assert len(sampler.asked) == 1


def test_what_a_batch_can_still_cost():
    """Two prompts of 3 and 1 tokens, 2 completions of 8 tokens at most, trained twice: 8 + 32 tokens, 2 x 40 trained."""
    sampler = Sampler({0: [2], 1: [2]})
    asked = PendingGroups(
        sampler, [[0] * 3, [1]], 2, SamplingParams(8, 1.0, frozenset(), 0), 1, Ledger(), passes=2
    )
    assert asked.unanswered == Tokens(8, 32, 0) and asked.owed == Tokens(8, 32, 80)
    asked.result()
    assert asked.unanswered == Tokens() and asked.owed == Tokens(0, 0, 80)


def test_money_for_batches_under_way_counts():
    """1 USD per million tokens; a batch is at most 4 prompt and 16 sampled tokens, and 20 trained: 40e-6 USD."""
    ledger = Ledger(Prices(prefill=1, sample=1, train=1), max_usd=100e-6)
    learner = SimpleNamespace(ledger=ledger, version=0, adapter=None)
    learner.service = SimpleNamespace(sampler=lambda adapter: Sampler({0: [2] * 9, 1: [2] * 9}))
    sampler = TinkerSampler(TinkerEngineConfig(max_lag=1), learner, passes=1)
    params = SamplingParams(4, 1.0, frozenset(), 0)
    first = sampler.submit([[0], [1]], 2, params)
    sampler.submit([[0], [1]], 2, params)
    with pytest.raises(Stopped, match=r"max_usd=0\.0001"):
        sampler.submit([[0], [1]], 2, params)
    sampler.sample([[0], [1]], 2, params)  # an evaluation trains nothing: 20e-6
    first.result()  # its answers took 4 + 8 tokens of 20, and the evaluation as many
    ledger.tokens += Tokens(train=12)
    with pytest.raises(Stopped, match=r"3\.6e-05 USD are spent"):
        sampler.submit([[0], [1]], 2, params)
    sampler.recall({"cost/prefill_tokens": 99, "cost/sample_tokens": 1, "cost/train_tokens": None})
    assert ledger.tokens == Tokens(99, 1, 0)
    sampler.recall({"step": 3})
    assert ledger.tokens == Tokens(99, 1, 0)


class Adapter:
    """A service's adapter that notes what it is told, and answers with the log-probabilities it was sent or `drift`."""

    def __init__(self, logprob):
        self.logprob, self.calls = logprob, []

    def answer(self, data):
        count = [len(d.model_input.to_ints()) for d in data]
        outputs = [{"logprobs": SimpleNamespace(tolist=lambda n=n: [self.logprob] * n)} for n in count]
        return SimpleNamespace(loss_fn_outputs=outputs)

    def forward(self, data, name):
        self.calls.append(("forward", name, data))
        return self.answer(data)

    def forward_backward(self, data, name, settings):
        self.calls.append(("forward_backward", name, data))
        return self.answer(data)

    def optim_step(self, adam):
        self.calls.append(("optim_step", adam, None))
        return SimpleNamespace(metrics={"skyrl.ai/grad_norm": 0.75})


def learning(logprob, **config):
    """A learner around such an adapter."""
    blueprint = SimpleNamespace(
        optimizer=OptimizerConfig(betas=(0.8, 0.7)),
        seed=0,
        model=SimpleNamespace(lora=LoraConfig(), source="tiny"),
    )
    learner = TinkerLearner(TinkerEngineConfig(**config), blueprint, None, SimpleNamespace(), Ledger())
    learner._adapter, learner._exported = Adapter(logprob), "old"
    return learner


def advantages(data):
    return [d.loss_fn_inputs["advantages"].tolist() for d in data]


def test_a_step_with_a_gate():
    """Scored first; the row whose tokens moved too far is sent with zeros, so that N stays; then one step, in order."""
    near = one_turn_row([5], [6, 7], [-1.0, -1.0], [1.0, 0.5])
    far = one_turn_row([5, 5], [6], [-0.001], [2.0])
    learner = learning(-1.0)
    stats = learner.update([near, far], FlashReinforce(), 0.25)
    forward, gradient, step = learner.adapter.calls
    assert [call[0] for call in learner.adapter.calls] == ["forward", "forward_backward", "optim_step"]
    assert advantages(forward[2]) == [[0, 0], [0, 0]]  # a score needs none
    assert gradient[1] == "importance_sampling" and advantages(gradient[2]) == [[1.0, 0.5], [0, 0]]
    assert (step[1].learning_rate, step[1].beta1, step[1].beta2) == (0.25, 0.8, 0.7)
    assert (stats.admitted, stats.stepped, stats.grad_norm) == ([True, False], True, 0.75)
    assert learner.version == 1 and learner._exported is None
    assert learner.ledger.tokens == Tokens(train=2 * 6)


def test_a_step_on_a_server_that_averages():
    """Coefficients times rows times positions: 2 x 2 and 2 x 3."""
    rows = [
        one_turn_row([5], [6, 7], [-1.0, -1.0], [1.0, 0.5]),
        one_turn_row([5, 5], [6, 7], [-1.0, -1.0], [2.0, -1.0]),
    ]
    learner = learning(-1.0, reduction="seq_mean")
    learner.update(rows, DrGRPO(), 0.25)
    gradient, _ = learner.adapter.calls
    assert gradient[1] == "ppo" and advantages(gradient[2]) == [[4.0, 2.0], [0, 12.0, -6.0]]


def test_a_correction_is_sent_as_the_learners_own_logprobs_and_weighted_coefficients():
    """The service divides by what it is sent: -1, its own. The sampler had -1.5: w = e^0.5 = 1.6487; and -4: w = e^3, cut to 2."""
    row = one_turn_row([5], [6, 7], [-1.5, -4.0], [1.0, -0.5])
    learner, loss = learning(-1.0), GRPO(correction="tis", updates_per_batch=2)
    stats = update(learner, SimpleNamespace(rows=[row], learning_rate=0.25), loss)
    assert [call[0] for call in learner.adapter.calls] == [
        "forward",
        *["forward_backward", "optim_step"] * 2,
    ]
    for gradient in (learner.adapter.calls[1], learner.adapter.calls[3]):
        (sent,) = gradient[2]
        assert gradient[1] == "ppo" and sent.loss_fn_inputs["logprobs"].tolist() == [-1.0, -1.0]
        assert advantages(gradient[2])[0] == pytest.approx([1.6487, -1.0], abs=1e-4)
    assert loss.passes == 3 and learner.ledger.tokens == Tokens(train=3 * 3)
    assert (
        stats.metrics["mismatch/max"] == pytest.approx(math.exp(3)) and stats.metrics["correction/kept"] == 1
    )


@pytest.mark.parametrize("loss", [GRPO(), FlashReinforce()])
@pytest.mark.parametrize("coefficients", [[0.0, 0.0], [math.nan, 1.0]])
def test_a_batch_that_teaches_nothing_is_only_scored(loss, coefficients):
    learner = learning(-1.0)
    stats = learner.update([one_turn_row([5], [6, 7], [-1.0, -1.0], coefficients)], loss, 0.25)
    assert [call[0] for call in learner.adapter.calls] == ["forward"]
    assert advantages(learner.adapter.calls[0][2]) == [[0, 0]]
    assert not stats.stepped and learner.version == 0


@pytest.mark.parametrize("silent", [True, False])
def test_a_wait_for_a_service_that_is_gone_ends(silent, monkeypatch):
    monkeypatch.setattr(tinker_calls, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(tinker_calls, "SILENT_SECONDS", 0.5)
    never = Future()
    with Replay(RECORDING) as server:
        monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9" if silent else server.url)
        if silent:
            with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9 has not answered for"):
                tinker_calls.finished(never)
        else:
            threading.Timer(1.5, lambda: never.set_result("here")).start()
            assert tinker_calls.finished(never) == "here"


def test_a_signal_ends_a_call_that_waits_by_itself():
    """Some calls of older SDKs do."""
    released = threading.Event()
    with signals.handled(), signals.safe_points():
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(signals.Interrupted):
            tinker_calls.waited(lambda: released.wait(60))
    released.set()
    done = Future()
    done.set_result(7)
    assert tinker_calls.waited(lambda: done) == 7
    with pytest.raises(OSError, match="lost"):
        tinker_calls.waited(lambda: (_ for _ in ()).throw(OSError("lost")))


@pytest.mark.parametrize(
    ("said", "logged"),
    [
        ("401 for key tml-not-a-secret", "401 for key ***"),
        (
            "x" * 270 + " tml-not-a-secret at the limit of the line",
            "x" * 270 + " *** at the limit of the line",
        ),
        ("key b'tml-other-secret\\r'", "key b'***\\r'"),
        ("403 for url 'https://s.io/a/b?X-Signature=abc&d=1'", "403 for url 'https://s.io/a/b?***'"),
        ("http://me:secret@host:1/x refused", "http://***@host:1/x refused"),
        ("is it there? no", "is it there? no"),
    ],
)
def test_no_secret_gets_into_a_line(said, logged, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    assert tinker_calls.reason(OSError(said)) == f"OSError: {logged}"[:300]
    assert tinker_calls.redacted(said) == logged


class Conflict(Exception):
    status_code = 409


def test_a_save_whose_answer_was_lost_is_done_again_under_another_name(monkeypatch):
    monkeypatch.setattr(tinker_calls, "_sleep", lambda seconds: None)
    names = []

    def save(name):
        names.append(name)
        if len(names) == 1:
            raise Conflict("taken")
        return SimpleNamespace(path=f"tinker://{name}")

    assert saved(save, "step-000004") == f"tinker://{names[1]}"
    assert names[0] != names[1] and all(name.startswith("step-000004-") for name in names)


RIGHT = Conformance(1.0, 1.0, 0.0, 0.0, 16, (12, 12), overlaps=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"cosine": 0.996, "norm_ratio": 0.0006}, ["type engine.reduction=seq_mean"]),
        ({"cosine": 0.3, "norm_ratio": 1.2}, ["gradient direction differs"]),
        ({"cosine": math.nan, "norm_ratio": math.nan}, ["gradient direction differs"]),
        ({"norm_ratio": math.nan}, ["step size differs"]),
        ({"admitted": (16, 12)}, ["gradient direction differs"]),
        ({"learner_drift": math.nan}, ["log-probabilities differ"]),
        (
            {"sampler_drift": 0.2, "overlaps": False},
            ["log-probabilities differ", "type engine.overlap=false"],
        ),
    ],
)
def test_what_is_said_of_a_server(changes, words):
    found = dataclasses.replace(RIGHT, **changes)
    said = list(faults(found, {"reduction": "sum", "overlap": True}))
    assert len(said) == len(words)
    for line, word in zip(said, words, strict=True):
        assert word in line


class Counting(base.Sampler):
    """A sampler that notes when which problem was asked for, and answers it."""

    def __init__(self, max_lag):
        self.max_lag = max_lag
        self.asked = []

    def submit(self, prompts, n, params, arrived=None):
        self.asked.append([prompt[0] for prompt in prompts])
        completion = Completion([1], [-1.0], "stop")
        return SimpleNamespace(result=lambda: [[completion] * n for _ in prompts])

    def sample(self, prompts, n, params, arrived=None):
        raise NotImplementedError


def run_of(sampler, total_steps):
    """What `collect` needs of a run of two problems a step, numbered in order."""
    problems = {i: Problem(str(i), "", "", "en", "test") for i in range(2 * total_steps)}
    renderer = SimpleNamespace(
        stop_ids=frozenset(),
        prompt=lambda message: [message],
        cut=lambda c: c,
        parse=lambda c: Parsed("", "", "", "stop"),
    )
    return SimpleNamespace(
        engine=SimpleNamespace(sampler=sampler),
        pending={},
        arrivals=None,
        total_steps=total_steps,
        budget=SimpleNamespace(tokens=8),
        blueprint=SimpleNamespace(
            batch_size=2,
            group_size=2,
            seed=0,
            temperature=1.0,
            sampling=SamplingConfig(),
            loss=GRPO(),
            engine=SimpleNamespace(has_entropies=False),
        ),
        renderer=renderer,
        task=Task(lambda problem: int(problem.id), renderer, SingleTurnConfig()),
        problems=SimpleNamespace(batch=lambda step, size, seed: [problems[2 * step], problems[2 * step + 1]]),
    )


@pytest.mark.parametrize("max_lag", [0, 1, 2, 9])
@pytest.mark.parametrize("done", [0, 3])
def test_no_batch_is_lost_or_trained_twice_however_far_ahead_it_is_asked(max_lag, done):
    """Seven steps of two problems, also when the run starts again after step 3 with nothing under way."""
    sampler, total = Counting(max_lag), 7
    run = run_of(sampler, total)
    for step in range(done + 1, total + 1):
        run.budget.tokens = 100 - step
        rollouts, budget = collect(run, step)
        expected = [str(2 * (step - 1)), str(2 * (step - 1) + 1)]
        assert [r.problem.id for r in rollouts] == [i for i in expected for _ in range(2)]
        lag = min(max_lag, step - done - 1)
        assert budget == 100 - (step - lag)  # the one that was in force when it was asked for
        assert lag_metrics(rollouts, step) == {"lag/mean": lag, "lag/max": lag}
        assert len(sampler.asked) == min(step + max_lag, total) - done
    assert sampler.asked == [[2 * s, 2 * s + 1] for s in range(done, total)] and not run.pending


def test_a_batch_without_any_completion_stops_the_run():
    sampler = Counting(0)
    sampler.submit = lambda *_: SimpleNamespace(result=lambda: [[], []])
    with pytest.raises(Stopped, match="no completions for any of the 2 problems"):
        collect(run_of(sampler, 1), 1)


def test_a_signal_during_a_save_waits_for_its_end(tmp_path):
    """Else the step just trained would be saved again as the one before it."""

    def save_state(name):
        os.kill(os.getpid(), signal.SIGTERM)
        future = Future()
        future.set_result(SimpleNamespace(path="tinker://m/weights/s"))
        return future

    learner = learning(-1.0)
    learner.service = object.__new__(Service)
    learner.service.base_model = "tiny"
    learner.service.save_adapter = lambda adapter, name: "tinker://m/a"
    learner._adapter = SimpleNamespace(save_state=save_state)
    learner.ledger.pending = [SimpleNamespace(unanswered=Tokens(1, 2, 0))]
    with signals.handled(), signals.safe_points():
        learner.save(tmp_path)
        with pytest.raises(signals.Interrupted):
            signals.check()
    saved = json.loads((tmp_path / "tinker.json").read_text())
    assert saved["state"] == "tinker://m/weights/s"
    assert saved["tokens"] == {"prefill": 1, "sample": 2, "train": 0}  # will be paid, and asked for again
