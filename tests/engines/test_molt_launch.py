"""engine=molt as a user runs it, with a process that stands in for Molt: the record, faults, signals, resuming."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rl.engines.molt.job import checkpoint_step
from tests.helpers.forked import Forked, start, status
from tests.helpers.molt.stand_in import write_stand_in

SETTINGS = (
    "engine=molt", "engine.python=./python", "loss=flashreinforce", "data.max_prompt_tokens=80", "data.train_size=10",
    "data.test_size=4", "batch_size=4", "max_steps=null", "epochs=2", "save_every=2", "eval_every=2", "logger=jsonl",
)  # fmt: skip
STEPS = 6  # two passes over 10 problems in batches of 4, 4 and 2


@pytest.fixture
def folder(tmp_path) -> Path:
    write_stand_in(tmp_path)
    return tmp_path


def run(folder: Path, *more: str, **plan: object) -> Forked:
    return start(
        "rl_basic",
        *SETTINGS,
        "run_dir=run",
        *more,
        cwd=folder,
        environment={"MOLT_STAND_IN": json.dumps(plan)},
    )


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


def one_line(process: Forked) -> str:
    assert process.wait() == 2, process.err
    assert process.err.startswith("error: ") and len(process.err.splitlines()) == 1, process.err
    return process.err


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie that nobody waits for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_run_fills_the_run_directory(folder):
    process = run(folder)
    assert process.wait() == 0, process.err
    found = rows(folder)
    assert [row["step"] for row in found] == [*range(1, STEPS + 1)]
    assert (
        found[0]["reward_total"] == 0.51 and found[0]["tokens/mean"] == 20.5 and found[0]["grad_norm"] == 0.5
    )
    assert (
        found[0]["trust/admitted"] == 0.75 and found[0]["molt/vllm_kl"] == 1e-4 and found[0]["budget"] == 64
    )
    assert found[0]["eval/reward_total"] == 0.25 and "eval/reward_total" not in found[1]
    assert found[0]["molt/kl"] is None  # NaN
    assert status(folder / "run")["state"] == "finished" and status(folder / "run")["step"] == STEPS
    assert {path.name for path in (folder / "run/final").iterdir()} >= {
        "model.safetensors",
        "renderer.txt",
        "README.md",
    }
    assert (folder / "run/report.html").is_file()
    assert "1 + 1?" in (folder / "run/samples.jsonl").read_text()
    assert "is_filter_ratio=1.000" in process.out  # Molt's warnings are shown
    assert "Global step 1" in (folder / "run/molt/output.log").read_text()

    again = run(folder)
    assert again.wait() == 0 and "is finished" in again.out and len(rows(folder)) == STEPS


def test_the_job_gets_the_data_the_agent_and_the_variables(folder):
    from datasets import load_from_disk

    assert run(folder, "engine.ray=start").wait() == 0
    started = json.loads((folder / "run/molt/started.json").read_text())
    flags, environment = started["flags"], started["environment"]
    assert environment["RAY_ADDRESS"] == "local" and environment["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    train = load_from_disk(flags["data.prompt_dataset"])
    assert len(train) == 10 == int(flags["data.max_samples"])
    assert flags["data.input_key"] == "prompt" and flags["data.label_key"] == "reward_model"
    assert train[0]["prompt"][-1]["role"] == "user" and "\\boxed{" in train[0]["prompt"][-1]["content"]
    problem = json.loads(train[0]["reward_model"]["problem"])
    assert problem["answer"] == train[0]["reward_model"]["ground_truth"]
    assert train[0]["datasource"] == "word_problems" and len(load_from_disk(flags["eval.dataset"])) == 4
    assert Path(flags["train.agent_path"]).is_file()
    shell = (folder / "run/molt/launch.sh").read_text()
    words = shlex.split(shell.replace("\\\n", " "))
    assert [word for word in words if word.startswith("--")] == [f"--{name}" for name in flags]


@pytest.mark.slow
def test_a_failure_is_one_line_with_molts_words_and_the_same_command_resumes(folder):
    assert "CUDA out of memory" in one_line(run(folder, fail_at=4))
    assert status(folder / "run")["state"] == "failed" and len(rows(folder)) == 3
    assert checkpoint_step(folder / "run/molt/state") == 2
    process = run(folder)
    assert process.wait() == 0, process.err
    assert [row["step"] for row in rows(folder)] == [*range(1, STEPS + 1)]  # step 3 was trained again
    assert (folder / "run/molt/output.log").read_text().count("Global step 3") == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_job_and_its_processes(number, folder):
    process = run(folder, hang_at=4)
    process.wait_for(folder / "run/molt/actor.pid")
    while len(rows(folder)) < 3:
        time.sleep(0.05)
    os.kill(process.process.pid, number)
    assert process.wait() == 128 + number
    assert gone(int((folder / "run/molt/actor.pid").read_text()))
    assert status(folder / "run")["state"] == "interrupted" and status(folder / "run")["step"] == 3
    assert "type the same command with run_dir=" in process.out
    assert run(folder).wait() == 0 and rows(folder)[-1]["step"] == STEPS


@pytest.mark.slow
def test_the_job_does_not_outlive_a_killed_run(folder):
    process = run(folder, hang_at=1)
    process.wait_for(folder / "run/molt/actor.pid")
    job = int(subprocess.run(
        ["ps", "-o", "ppid=", "-p", (folder / "run/molt/actor.pid").read_text()], capture_output=True, text=True
    ).stdout)  # fmt: skip
    os.kill(process.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while not gone(job) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(job)
    os.kill(int((folder / "run/molt/actor.pid").read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_a_job_that_ends_without_weights_or_words_is_named(folder):
    assert "ended without weights" in one_line(run(folder, no_export=True))
    assert "exit code 7 after step 0" in one_line(run(folder, "run_dir=other", silent_exit=7))


MISSING = {"molt": "0.2.1", "ray": "2.59.0", "vllm": "0.32.0", "nemo_automodel": "0.5.0"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"packages": MISSING | {"molt": None}}, "the package molt-rl is not installed"),
        ({"packages": MISSING | {"ray": None}}, "the package ray is not installed"),
        ({"packages": MISSING | {"vllm": None}}, "the package vllm is not installed"),
        ({"packages": MISSING | {"nemo_automodel": None}}, "the package nemo_automodel is not installed"),
        ({"missing": "datasets"}, "the package datasets is not installed"),
        ({"cluster": "Could not find any running Ray instance."}, "type engine.ray=start"),
        ({"gpus": 4}, "these need 8 GPUs, and the Ray cluster has 4"),
        ({"accepted": False, "words": "unrecognized arguments: --actor.lora_dim 8"}, "came with molt-rl 0.1.10"),
        ({"accepted": False, "words": "--train.force_on_policy requires --train.max_epochs 1"}, "refuses the command"),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_line_before_anything_starts(answer, words, folder):
    assert words in one_line(run(folder, answer=answer))
    assert not (folder / "run").exists()


def test_a_python_that_is_none_is_one_line(folder):
    assert "cannot be run" in one_line(run(folder, "engine.python=/no/python"))
    assert "docs/molt.md" in one_line(run(folder, "engine.python=/bin/true"))
