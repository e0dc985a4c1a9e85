"""plan=true names the file that a root key comes from, also through files that extend others."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir

from recipes.cli.compose import CONF, Composed, register_resolvers, resolved
from recipes.cli.plan import Origins, blueprint_tree
from tests.helpers.blueprints import options
from tests.helpers.recipes import run_recipe


def composed(*overrides: str) -> Composed:
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3", job_name="rl_basic"):
        config = compose("rl_basic", list(overrides), return_hydra_config=True)
    choices = {str(k): str(v) for k, v in config.hydra.runtime.choices.items() if "hydra/" not in str(k)}
    del config.hydra
    return Composed(resolved(config), config, list(overrides), choices, None)


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_has_a_tree(experiment):
    blueprint_tree(composed(f"experiment={experiment}"))


def test_a_key_of_an_extended_experiment_names_the_chosen_one():
    choice = composed("experiment=molt_flashreinforce_r1")
    origins, raw = Origins(choice), choice.tree
    for key in ("eval_every", "save_every", "optimizer"):  # of the file that it extends; of its own; a node
        assert origins.of(key, raw[key]) == "experiment=molt_flashreinforce_r1"
    assert origins.of("preflight", "off") == "engine=molt"
    assert origins.of("keep_last", 2) == ""


def test_a_key_of_a_users_own_group_is_shown(tmp_path):
    (tmp_path / "my/site").mkdir(parents=True)
    (tmp_path / "my/site/here.yaml").write_text("# @package _global_\nkeep_last: 7\n")
    (tmp_path / "my/local").mkdir()
    (tmp_path / "my/local/default.yaml").write_text("# @package _global_\nsave_every: 3\n")
    done = run_recipe("rl_basic", "--config-dir", "my", "+site=here", "plan=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "keep_last: 7  ← a file in --config-dir" in done.stdout
    assert "save_every: 3  ← a file in --config-dir" in done.stdout


def test_the_plan_of_an_extended_experiment(tmp_path):
    done = run_recipe("rl_basic", "experiment=molt_flashreinforce_r1", "plan=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "eval_every: 128  ← experiment=molt_flashreinforce_r1" in done.stdout
