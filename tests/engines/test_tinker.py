"""engine=tinker as a user runs it: against a recorded server, without one, and with older policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.recipes import ROOT, run_recipe
from tests.helpers.tinker_server.record import RECORDING, RUN, environment
from tests.helpers.tinker_server.replay import Replay

KEY = "tml-not-a-secret"


@pytest.mark.parametrize("key", ["", "sk-abc", "tml-abc\r", "tml-a\nb", "tml-日本"])
def test_a_missing_or_foreign_key_is_one_line_before_anything_is_loaded(key, tmp_path):
    done = run_recipe(
        "rl_basic", "engine=tinker", "model.lora.rank=8", cwd=tmp_path, environment={"TINKER_API_KEY": key}
    )
    assert done.returncode == 2 and "TINKER_API_KEY" in done.stderr and done.stderr.count("\n") == 1
    assert not key or key not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("allowed", ["true", "false"])
@pytest.mark.parametrize("setting", ["top_p=0.9", "top_k=5", "min_p=0.1"])
def test_a_service_samples_the_whole_distribution(setting, allowed, tmp_path):
    arguments = [f"sampling.{setting}", f"sampling.allow_truncated_support={allowed}"]
    done = run_recipe("rl_basic", *RUN, *arguments, cwd=tmp_path, environment={"TINKER_API_KEY": KEY})
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"sampling.{setting}: a Tinker service scores the whole distribution" in done.stderr
    assert "allow_truncated_support" not in done.stderr


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
    assert [row["reward_total"] for row in rows] == [0.1875, 0.50625]
    assert rows[0]["grad_norm"] == pytest.approx(0.3445120, abs=1e-6)
    for row in rows:
        assert row["ratio/min"] == pytest.approx(1, abs=1e-4) and row["ratio/max"] == pytest.approx(
            1, abs=1e-4
        )
        assert row["trust/kl_max"] < 1e-8 and row["dropped_groups"] == row["lag/max"] == 0
    # By hand: 848 + 692 prompt tokens and 944 + 742 sampled ones, each row trained once.
    assert rows[1]["cost/prefill_tokens"] == 1540 and rows[1]["cost/sample_tokens"] == 1686
    assert rows[1]["cost/train_tokens"] == 1540 + 1686

    from peft import PeftConfig

    config = PeftConfig.from_pretrained(str(tmp_path / "run" / "final"))
    assert config.r == 1 and len(config.target_modules) == 7 and config.task_type == "CAUSAL_LM"
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in files), "the key must not leave the process"


def test_the_price_limit_saves_and_stops(tmp_path):
    """At 1 USD per million tokens the first step cost 848+944+1792 = 3584 tokens; the second could cost as much again."""
    prices = "engine.prices={prefill: 1, sample: 1, train: 1}"
    done, _, rows = replayed(tmp_path, prices, "engine.max_usd=0.0055")
    assert done.returncode == 2 and len(rows) == 1
    assert rows[0]["cost/usd"] == pytest.approx(0.003584)
    assert "engine.max_usd=0.0055: 0.0036 USD are spent" in done.stderr and done.stderr.count("\n") == 1
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed" and status["step"] == 1 and "max_usd" in status["reason"]
    saved = json.loads((tmp_path / "run" / "checkpoints" / "step-000001" / "tinker.json").read_text())
    assert saved["tokens"] == {"prefill": 848, "sample": 944, "train": 1792}


def test_a_service_that_is_not_there_is_one_line_at_once(tmp_path):
    done = run_recipe(
        "rl_basic", *RUN, "run_dir=run", cwd=tmp_path, environment=environment("http://127.0.0.1:9")
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "TINKER_BASE_URL=http://127.0.0.1:9: nothing answers there" in done.stderr


def test_a_finished_run_that_cannot_be_made_longer_yet_stays_finished(tmp_path):
    """The server is down when max_steps is raised: the run's state, config and results stay as they were."""
    gone = environment("http://127.0.0.1:9")
    replayed(tmp_path, "max_steps=1")
    before = (tmp_path / "run" / "config.yaml").read_text()
    done = run_recipe("rl_basic", *RUN, "run_dir=run", cwd=tmp_path, environment=gone)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "nothing answers there" in done.stderr and "type the same command again" in done.stderr
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["step"]) == ("finished", 1) and "nothing answers" in status["reason"]
    assert (tmp_path / "run" / "config.yaml").read_text() == before
    done = run_recipe("rl_basic", *RUN, "max_steps=1", "run_dir=run", cwd=tmp_path, environment=gone)
    assert done.returncode == 0 and "is finished, step 1" in done.stdout


@pytest.mark.parametrize("address", ["127.0.0.1:8765", "ftp://host", "http://127.0.0.1:notaport"])
def test_an_address_that_is_none_is_one_line(address, tmp_path):
    done = run_recipe("rl_basic", *RUN, "run_dir=run", cwd=tmp_path, environment=environment(address))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"TINKER_BASE_URL={address}: expected http://HOST:PORT" in done.stderr
    assert not (tmp_path / "run").exists()


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
    local = [
        "--config-dir",
        str(ROOT / "tests/helpers/conf"),
        "engine=lagged",
        "engine.max_lag=2",
        "model.lora.rank=8",
        "eval_every=0",
        "save_every=0",
        "preflight=off",
    ]
    done = run_recipe("rl_basic", *local, *LAGGING, "logger=jsonl", "run_dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert_learnt_from_older_policies([json.loads(line) for line in lines])
