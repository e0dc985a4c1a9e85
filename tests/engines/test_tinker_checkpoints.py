"""`recipes.checkpoints` on one path of the service, without a run here: against a recorded server."""

from __future__ import annotations

import json

import pytest

from tests.helpers.recipes import ROOT, run_recipe
from tests.helpers.tinker_server.record import RECORDING, environment
from tests.helpers.tinker_server.replay import Replay

ADAPTER = "tinker://model_47f8518c/sampler_weights/step-000002-116f84"


def checkpoints(folder, *arguments: str):
    with Replay(RECORDING) as server:
        return run_recipe("checkpoints", *arguments, cwd=folder, environment=environment(server.url))


def test_an_adapter_is_downloaded_by_its_path_and_merged(tmp_path):
    done = checkpoints(tmp_path, f"path={ADAPTER}", "action=download", "out=adapter")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "adapter: adapter\n"
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert len(config["target_modules"]) == 7 and config["task_type"] == "CAUSAL_LM"
    merged = run_recipe("merge_adapter", "adapter=adapter", f"base={ROOT / 'assets/tiny'}", cwd=tmp_path)
    assert merged.returncode == 0, merged.stderr
    assert (tmp_path / "adapter-merged" / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "run=null: expected a run of engine=tinker"),
        (["action=delete"], "run=null: expected a run of engine=tinker"),
        (
            ["path=model_1/a/b", "action=download", "out=x"],
            "path=model_1/a/b: expected tinker://RUN/KIND/NAME",
        ),
        ([f"path={ADAPTER}"], "expected with action=download or action=delete"),
        ([f"path={ADAPTER}", "action=download", "step=2"], "in place of step="),
        ([f"path={ADAPTER}", "action=download"], "out=null: "),
        (
            ["path=tinker://model_1/weights/a", "action=download", "out=x"],
            "not an adapter; type tinker://RUN/",
        ),
        (["run=run", "action=download"], "step=null: action=download needs a step or a path"),
    ],
)
def test_a_mistake_is_one_line(arguments, words, tmp_path):
    done = run_recipe("checkpoints", *arguments, cwd=tmp_path, environment={"TINKER_API_KEY": ""})
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
