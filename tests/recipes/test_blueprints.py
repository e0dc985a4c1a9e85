"""Every shipped config composes and types; the published recipes have their published numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.losses.dr_grpo import DrGRPO
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.grpo import GRPO
from tests.helpers.blueprints import composed, options


@pytest.mark.parametrize(
    "choice",
    [f"{group}={option}" for group in ("model", "data", "renderer", "rewards", "loss", "engine", "logger", "debug", "sweep")
     for option in options(group)] + [f"+experiment={option}" for option in options("experiment")],
)  # fmt: skip
def test_every_shipped_option_composes(choice, tmp_path):
    if choice == "sweep=optuna":
        pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra optuna")
    needs = {
        "data=jsonl": ["data.path=rows.jsonl"],
        "model=custom": ["model.id=org/name"],
        "rewards=environment": ["environment=alfworld"],
    }
    name = choice.removeprefix("data=")
    if name in ("aime", "amc", "math_500", "mgsm_ja", "minerva_math", "olympiad_bench"):
        choice = f"+data@eval_data.{name}={name}"  # a set for evaluation only
    composed(choice.replace("+experiment", "experiment"), *needs.get(choice, []))


def test_no_argument_is_the_embedded_run():
    blueprint = composed()
    assert (blueprint.model.name, blueprint.data.name, blueprint.max_tokens) == ("tiny", "word_problems", 64)
    assert (blueprint.batch_size, blueprint.group_size, blueprint.learning_rate) == (16, 8, 1e-4)
    assert type(blueprint.loss) is GRPO


def test_the_published_gsm8k_recipe():
    """Qwen3-8B on GSM8K-ja in 256 tokens through one command: the numbers of the published run."""
    blueprint = composed("model=qwen3-8b", "data=gsm8k_ja", "max_tokens=256")
    assert (blueprint.batch_size, blueprint.group_size, blueprint.learning_rate) == (128, 16, 4e-5)
    assert blueprint.model.lora is not None
    assert (blueprint.model.lora.rank, blueprint.model.lora.alpha, blueprint.model.lora.target_modules) == (
        32,
        32.0,
        "all-linear",
    )
    assert {name: term.weight for name, term in blueprint.rewards.terms.items()} == {
        "correct": 0.9,
        "format": 0.1,
    }
    assert blueprint.rewards.answer_region == "anywhere"
    assert composed("model=qwen3-4b", "data=gsm8k_ja").rewards.answer_region == "anywhere"
    assert composed("model=qwen3-8b").rewards.answer_region == "after_thinking"
    assert blueprint.optimizer.schedule == "constant"
    assert blueprint.total_steps(7473 // 128) == 58
    assert blueprint.data.suffix == {
        "en": " Write your answer in the format \\boxed{answer}.",
        "ja": "回答は\\boxed{answer}の形式で書きなさい。",
    }


def test_flashreinforce_alone_keeps_the_number_of_rollouts():
    blueprint = composed("loss=flashreinforce")
    assert (blueprint.batch_size, blueprint.group_size) == (128, 1)
    assert type(blueprint.loss) is FlashReinforce and blueprint.loss.delta == 3e-3
    assert composed("loss=flashreinforce", "batch_size=32").batch_size == 32
    assert type(composed("loss=dr_grpo").loss) is DrGRPO


def test_shipped_paths_exist():
    assert (composed().model.local_path / "model.safetensors").is_file()
    assert Path(composed().model.source).is_absolute()
