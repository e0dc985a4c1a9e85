"""engine=trl: what it learns equals engine=local, in one process and in two, interrupted or not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.forked import Forked, set_up, start, status, timeless
from tests.helpers.recipes import ROOT, free_port

# With eps=1 a step is smooth in the gradient (AdamW's usual eps turns rounding into whole steps), and big enough to see.
SETTINGS = (
    "model.path=model", "learning_rate=0.5", "optimizer.eps=1.0", "+rewards.chance._target_=saboteur.chance",
    "data.train_size=20", "data.test_size=3", "max_tokens=8", "eval_every=2", "eval_problems=3", "logger=none",
    "samples_per_step=2", "engine.gradient_checkpointing=false", "device=cpu",
)  # fmt: skip
# Neither on Molt or Tinker nor with tools, which the small models' template does not render.
SINGLE_TURN = sorted(
    path.stem
    for path in (ROOT / "conf/experiment").glob("[!mt]*.yaml")
    if "environment" not in path.read_text(encoding="utf-8")
)
FULL = "model.lora=null"
LOSSES = {
    "grpo": ("loss=grpo", "batch_size=4", "group_size=3", FULL),
    "dr_grpo": (
        "loss=dr_grpo",
        "batch_size=4",
        "group_size=3",
        "loss.updates_per_batch=2",
        "optimizer.schedule=linear",
        "optimizer.warmup=0.3",
        FULL,
    ),
    "kl": (
        "loss=grpo",
        "loss.kl_beta=0.5",
        "loss.updates_per_batch=2",
        "batch_size=4",
        "group_size=3",
        "model.lora.rank=4",
    ),
    "icepop": (
        "loss=dapo",
        "loss.correction=icepop",
        "loss.updates_per_batch=2",
        "batch_size=4",
        "group_size=3",
        FULL,
    ),
    "flashreinforce": ("loss=flashreinforce", "batch_size=12", "loss.negative_token_fraction=0.5"),
}
CLOSE = {"rel": 1e-5, "abs": 1e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_random_model) -> Path:
    folder = tmp_path_factory.mktemp("trl")
    set_up(folder, *tiny_random_model())
    return folder


def launch(
    folder: Path, name: str, *settings: str, processes: int = 1, everywhere: bool = False, **leader: str
) -> list[Forked]:
    """The processes of `accelerate launch -m recipes.rl_basic engine=trl ...`, as its launcher would start them.

    leader: environment variables of rank 0, or of all `everywhere`.
    """
    port, started = free_port(), []
    for rank in range(processes):
        environment = {"NAN_STEPS": "0", **(leader if rank == 0 or everywhere else {})}
        if processes > 1:
            environment |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
                "MASTER_ADDR": "localhost", "MASTER_PORT": str(port),
            }  # fmt: skip
        arguments = (*SETTINGS, *settings, f"run_dir={name}")
        started.append(start("rl_basic", *arguments, cwd=folder, environment=environment))
    return started


def finish(processes: list[Forked]) -> None:
    """Waits until all have ended well; one that fails takes the others with it, as under a launcher."""
    try:
        for process in processes:
            assert process.wait(250) == 0, process.err
    finally:
        for process in processes:
            process.process.kill()


def same(first: Path, second: Path) -> None:
    """The same metrics, samples and weights, up to rounding."""
    rows = list(zip(timeless(first), timeless(second), strict=True))
    assert rows
    for mine, theirs in rows:
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            close = {**CLOSE, "rel": 1e-4} if key.startswith("ratio/") else CLOSE  # exp() of a difference
            assert theirs[key] == (value if value is None else pytest.approx(value, **close)), key
    assert (first / "samples.jsonl").read_text() == (second / "samples.jsonl").read_text()
    mine, theirs = weights(first / "final"), weights(second / "final")
    assert mine.keys() == theirs.keys()
    for name, weight in mine.items():
        torch.testing.assert_close(weight, theirs[name], rtol=0, atol=1e-5)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


@pytest.fixture(
    scope="module",
    params=[
        "flashreinforce",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("grpo", "dr_grpo", "kl", "icepop")),
    ],
)
def runs(request, folder) -> tuple[Path, Path, Path]:
    """One blueprint on engine=local, on engine=trl in one process, and in two."""
    loss = LOSSES[request.param]
    names = [f"{request.param}-{kind}" for kind in ("local", "one", "two")]
    finish(launch(folder, names[0], *loss, "max_steps=3", "save_every=1", "keep_last=9", "engine=local"))
    finish(
        launch(
            folder,
            names[1],
            *loss,
            "max_steps=3",
            "save_every=1",
            "keep_last=9",
            "engine=trl",
            "engine.microbatch_rows=3",
        )
    )
    finish(
        launch(
            folder,
            names[2],
            *loss,
            "max_steps=3",
            "save_every=1",
            "keep_last=9",
            "engine=trl",
            "engine.microbatch_rows=4",
            processes=2,
        )
    )
    return folder / names[0], folder / names[1], folder / names[2]


def test_it_learns_what_engine_local_learns(runs):
    """A step moves the weights by about the learning rate times the gradient: equal weights are equal gradients."""
    local, one, _ = runs
    assert all(row["grad_norm"] > 1e-2 and not row["skipped"] for row in timeless(one))
    before, after = weights(one / "checkpoints/step-000001"), weights(one / "final")
    assert max((after[name] - weight).abs().max().item() for name, weight in before.items()) > 1e-3
    same(local, one)


def test_two_processes_learn_what_one_learns(runs):
    _, one, two = runs
    same(one, two)


def test_a_number_that_is_not_finite_on_one_process_moves_no_weights_on_any(folder):
    settings = (
        "batch_size=4",
        "group_size=2",
        FULL,
        "loss._target_=saboteur.NaNLoss",
        "optimizer.weight_decay=0.1",
    )
    kept = ("max_steps=3", "save_every=1", "keep_last=9", "engine=trl")
    finish(launch(folder, "spoilt", *settings, *kept, processes=2, NAN_STEPS="2"))
    assert [row["skipped"] for row in timeless(folder / "spoilt")] == [0, 1, 0]
    first, second, third = (weights(folder / f"spoilt/checkpoints/step-{step:06d}") for step in (1, 2, 3))
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())
    assert not all(torch.equal(weight, third[name]) for name, weight in first.items())


def test_a_batch_without_signal_moves_no_weights(folder):
    settings = (
        "batch_size=4",
        "group_size=2",
        FULL,
        "optimizer.weight_decay=0.1",
        "+rewards.chance.weight=0.0",
    )
    finish(launch(folder, "flat", *settings, "max_steps=1", "engine=trl"))
    (row,) = timeless(folder / "flat")
    assert (row["skipped"], row["nonfinite"], row["grad_norm"]) == (1, 0, 0)
    before, after = weights(folder / "model"), weights(folder / "flat/final")
    assert all(torch.equal(before[name], weight) for name, weight in after.items())


@pytest.mark.slow
@pytest.mark.parametrize("experiment", SINGLE_TURN)
def test_the_published_recipes_run(experiment, folder):
    """Their losses, rewards, adapters and schedules, with a small model on generated problems."""
    small = (
        "data=word_problems",
        "data.train_size=200",
        "data.test_size=3",
        "batch_size=4",
        "max_tokens=8",
        "max_steps=2",
    )
    group = () if "flash" in experiment else ("group_size=2",)
    settings = (
        f"experiment={experiment}",
        "engine=trl",
        "model=custom",  # their models' end tokens are not in its vocabulary
        "model.path=model",
        *small,
        *group,
        "logger=none",
        "device=cpu",
    )
    process = start(
        "rl_basic",
        *settings,
        f"run_dir={experiment}",
        "preflight=off",
        "data.max_prompt_tokens=null",
        cwd=folder,
    )
    assert process.wait(250) == 0, process.err
    assert len(timeless(folder / experiment)) == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_signal_while_they_sample_ends_both_and_saves_the_step_before(folder):
    """SIGTERM to both processes, as a launcher passes it on, from inside step 2's sampling; then the run goes on."""
    settings = (
        *LOSSES["flashreinforce"],
        "engine=trl",
        "max_steps=3",
        "save_every=0",
        "preflight=off",
        "eval_every=0",
    )
    finish(launch(folder, "calm", *settings, processes=2))
    both = launch(
        folder, "called", *settings, processes=2, SABOTAGE=f"draw:9:{signal.SIGTERM:d}", everywhere=True
    )
    codes = [process.wait() for process in both]
    assert codes == [128 + signal.SIGTERM, 0], both[0].err + both[1].err
    assert (status(folder / "called")["state"], status(folder / "called")["step"]) == ("interrupted", 1)
    assert (folder / "called/checkpoints/step-000001").is_dir()
    finish(launch(folder, "called", *settings, processes=2))
    assert timeless(folder / "called") == timeless(folder / "calm")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_process_that_dies_ends_the_run_with_a_line(folder):
    settings = (*LOSSES["flashreinforce"], "engine=trl", "max_steps=400", "save_every=1", "preflight=off")
    first, second = launch(folder, "dying", *settings, processes=2)
    first.wait_for(folder / "dying/checkpoints/step-000001")
    os.kill(second.process.pid, signal.SIGKILL)
    assert first.wait() == 2, first.err
    assert first.err.splitlines()[-1].startswith("error: another process of this launch has ended"), first.err
    assert "Traceback" not in first.err
    assert status(folder / "dying")["state"] == "failed"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_longer_run_has_the_rates_of_its_whole_length(folder):
    """Extended from 2 steps to 4 after its linear schedule had ended: the third step is that of engine=local."""
    settings = (*LOSSES["grpo"], "optimizer.schedule=linear", "save_every=1", "preflight=off")
    for engine in ("local", "trl"):
        for steps in (2, 4):
            finish(launch(folder, f"longer-{engine}", *settings, f"engine={engine}", f"max_steps={steps}"))
    rates = [row["learning_rate"] for row in timeless(folder / "longer-trl")]
    assert rates[2:] == pytest.approx([0.5 * 2 / 4, 0.5 * 1 / 4])
    same(folder / "longer-local", folder / "longer-trl")


RESUMED = (*LOSSES["flashreinforce"], "engine=trl", "max_steps=5", "save_every=2", "model.lora.dropout=0.2")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_interrupted_processes_go_on_as_if_nothing_had_happened(folder):
    """Killed inside an epoch and asked to stop in a later one (20 problems in batches of 12: one batch an epoch)."""
    finish(launch(folder, "whole", *RESUMED, processes=2))
    killed, left_over = launch(folder, "resumed", *RESUMED, processes=2, SABOTAGE=f"log:3:{signal.SIGKILL:d}")
    assert killed.wait() == -signal.SIGKILL
    left_over.process.kill()  # as a launcher does
    left_over.process.join()
    stopped, other = launch(folder, "resumed", *RESUMED, processes=2, SABOTAGE=f"log:2:{signal.SIGTERM:d}")
    assert (stopped.wait(), other.wait()) == (128 + signal.SIGTERM, 0), stopped.err
    assert (status(folder / "resumed")["state"], status(folder / "resumed")["step"]) == ("interrupted", 4)
    finish(launch(folder, "resumed", *RESUMED, processes=2))
    assert timeless(folder / "resumed") == timeless(folder / "whole")
    assert (folder / "resumed/samples.jsonl").read_text() == (folder / "whole/samples.jsonl").read_text()
    mine, theirs = weights(folder / "resumed/final"), weights(folder / "whole/final")
    assert all(torch.equal(weight, theirs[name]) for name, weight in mine.items())
