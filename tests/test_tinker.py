"""engine=tinker without a service: what it refuses, what it sends, what it loses, and a run against a recorded server."""

from __future__ import annotations

import json
import math
import os
import signal
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl import signals
from rl.collecting import collect
from rl.engines import tinker_service
from rl.engines.base import Remote, SamplingConfig, SamplingParams
from rl.engines.tinker import TinkerEngine, TinkerEngineConfig, positions
from rl.engines.tinker_rows import datum, has_signal, loss_name, row_logprobs
from rl.engines.tinker_sampling import AskedGroups, Ledger
from rl.errors import Stopped, UserError
from rl.losses import GRPO, DrGRPO, FlashReinforce
from rl.metrics import lag_metrics
from rl.prices import Prices, Tokens, batch_tokens, published_prices
from rl.rollouts import Completion, Parsed, Problem, TrainingRow
from tests.conftest import run_recipe
from tests.tinker_server.record import RECORDING, RUN, environment
from tests.tinker_server.replay import Replay

KEY = "tml-not-a-secret"


def blueprint(**changes):
    """What the engine's check reads of a blueprint that it accepts."""
    lora = SimpleNamespace(rank=8, alpha=32.0, dropout=0.0, target_modules="all-linear")
    model = SimpleNamespace(source="Qwen/Qwen3-8B", lora=lora)
    facts = {"model": model, "temperature": 1.0, "sampling": SamplingConfig(), "loss": GRPO()}
    return SimpleNamespace(**(facts | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": 0.7}, "temperature=1.0"),
        ({"loss": FlashReinforce(negative_token_fraction=0.5)}, "negative_token_fraction=1.0"),
        (
            {"sampling": SamplingConfig(top_k=5, allow_truncated_support=True)},
            r"sampling\.top_k=5",
        ),
        ({"model": SimpleNamespace(source="m", lora=None)}, r"model\.lora\.rank=32"),
        (
            {"model": SimpleNamespace(source="m", lora=SimpleNamespace(dropout=0.0, alpha=16.0))},
            r"model\.lora\.alpha=32",
        ),
    ],
)
def test_what_a_service_cannot_do_is_refused(changes, words, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    TinkerEngineConfig().check(blueprint())
    with pytest.raises(UserError, match=words):
        TinkerEngineConfig().check(blueprint(**changes))


@pytest.mark.parametrize("key", ["", "sk-abc"])
def test_a_missing_or_foreign_key_is_one_line_before_anything_is_loaded(key, tmp_path):
    done = run_recipe(
        "rl_basic", "engine=tinker", "model.lora.rank=8", cwd=tmp_path, environment={"TINKER_API_KEY": key}
    )
    assert done.returncode == 2 and "TINKER_API_KEY" in done.stderr and done.stderr.count("\n") == 1
    assert not key or key not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_price_limit_needs_a_price(monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    TinkerEngineConfig(max_usd=5).check(blueprint())
    unknown = blueprint(model=SimpleNamespace(source="me/mine", lora=blueprint().model.lora))
    with pytest.raises(UserError, match="no price of me/mine is known"):
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

    class Mine(GRPO):
        def objective(self, logprobs, log_ratio, coefficients):
            return coefficients * logprobs

    with pytest.raises(UserError, match="no loss with this objective"):
        loss_name(Mine())


def test_a_row_as_the_service_reads_it():
    """Position i predicts token i+1; the prompt's positions have advantage 0."""
    row = TrainingRow([5, 6, 7], [8, 9], [-0.5, -0.25], [0.125, -2.0])
    sent = datum(row, scale=2.0)
    assert sent.model_input.to_ints() == [5, 6, 7, 8]
    assert {name: tensor.tolist() for name, tensor in sent.loss_fn_inputs.items()} == {
        "target_tokens": [6, 7, 8, 9],
        "logprobs": [0, 0, -0.5, -0.25],
        "advantages": [0, 0, 0.25, -4.0],
    }
    answer = SimpleNamespace(loss_fn_outputs=[{"logprobs": sent.loss_fn_inputs["logprobs"]}])
    assert row_logprobs(answer, [row]) == [[-0.5, -0.25]]


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.lists(st.floats(-1, 1), min_size=1, max_size=9)),
        min_size=1,
        max_size=6,
    )
)
def test_a_server_that_averages_is_undone(shapes):
    """The mean over rows of each row's mean over positions, of rescaled coefficients, is their plain sum."""
    rows = [TrainingRow([1] * p, [2] * len(c), [0.0] * len(c), c) for p, c in shapes]
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
    assert has_signal([TrainingRow([1], [2, 3], logprobs, coefficients)]) is expected


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
    monkeypatch.setattr(tinker_service, "_sleep", lambda seconds: None)
    sampler = Sampler({0: [2], 1: [OSError("lost"), 1, 2], 2: [1, OSError("lost"), 0]})
    ledger = Ledger()
    params = SamplingParams(8, 1.0, frozenset({9, 4}), seed=10)
    asked = AskedGroups(sampler, [[0, 0], [1], [2]], 2, params, attempts=3, ledger=ledger)
    assert sampler.asked == [
        (0, 10, (4, 9)),
        (1, 11, (4, 9)),
        (2, 12, (4, 9)),
    ]  # all at once, before any wait
    groups = asked.result()
    assert [len(group) for group in groups] == [2, 2, 0]
    assert groups[0][0] == Completion([3, 4], [-0.5, -0.5], "stop")
    assert ledger == Ledger(Tokens(prefill=2 * 2 + 2 * 1, sample=4 * 2), dropped_groups=1)
    assert asked.result() is groups and len(sampler.asked) == 3 + 2 + 2


class Counting:
    """A `Remote` that notes when which problem was asked for, and answers it."""

    def __init__(self, max_lag):
        self.max_lag = max_lag
        self.asked = []

    def submit(self, prompts, n, params, arrived):
        self.asked.append([prompt[0] for prompt in prompts])
        completion = Completion([1], [-1.0], "stop")
        return SimpleNamespace(result=lambda: [[completion] * n for _ in prompts])

    publish = sample = save = load = export = close = logprobs = update = metrics = lambda *_: None


def run_of(engine, total_steps):
    """What `collect` needs of a run of two problems a step, numbered in order."""
    problems = {i: Problem(str(i), "", "", "en", "test") for i in range(2 * total_steps)}
    return SimpleNamespace(
        engine=engine,
        under_way={},
        total_steps=total_steps,
        budget=SimpleNamespace(tokens=8),
        blueprint=SimpleNamespace(
            batch_size=2, group_size=2, seed=0, temperature=1.0, sampling=SamplingConfig(), loss=GRPO()
        ),
        renderer=SimpleNamespace(
            stop_ids=frozenset(),
            prompt=lambda message: [message],
            cut=lambda c: c,
            parse=lambda c: Parsed("", "", "", "stop"),
        ),
        problems=SimpleNamespace(
            batch=lambda step, size, seed: [problems[2 * step], problems[2 * step + 1]],
            messages=lambda problem: int(problem.id),
        ),
    )


@pytest.mark.parametrize("max_lag", [0, 1, 2, 9])
@pytest.mark.parametrize("done", [0, 3])
def test_no_batch_is_lost_or_trained_twice_however_far_ahead_it_is_asked(max_lag, done):
    """Seven steps of two problems, also when the run starts again after step 3 with nothing under way."""
    engine, total = Counting(max_lag), 7
    assert isinstance(engine, Remote)
    run = run_of(engine, total)
    for step in range(done + 1, total + 1):
        run.budget.tokens = 100 - step
        rollouts, budget = collect(run, step)
        expected = [str(2 * (step - 1)), str(2 * (step - 1) + 1)]
        assert [r.problem.id for r in rollouts] == [i for i in expected for _ in range(2)]
        lag = min(max_lag, step - done - 1)
        assert budget == 100 - (step - lag)  # the one that was in force when it was asked for
        assert lag_metrics(rollouts, step) == {"lag/mean": lag, "lag/max": lag}
        assert len(engine.asked) == min(step + max_lag, total) - done
    assert engine.asked == [[2 * s, 2 * s + 1] for s in range(done, total)] and not run.under_way


# The rate falls, since the policy moves fastest where the reward rises: a lag of two multiplies that.
LAGGING = [
    "loss=flashreinforce", "batch_size=96", "learning_rate=6e-4", "optimizer.schedule=linear", "max_steps=18",
]  # fmt: skip


def assert_learnt_from_older_policies(metrics):
    """The lag, the ratios and the gate's share are in the rows of metrics.jsonl, and the reward reached the bar."""
    assert [row["lag/max"] for row in metrics] == [0, 1] + [2] * 16
    assert metrics[0]["ratio/max"] < 1.001 < metrics[5]["ratio/max"]
    assert metrics[0]["trust/admitted"] == 1 > min(row["trust/admitted"] for row in metrics)
    assert max(row["reward_total"] for row in metrics[-4:]) >= 0.8


@pytest.mark.slow
def test_the_loop_learns_from_a_policy_two_updates_old(tmp_path):
    """The asynchronous loop on the local engine: what is asked ahead is sampled when it is asked."""
    (tmp_path / "lagged.py").write_text(LAGGED)
    local = [
        "engine._target_=lagged.Config",
        "model.lora.rank=8",
        "eval_every=0",
        "save_every=0",
        "preflight=off",
    ]
    done = run_recipe("rl_basic", *local, *LAGGING, "logger=jsonl", "run_dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert_learnt_from_older_policies([json.loads(line) for line in lines])


LAGGED = """
from concurrent.futures import Future
from dataclasses import dataclass
from rl.engines.local import LocalEngine, LocalEngineConfig

@dataclass(frozen=True, kw_only=True)
class Config(LocalEngineConfig):
    def open(self, blueprint, tokenizer):
        return Lagged(self, blueprint, tokenizer)

class Lagged(LocalEngine):
    max_lag = 2
    def submit(self, prompts, n, params, arrived=None):
        asked = Future()
        asked.set_result(self.sample(prompts, n, params, arrived))
        return asked
    def metrics(self):
        return {}
"""


def test_a_batch_without_any_completion_stops_the_run():
    engine = Counting(0)
    engine.submit = lambda *_: SimpleNamespace(result=lambda: [[], []])
    with pytest.raises(Stopped, match="no completion came for any of 2 problems"):
        collect(run_of(engine, 1), 1)


def test_a_signal_during_a_save_waits_for_its_end(tmp_path):
    """Else the step just trained would be saved again as the one before it."""

    def save_state(name):
        os.kill(os.getpid(), signal.SIGTERM)
        future = Future()
        future.set_result(SimpleNamespace(path="tinker://m/weights/s"))
        return future

    engine = object.__new__(TinkerEngine)
    engine.service = SimpleNamespace(base_model="tiny", save_adapter=lambda learner, name: "tinker://m/a")
    engine.base, engine.ledger, engine._learner = "tiny", Ledger(), SimpleNamespace(save_state=save_state)
    with signals.handled(), signals.safe_points():
        engine.save(tmp_path)
        with pytest.raises(signals.Interrupted):
            signals.check()
    assert json.loads((tmp_path / "tinker.json").read_text())["state"] == "tinker://m/weights/s"


def replayed(folder: Path, *arguments: str):
    """The recorded run, or a part of it, as a user's command; the replaying server and the rows of metrics.jsonl."""
    with Replay(RECORDING) as server:
        done = run_recipe(
            "rl_basic", *RUN, "run_dir=run", *arguments, cwd=folder, environment=environment(server.url)
        )
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return done, server, [json.loads(line) for line in lines]


def test_the_recorded_run(tmp_path):
    """Two GRPO steps that a SkyRL server took: rewards, ratios and counts are ours, gradients were the server's."""
    done, server, rows = replayed(tmp_path)
    assert done.returncode == 0, done.stderr
    assert not server.unknown
    assert server.seen["forward_backward"] == server.seen["optim_step"] == 2
    assert server.seen["asample"] == 2 * 4 and server.seen["save_weights"] == 2
    assert [row["reward_total"] for row in rows] == [0.375, 0.8125]
    assert rows[0]["grad_norm"] == pytest.approx(0.4310161, abs=1e-6)
    for row in rows:
        assert row["ratio/min"] == pytest.approx(1, abs=1e-4) and row["ratio/max"] == pytest.approx(
            1, abs=1e-4
        )
        assert row["trust/kl_max"] < 1e-8 and row["dropped_groups"] == row["lag/max"] == 0
    # By hand: 848 + 692 prompt tokens and 887 + 717 sampled ones, each row trained once.
    assert rows[1]["cost/prefill_tokens"] == 1540 and rows[1]["cost/sample_tokens"] == 1604
    assert rows[1]["cost/train_tokens"] == 1540 + 1604

    from peft import PeftConfig

    config = PeftConfig.from_pretrained(str(tmp_path / "run" / "final"))
    assert config.r == 1 and len(config.target_modules) == 7 and config.task_type == "CAUSAL_LM"
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in files), "the key must not leave the process"


def test_the_price_limit_saves_and_stops(tmp_path):
    """At 1 USD per million tokens the first step cost 848+887+1735 = 3470 tokens; the second could cost as much again."""
    prices = "engine.prices={prefill: 1, sample: 1, train: 1}"
    done, _, rows = replayed(tmp_path, prices, "engine.max_usd=0.0055")
    assert done.returncode == 2 and len(rows) == 1
    assert rows[0]["cost/usd"] == pytest.approx(0.00347)
    assert "engine.max_usd=0.0055: 0.0035 USD are spent" in done.stderr and done.stderr.count("\n") == 1
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed" and status["step"] == 1 and "max_usd" in status["reason"]
    saved = json.loads((tmp_path / "run" / "checkpoints" / "step-000001" / "tinker.json").read_text())
    assert saved["tokens"] == {"prefill": 848, "sample": 887, "train": 1735}


def test_a_service_that_is_not_there_is_one_line_at_once(tmp_path):
    done = run_recipe(
        "rl_basic", *RUN, "run_dir=run", cwd=tmp_path, environment=environment("http://127.0.0.1:9")
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "TINKER_BASE_URL=http://127.0.0.1:9: nothing answers there" in done.stderr


def test_a_model_the_service_lacks_is_named(tmp_path):
    with Replay(RECORDING) as server:
        done = run_recipe(
            "rl_basic",
            *RUN,
            "engine.base_model=tinny",
            "run_dir=run",
            cwd=tmp_path,
            environment=environment(server.url),
        )
    assert done.returncode == 2
    assert "engine.base_model=tinny: the service does not offer this model; did you mean tiny?" in done.stderr
