"""`model.path=` and `model.id=` say where the weights lie, and nothing else about the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.recipes import ROOT, rl_basic

EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf/experiment").glob("*.yaml"))
TINY = str(ROOT / "assets/tiny")


def config(*arguments: str, cwd: Path) -> dict[str, Any]:
    result = rl_basic(*arguments, "--cfg", "job", "--resolve", cwd=cwd)
    assert result.returncode == 0, result.stderr
    return yaml.safe_load(result.stdout)


def user_files(folder: Path) -> Path:
    """A user's own --config-dir: an experiment that chooses a model, one that does not, and one with a checkpoint."""
    (folder / "my/experiment").mkdir(parents=True)
    for name, lines in {
        "chooses": "defaults: [{override /model: qwen2.5-0.5b-instruct}]\n",
        "chooses_none": "batch_size: 4\n",
        "own_path": f"model: {{path: {TINY}/../tiny}}\n",
    }.items():
        (folder / f"my/experiment/{name}.yaml").write_text(f"# @package _global_\n{lines}")
    return folder / "my"


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_keeps_its_recipe(experiment: str, tmp_path: Path) -> None:
    published = config(f"experiment={experiment}", cwd=tmp_path)
    local = config(f"model.path={TINY}", f"experiment={experiment}", cwd=tmp_path)
    assert published["model"].pop("path") is None and local["model"].pop("path") == TINY
    assert local == published


def test_another_id_keeps_the_recipe_too(tmp_path: Path) -> None:
    published = config("experiment=numina_grpo", cwd=tmp_path)
    other = config("experiment=numina_grpo", "model.id=me/mine", cwd=tmp_path)
    assert other["model"].pop("id") == "me/mine" and published["model"].pop("id")
    assert other == published


@pytest.mark.parametrize("override", ["model.path=.", "model.id=me/mine"])
def test_without_a_choice_the_embedded_models_format_is_not_used(override: str, tmp_path: Path) -> None:
    found = config(override, cwd=tmp_path)
    assert (found["model"]["name"], found["model"]["stop_tokens"]) == ("custom", [])
    assert config(override, "model=tiny", cwd=tmp_path)["model"]["name"] == "tiny"


def test_the_choices_of_a_users_own_files(tmp_path: Path) -> None:
    folder = ("--config-dir", str(user_files(tmp_path)))

    def chosen(*arguments: str) -> str:
        return config(*folder, *arguments, cwd=tmp_path)["model"]["name"]

    assert chosen("experiment=chooses", "model.path=.") == "qwen2.5-0.5b-instruct"
    assert chosen("experiment=chooses_none", "model.path=.") == "custom"
    assert chosen("experiment=chooses_none") == "tiny"
    assert chosen("experiment=own_path") == "custom"
    (tmp_path / "my/local").mkdir()
    (tmp_path / "my/local/default.yaml").write_text(
        "# @package _global_\ndefaults: [{override /model: qwen3-4b}]\n"
    )
    assert chosen("model.path=.") == "qwen3-4b"


def test_the_jobs_of_a_sweep(tmp_path: Path) -> None:
    sweep = (
        "-m",
        "--config-dir",
        str(user_files(tmp_path)),
        f"model.path={TINY}",
        "plan=true",
        "hydra.sweep.dir=s",
    )
    mixed = rl_basic(*sweep, "experiment=chooses,chooses_none", cwd=tmp_path)
    assert mixed.returncode == 2 and len(mixed.stderr.strip().splitlines()) == 1
    assert "some jobs of this sweep choose a model" in mixed.stderr and "model=custom" in mixed.stderr
    same = rl_basic(*sweep, "experiment=chooses,numina_grpo", "data=word_problems", cwd=tmp_path)
    assert same.returncode == 0, same.stderr
    assert "qwen2.5-0.5b-instruct-word_problems" in same.stdout
    assert "qwen2-0.5b-instruct-word_problems-grpo_kl-64" in same.stdout
