"""engine=tinker against a real server, SkyRL on this CPU: `make test-tinker` (installs about 6 GB the first time)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engines.test_tinker import LAGGING, assert_learnt_from_older_policies
from tests.helpers.recipes import ROOT, run_recipe
from tests.helpers.tinker_server import serve
from tests.helpers.tinker_server.proxy import Proxy
from tests.helpers.tinker_server.record import environment

pytestmark = pytest.mark.timeout(3000)

PORT = 8765
TRAIN = [
    "engine=tinker", "engine.base_model=tiny", "engine.reduction=seq_mean", "engine.overlap=false", "model.lora.rank=8",
    "eval_every=0", "preflight=off", "logger=jsonl", "learning_rate=2e-3", "run_dir=run",
]  # fmt: skip
SMALL = [*TRAIN, "batch_size=4", "group_size=4", "max_steps=2", "save_every=1"]


@pytest.fixture(scope="session")
def server():
    """A running SkyRL server's address; TANKA_TINKER_SERVER names one that runs already."""
    if url := os.environ.get("TANKA_TINKER_SERVER"):
        yield url
        return
    if not os.environ.get("TANKA_TEST_TINKER"):
        pytest.skip("needs a server: make test-tinker")
    if serve.python312() is None:
        pytest.skip("needs Python 3.12 for the server (e.g. pyenv install 3.12)")
    serve.install()
    running = serve.start(PORT)
    yield f"http://127.0.0.1:{PORT}"
    serve.stop(running)


@pytest.fixture(scope="session")
def proxied(server):
    """The server as the newest SDK can speak to it."""
    with Proxy(server) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def no_faults_left(request):
    yield
    if "proxied" in request.fixturenames:
        proxy = request.getfixturevalue("proxied")
        proxy.faults.clear()
        proxy.seen.clear()


def train(
    folder: Path, url: str, *arguments: str, sdk: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`rl_basic` as a user runs it; `sdk` is a folder with another version of the SDK."""
    return run_recipe("rl_basic", *arguments, cwd=folder, path=sdk, environment=environment(url))


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def check_engine(folder: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    common = ["engine.base_model=tiny", "model.lora.rank=8"]
    return run_recipe("check_engine", *common, *arguments, cwd=folder, environment=environment(url))


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "flashreinforce"])
def test_a_step_there_is_the_step_here(loss, proxied, tmp_path, monkeypatch):
    """Cosine at least 0.9999, norm within 1e-3, log-probabilities within 1e-4, the gate's verdicts the same."""
    from rl.blueprint import blueprint_from
    from rl.data.problems import load
    from rl.engines.tinker.conformance import compare

    for name, value in environment(proxied.url).items():
        monkeypatch.setenv(name, value)
    blueprint = blueprint_from(composed("check_engine", f"loss={loss}", "batch_size=4", "group_size=4"))
    found = compare(blueprint, load(blueprint.data, blueprint.seed))
    assert found.cosine >= 0.9999 and abs(found.norm_ratio - 1) <= 1e-3
    assert max(found.sampler_drift, found.learner_drift) <= 1e-4
    assert found.admitted == ((12, 12) if loss == "flashreinforce" else (16, 16))
    assert not found.overlaps, "SkyRL's JAX backend samples and trains in one place"


def composed(recipe: str, *overrides: str) -> dict:
    """The resolved config of a recipe on the embedded model."""
    from hydra import compose, initialize_config_dir

    from recipes.cli.compose import CONF, register_resolvers, resolved

    register_resolvers()
    tiny = ["engine.base_model=tiny", "engine.reduction=seq_mean", "++model.lora.rank=8"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return resolved(compose(recipe, [*tiny, *overrides]))


def test_the_check_names_what_to_type(proxied, tmp_path):
    done = check_engine(tmp_path, proxied.url)
    assert done.returncode == 1 and "type engine.reduction=seq_mean" in done.stdout


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(server, tmp_path):
    """SIGTERM after step 2 of 4: rewards, lengths and gradients of steps 3 and 4 are those of a run that was left alone."""
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    straight.mkdir(), cut.mkdir()
    settings = [*SMALL, "max_steps=4", "save_every=0"]
    done = train(straight, server, *settings, sdk=serve.SDK)
    assert done.returncode == 0, done.stderr
    python_path = f"{serve.SDK}{os.pathsep}{ROOT}"
    started = subprocess.Popen(
        [sys.executable, "-m", "recipes.rl_basic", *settings],
        cwd=cut,
        env=os.environ | environment(server) | {"PYTHONPATH": python_path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    log = cut / "run" / "metrics.jsonl"
    while not (log.exists() and log.read_text().count("\n") == 2):
        assert started.poll() is None
        time.sleep(0.05)
    started.send_signal(signal.SIGTERM)
    assert started.wait(120) == 143
    done = train(cut, server, *settings, sdk=serve.SDK)
    assert done.returncode == 0, done.stderr
    for before, after in zip(rows(straight), rows(cut), strict=True):
        for name in ("step", "reward_total", "tokens/mean", "grad_norm", "ratio/max"):
            assert after[name] == pytest.approx(before[name], rel=1e-3), name


def test_learns_is_interrupted_resumes_and_brings_its_adapter_home(server, tmp_path):
    """With the SDK that self-hosted servers speak: reward 0.1 to at least 0.8; the adapter scores as the server does."""
    sizes = ["batch_size=12", "group_size=6", "save_every=2"]
    first = train(tmp_path, server, *TRAIN, *sizes, "max_steps=3", sdk=serve.SDK)
    assert first.returncode == 0, first.stderr
    second = train(tmp_path, server, *TRAIN, *sizes, "max_steps=8", sdk=serve.SDK)
    assert second.returncode == 0, second.stderr
    metrics = rows(tmp_path)
    assert [row["step"] for row in metrics] == list(range(1, 9))
    assert metrics[0]["reward_total"] < 0.3 and max(row["reward_total"] for row in metrics[-3:]) >= 0.8
    listed = run_recipe(
        "checkpoints", "run=run", cwd=tmp_path, path=serve.SDK, environment=environment(server)
    )
    assert listed.returncode == 0 and "gone" not in listed.stdout, listed.stderr
    assert "weights/step-000004" in listed.stdout, "what keep_last left behind there"
    download = ["run=run", "action=download", "step=8", "out=again"]
    brought = run_recipe(
        "checkpoints", *download, cwd=tmp_path, path=serve.SDK, environment=environment(server)
    )
    assert brought.returncode == 0, brought.stderr
    final = (tmp_path / "run" / "final" / "adapter_model.safetensors").read_bytes()
    assert (tmp_path / "again" / "adapter_model.safetensors").read_bytes() == final
    deleted = run_recipe(
        "checkpoints",
        "run=run",
        "action=delete",
        "step=6",
        cwd=tmp_path,
        path=serve.SDK,
        environment=environment(server),
    )
    assert deleted.returncode == 0 and deleted.stdout.count("deleted:") == 2, deleted.stderr
    listed = run_recipe(
        "checkpoints", "run=run", cwd=tmp_path, path=serve.SDK, environment=environment(server)
    )
    assert listed.returncode == 0 and listed.stdout.count("gone") == 2, listed.stdout
    compared = subprocess.run(
        [sys.executable, "-c", SCORE, str(tmp_path / "run")],
        env=os.environ | environment(server) | {"PYTHONPATH": f"{serve.SDK}{os.pathsep}{ROOT}"},
        text=True,
        capture_output=True,
    )
    assert compared.returncode == 0 and float(compared.stdout.split()[-1]) < 1e-4, compared.stderr


# The largest difference between the server's own log-probabilities of a text and those of the adapter in peft.
SCORE = """
import json, sys
from pathlib import Path
import tinker, torch
from rl.models.adapters import load_adapter
from rl.engines.tinker.calls import finished
run = Path(sys.argv[1])
saved = json.loads((run / "checkpoints" / "step-000008" / "tinker.json").read_text())
ids = list(range(300, 340))
sampler = finished(tinker.ServiceClient().create_sampling_client(model_path=saved["adapter"]))
there = finished(sampler.compute_logprobs(tinker.ModelInput.from_ints(ids)))
model = load_adapter(run / "final", None, torch.device("cpu"))
with torch.no_grad():
    here = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
print(max(abs(a - b) for a, b in zip(there[-len(ids) + 1 :], here.tolist(), strict=True)))
"""


@pytest.mark.parametrize("loss", ["dr_grpo", "flashreinforce"])
def test_the_other_losses_learn(loss, proxied, tmp_path):
    sizes = {"dr_grpo": ["batch_size=12", "group_size=6"], "flashreinforce": ["batch_size=72"]}[loss]
    done = train(tmp_path, proxied.url, *TRAIN, f"loss={loss}", *sizes, "max_steps=5", "save_every=0")
    assert done.returncode == 0, done.stderr
    rewards = [row["reward_total"] for row in rows(tmp_path)]
    assert max(rewards[-2:]) > rewards[0] + 0.2


def test_learns_from_a_policy_two_updates_old(proxied, tmp_path):
    """The lag, the ratios and the gate's share are logged, and the reward still reaches the bar."""
    done = train(tmp_path, proxied.url, *TRAIN, *LAGGING, "engine.max_lag=2", "save_every=0")
    assert done.returncode == 0, done.stderr
    assert_learnt_from_older_policies(rows(tmp_path))


def test_a_bad_connection_costs_time_and_nothing_else(proxied, tmp_path):
    """Dropped, lost, slow, 429 and 500: the SDK asks again, the server takes each step once, and the numbers agree."""
    plain, rough = tmp_path / "plain", tmp_path / "rough"
    plain.mkdir(), rough.mkdir()
    assert train(plain, proxied.url, *SMALL).returncode == 0
    proxied.faults |= {
        "asample": ["drop", "429", "500", "slow", "lose"],
        "forward_backward": ["lose", "500"],
        "optim_step": ["lose", "drop"],
        "retrieve_future": ["500", "drop", "lose", "slow"],
        "save_weights_for_sampler": ["500", "drop"],
        "save_weights": ["429"],
    }
    done = train(rough, proxied.url, *SMALL)
    assert done.returncode == 0, done.stderr
    assert not any(proxied.faults.values()), "every fault was met"
    for before, after in zip(rows(plain), rows(rough), strict=True):
        for name in ("reward_total", "tokens/mean", "grad_norm", "ratio/max", "dropped_groups"):
            assert after[name] == pytest.approx(before[name], rel=1e-3), name


def test_too_few_completions_drop_the_group(proxied, tmp_path):
    """Of four groups one comes short at each of its two tries; the step learns from the other three."""
    proxied.faults["asample"] = ["fewer", "pass", "pass", "pass", "fewer"]
    done = train(tmp_path, proxied.url, *SMALL, "max_steps=1", "engine.attempts=2")
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path)[0]["dropped_groups"] == 1
    assert "4 completions were requested, 3 came" in (tmp_path / "run" / "train.log").read_text()


def test_a_server_that_answers_nothing_ends_the_run_with_a_checkpoint_and_a_reason(server, proxied, tmp_path):
    """Step 1 is trained and saved, no group of step 2 comes; the same command then trains step 2, once."""
    proxied.faults["asample"] = ["pass"] * 4 + ["fewer"] * 4
    done = train(tmp_path, proxied.url, *SMALL, "save_every=0", "engine.attempts=1")
    assert done.returncode == 2 and "no completions for any of the 4 problems" in done.stderr
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["step"]) == ("failed", 1)
    assert (tmp_path / "run" / "checkpoints" / "step-000001" / "tinker.json").is_file()
    done = train(tmp_path, proxied.url, *SMALL, "save_every=0")
    assert done.returncode == 2 and "tinker==0.25.0" in done.stderr, (
        "SkyRL does not restore for the newest SDK"
    )
    done = train(tmp_path, server, *SMALL, "save_every=0", sdk=serve.SDK)
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in rows(tmp_path)] == [1, 2]


def test_a_server_that_dies_ends_the_run_with_a_reason(server, tmp_path):
    """It goes away in the middle of step 2; the step before it was saved, and the same command goes on from there."""
    (tmp_path / "sitecustomize.py").write_text(
        "import rl.engines.tinker.calls as calls\ncalls.LOOK_SECONDS, calls.SILENT_SECONDS = 0.5, 3.0\n"
    )
    with Proxy(server) as proxy:
        proxy.faults["optim_step"] = ["pass", "die"]
        done = train(tmp_path, proxy.url, *SMALL, sdk=tmp_path)
        assert done.returncode == 2 and "has not answered for" in done.stderr
        assert done.stderr.count("\n") == 1
    done = train(tmp_path, server, *SMALL, sdk=serve.SDK)
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in rows(tmp_path)] == [1, 2]
