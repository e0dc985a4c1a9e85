"""engine=molt with odd input: flags that would replace ours, a Python that does not answer, output that lies, broken files."""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from rl.engines.molt import checks
from rl.engines.molt.checkpoints import checkpoint_step
from rl.engines.molt.command import Command
from rl.engines.molt.expressible import require_expressible
from rl.engines.molt.flags import REFUSED
from rl.engines.molt.in_molt import unreachable
from rl.engines.molt.job import ending, missing_weights
from rl.engines.molt.logs import step_metrics
from rl.engines.molt.reader import SampleFiles
from rl.errors import UserError
from tests.helpers.blueprints import composed
from tests.helpers.molt.presets import command_of

MOLT = ("engine=molt", "loss=flashreinforce", "data.max_prompt_tokens=64")


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as error:
        command_of(composed(*MOLT, *overrides))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", REFUSED)
def test_flags_that_would_contradict_the_run_are_refused(name):
    assert refusal(f"+engine.flags.{name}=2").startswith(f"engine.flags.{name}: ")


def test_a_value_or_a_name_cannot_carry_another_flag():
    blueprint = composed(*MOLT)

    def refused(flags: dict, words: str) -> None:
        with pytest.raises(UserError, match=words):
            dataclasses.replace(blueprint.engine, flags=flags).command(blueprint, Path("/runs/a"))

    refused({"vllm": {"dtype": ["half", "--rollout.batch_size", "64"]}}, "cannot begin with --")
    refused({"vllm.dtype": "--train.seed=3"}, "cannot begin with --")
    for name in ("--vllm.enforce_eager", "rollout.batch_size=64", "a b", ""):
        refused({name: True}, "is not a flag's name")


def test_null_and_false_leave_a_flag_out():
    flags = command_of(
        composed(*MOLT, "+engine.flags.vllm.enforce_eager=null", "+engine.flags.vllm.block_size=false")
    ).flags
    assert not {"vllm.enforce_eager", "vllm.block_size"} & set(flags)


def test_rows_that_no_gpu_can_take_equally_are_refused():
    blueprint = composed(*MOLT, "engine.microbatch_rows=3", "engine.actor_gpus=2")
    with pytest.raises(UserError, match="does not divide the 64 rollouts"):
        require_expressible(blueprint, blueprint.engine)
    blueprint = composed(*MOLT, "engine.microbatch_rows=64", "engine.actor_gpus=2")
    require_expressible(blueprint, blueprint.engine)


def test_an_abbreviated_flag_is_not_taken_for_ours(tmp_path):
    """argparse would read rollout.batch_siz as rollout.batch_size; a package with Molt's names and such a parser."""
    (tmp_path / "ray.py").write_text("")
    cli = tmp_path / "molt/cli"
    cli.mkdir(parents=True)
    (tmp_path / "molt/__init__.py").write_text("")
    (cli / "__init__.py").write_text("")
    (cli / "train_rl_ray.py").write_text(
        "import argparse\n"
        "def train(args):\n"
        "    import molt.trainer.placement\n"
        "if __name__ == '__main__':\n"
        "    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--rollout.batch_size', type=int)\n"
        "    train(parser.parse_args())\n"
    )
    variables = {"PYTHONPATH": str(tmp_path)}

    def asked(**flags: int) -> checks.Answer:
        return checks.ask(Command(sys.executable, flags, variables, tmp_path), address=None)

    assert asked(**{"rollout.batch_size": 8}).accepted
    answer = asked(**{"rollout.batch_size": 8, "rollout.batch_siz": 4})
    assert not answer.accepted and "unrecognized arguments: --rollout.batch_siz 4" in answer.words


def test_an_address_at_which_nothing_answers_is_said_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert unreachable(address) == f"{address}: Connection refused"  # bound, but nobody listens
        taken.listen()
        assert unreachable(address) == unreachable(f"ray://{address}") == ""
    assert unreachable("auto") == unreachable("host:port") == ""
    assert unreachable("127.0.0.1:99999").startswith("127.0.0.1:99999: ")


def script(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def asked(python: str) -> str:
    with pytest.raises(UserError) as error:
        checks.ask(Command(python, {}, {}, Path()), address=None)
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000
    return str(error.value)


def test_a_python_that_hangs_is_ended_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "SECONDS", 0.5)
    python = script(tmp_path, f"sleep 600 &\necho $! > {tmp_path}/pid\nwait")
    assert "did not answer in 0.5 seconds" in asked(python)
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 20
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_python_that_is_something_else_is_one_line(tmp_path):
    assert "did not answer" in asked(script(tmp_path, r"printf '\377\376\000'; printf '\377%1000000s' x >&2"))
    assert f"is a folder; expected the Python of an environment with molt-rl; e.g. engine.python={tmp_path}/bin/python" in asked(str(tmp_path))  # fmt: skip


def test_numbers_that_are_none_are_left_out():
    step, metrics = step_metrics("Global step 2: {'version': 1.2.3, 'a': 1., 'b': 2e5, 'c': 1_0, 'd': nan}")
    assert step == 2 and math.isnan(metrics.pop("molt/d"))
    assert metrics == {"molt/a": 1.0, "molt/b": 2e5}
    assert step_metrics(f"Global step {'9' * 5000}: {{'a': 1}}") is None
    assert step_metrics("Global step ٣: {'a': 1}") is None


def test_broken_sample_rows_are_skipped(tmp_path):
    files = SampleFiles(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(b'{"split": "tr{"split": "train"}\n\xff\n{"split": "test"}\n{"spl')
    assert files.new() == [{"split": "test"}]


def checkpoint(state: Path, name: str, seconds: int, whole: bool = True) -> None:
    folder = state / "_actor" / name
    (folder / "model").mkdir(parents=True)
    if whole:
        (folder / "extra_state.pt").write_text("")
    os.utime(folder, (seconds, seconds))


def test_the_step_to_resume_from_is_molts_own_choice(tmp_path):
    latest = tmp_path / "_actor/latest"
    assert checkpoint_step(tmp_path) == 0
    checkpoint(tmp_path, "global_step2", 100)
    assert (
        checkpoint_step(tmp_path) == 2
    )  # killed before `latest` was written: Molt takes the newest complete one
    checkpoint(tmp_path, "global_step6", 150)
    checkpoint(tmp_path, "global_step8", 200, whole=False)
    for text in (b"global_step8", b"\xff\xfe", b"global_step\xc2\xb2", b"", b"global_step" + b"9" * 5000):
        latest.write_bytes(text)
        assert checkpoint_step(tmp_path) == 6
    latest.write_text("global_step2\n")
    assert checkpoint_step(tmp_path) == 2


def test_an_export_without_all_its_files_is_named(tmp_path):
    assert missing_weights(tmp_path) == ["*.safetensors"]
    (tmp_path / "model-1.safetensors").write_text("")
    assert missing_weights(tmp_path) == []
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}')
    assert missing_weights(tmp_path) == ["model-2.safetensors"]
    index.write_text('{"weight_map"')
    assert "readable" in missing_weights(tmp_path)[0]


def test_how_a_process_ended():
    assert ending(3) == "ended with exit code 3"
    assert ending(-9) == "was killed by SIGKILL (out of memory?)" and ending(-35) == "was killed by signal 35"


def test_a_new_flag_is_added_with_a_plus(tmp_path):
    from tests.helpers.recipes import run_recipe

    done = run_recipe("rl_basic", "engine=molt", "engine.flags.vllm.enforce_eager=true", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.strip().endswith("type +engine.flags.vllm.enforce_eager=true")
    typo = run_recipe("rl_basic", "rewards.corect.weight=1", cwd=tmp_path)
    assert "did you mean rewards.correct.weight? for a new key, type +rewards.corect.weight=1" in typo.stderr
