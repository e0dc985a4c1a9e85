"""engine=vllm as a user runs it, against a small server that speaks vLLM's API: tests/helpers/vllm_fake.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.forked import Forked, start, status
from tests.helpers.recipes import ROOT
from tests.helpers.vllm_fake import FakeVllm

TINY = ROOT / "assets" / "tiny"
SETTINGS = (
    "engine=vllm", "batch_size=2", "group_size=2", "max_steps=3", "max_tokens=12", "eval_every=0", "preflight=off",
    "logger=jsonl", "learning_rate=1e-3", "run_dir=run", "save_every=1", "+rewards.tokens._target_=own.by_tokens",
)  # fmt: skip
# A reward that differs between completions, so that each step changes the weights.
REWARD = "def by_tokens(rollouts):\n    return [(sum(r.completion.tokens) * 0.37) % 1 for r in rollouts]\n"
LORA = ("model.lora.rank=8", "+model.lora.alpha=16")


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    with FakeVllm(TINY) as server:
        yield server


def run(folder: Path, servers: FakeVllm | list[FakeVllm], *more: str) -> Forked:
    urls = ",".join(each.url for each in (servers if isinstance(servers, list) else [servers]))
    (folder / "own.py").write_text(REWARD)
    return start("rl_basic", *SETTINGS, f"engine.servers=[{urls}]", *more, cwd=folder)


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


def one_line(process: Forked) -> str:
    assert process.wait() == 2, process.err
    assert process.err.startswith("error: ") and len(process.err.splitlines()) == 1, process.err
    return process.err


def finished(process: Forked, folder: Path, steps: int = 3) -> list[dict]:
    assert process.wait() == 0, process.err
    found = rows(folder)
    assert [row["step"] for row in found] == list(range(1, steps + 1))
    return found


@pytest.mark.parametrize("weights", [LORA, ()], ids=["lora", "full"])
def test_the_servers_sample_what_the_learner_has(fake, tmp_path, weights):
    """At lag 0 every token's ratio is 1: each version reached the server, and is gone from it at the end."""
    found = finished(run(tmp_path, fake, *weights), tmp_path)
    for row in found:
        assert abs(row["ratio/max"] - 1) < 1e-4 and abs(row["ratio/min"] - 1) < 1e-4
        assert row["publish/mismatch_max"] < 1e-4 and row["lag/max"] == 0 and row["servers/live"] == 1
    assert (tmp_path / "run/final").is_dir() and not fake.broken
    assert [path.name for path in (tmp_path / "run/vllm").iterdir()] == []
    names = [body["lora_name"] for body in fake.posts("/v1/load_lora_adapter")]
    if weights:
        assert len(set(names)) == len(names) >= 3 and not fake.adapters
        assert all(name.startswith("tanka-") for name in names)
    else:
        swaps = [
            path
            for path, _ in fake.seen
            if path in ("/pause", "/collective_rpc", "/reset_prefix_cache", "/resume")
        ]
        assert swaps[:4] == ["/pause", "/collective_rpc", "/reset_prefix_cache", "/resume"]


@pytest.mark.parametrize("weights", [LORA, ()], ids=["lora", "full"])
def test_a_lag_keeps_older_versions_until_nobody_samples_from_them(fake, tmp_path, weights):
    fake.faults["/inference/v1/generate"] = ["ok"] * 4 + ["slow"] * 12
    found = finished(run(tmp_path, fake, *weights, "engine.max_lag=1"), tmp_path)
    assert [row["lag/max"] for row in found] == [0, 1, 1]
    assert not fake.broken and not fake.adapters
    # Completions in flight keep their adapter; with full weights they go on with the new ones.
    assert (found[-1]["ratio/max"] > 1.001) == bool(weights)


@pytest.mark.parametrize("weights", [LORA, ()], ids=["lora", "full"])
def test_rollouts_are_trained_as_they_arrive(fake, tmp_path, weights):
    """engine.collect=arrival: threads sample from the published version while the learner updates."""
    more = ("engine.collect=arrival", "engine.max_lag=2", "max_steps=4")
    found = finished(run(tmp_path, fake, *weights, *more), tmp_path, 4)
    assert max(row["lag/max"] for row in found) <= 2 and not fake.broken and not fake.adapters
    assert all(row.get("publish/mismatch_max", 0) < 1e-4 for row in found)


def test_every_prompt_has_its_own_seed_and_a_run_repeats(fake, tmp_path):
    found = []
    for name in ("first", "second"):
        fake.seen.clear()
        (tmp_path / name).mkdir()
        found.append(finished(run(tmp_path / name, fake, *LORA), tmp_path / name))
        seeds = [body["sampling_params"]["seed"] for body in fake.posts("/inference/v1/generate")]
        assert all(0 <= seed < 2**31 for seed in seeds)
    for before, after in zip(*found, strict=True):
        assert all(
            before[key] == after[key] for key in ("reward_total", "tokens/mean", "grad_norm", "ratio/max")
        )


FAULTS = {
    "a dropped connection": ("/inference/v1/generate", "drop"),
    "a failing engine": ("/inference/v1/generate", "500"),
    "an abort": ("/inference/v1/generate", "abort"),
    "too few completions": ("/inference/v1/generate", "fewer"),
    "tokens without log-probabilities": ("/inference/v1/generate", "half"),
    "a completion cut by the server": ("/inference/v1/generate", "short"),
    "a dropped publish": ("/v1/load_lora_adapter", "drop"),
    "a failing publish": ("/v1/load_lora_adapter", "500"),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict:
    """The metrics of one step without faults."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with FakeVllm(TINY) as server:
        return finished(run(folder, server, *LORA, "max_steps=1"), folder, 1)[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_once_is_asked_again(fake, tmp_path, undisturbed, fault):
    """The run goes on with the same numbers as one without faults."""
    path, kind = FAULTS[fault]
    fake.faults[path] = [kind] if "publish" in fault else ["ok"] * 2 + [kind]  # after the verification
    row = finished(run(tmp_path, fake, *LORA, "max_steps=1"), tmp_path, 1)[0]
    assert not fake.faults[path], "the fault was met"
    assert [row[key] for key in ("grad_norm", "tokens/mean")] == [
        undisturbed[key] for key in ("grad_norm", "tokens/mean")
    ]


@pytest.mark.parametrize("kind", ["abort", "half", "fewer", "short"])
def test_half_answers_are_never_trained_on(fake, tmp_path, kind):
    """A server that gives nothing else ends the run; the step before is saved, and the same command goes on."""
    fake.faults["/inference/v1/generate"] = ["ok"] * 6 + [kind] * 100
    process = run(tmp_path, fake, *LORA, "save_every=0")
    error = one_line(process)
    assert (
        "tries" in error
        and {"abort": "abort", "half": "log-probabilities", "fewer": "2 completions", "short": "budget"}[kind]
        in error
    )
    assert status(tmp_path / "run")["state"] == "failed"
    assert status(tmp_path / "run")["step"] == 1 and (tmp_path / "run/checkpoints/step-000001").is_dir()
    fake.faults.clear()
    finished(run(tmp_path, fake, *LORA, "save_every=0"), tmp_path)


def test_a_server_that_lies_ends_the_run_with_what_was_measured(fake, tmp_path):
    fake.faults["/inference/v1/generate"] = ["lie"] * 100
    error = one_line(run(tmp_path, fake, *LORA))
    assert "does not sample from the weights that were published" in error and "by 0.5 in the mean" in error


@pytest.mark.parametrize(
    ("weights", "path"), [(LORA, "/v1/load_lora_adapter"), ((), "/collective_rpc")], ids=["lora", "full"]
)
def test_weights_that_never_arrive_are_noticed_at_once(fake, tmp_path, weights, path):
    """The server says 200 and samples from older weights; the step before it is saved."""
    fake.faults[path] = ["ok", "stale", "stale"]
    error = one_line(run(tmp_path, fake, *weights, "learning_rate=3e-3", "save_every=0"))
    assert "does not sample from the weights that were published" in error
    assert status(tmp_path / "run")["step"] == 1 and (tmp_path / "run/checkpoints/step-000001").is_dir()


def test_a_prefix_cache_that_is_not_reset_ends_the_run(fake, tmp_path):
    fake.faults["/reset_prefix_cache"] = ["fails"] * 9
    assert "could not reset its prefix cache" in one_line(run(tmp_path, fake))


def test_another_run_on_the_same_server_is_noticed(fake, tmp_path):
    process = run(tmp_path, fake, "max_steps=200", "save_every=0", "keep_last=1")
    process.wait_for(tmp_path / "run/metrics.jsonl")
    while not (tmp_path / "run/metrics.jsonl").read_text():
        pass
    fake.version = "tanka-other-000007"
    error = one_line(process)
    assert "another run uses it" in error or "not this run's" in error
