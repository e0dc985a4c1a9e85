"""The shipped experiments are the published recipes, number by number, whatever model or loss is typed on top of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from recipes.cli.compose import CONF, resolved
from rl.data.problems import load
from rl.losses.dr_grpo import DrGRPO
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.grpo import GRPO
from tests.helpers.blueprints import composed, options
from tests.helpers.recipes import ROOT, rl_basic

EXPERIMENTS = options("experiment")


@pytest.mark.parametrize("loss", options("loss"))
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_loss_can_be_typed_on_top(experiment: str, loss: str) -> None:
    """A loss with single completions uses as many problems as there are rollouts, so the rollouts per step stay the same."""
    published, changed = (
        composed(f"experiment={experiment}"),
        composed(f"experiment={experiment}", f"loss={loss}"),
    )
    assert changed.loss.name == loss
    assert changed.batch_size * changed.group_size == published.batch_size * published.group_size


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_another_model_keeps_the_recipe(experiment: str) -> None:
    published = composed(f"experiment={experiment}")
    for name in ("qwen3-4b", "tiny", "qwen2-0.5b-instruct"):
        changed = composed(f"experiment={experiment}", f"model={name}")
        assert changed.model.name == name
        for key in (
            "max_tokens",
            "batch_size",
            "group_size",
            "learning_rate",
            "temperature",
            "max_steps",
            "epochs",
        ):
            assert getattr(changed, key) == getattr(published, key), key
        assert changed.model.lora == published.model.lora
        assert changed.rewards.answer_region == published.rewards.answer_region


def tree(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3", job_name="rl_basic"):
        return resolved(compose("rl_basic", list(overrides)))


@pytest.mark.parametrize("language", ["", "_ja"])
def test_the_published_gsm8k_run(language: str) -> None:
    here, there = composed(f"experiment=gsm8k{language}"), composed(f"experiment=tinker_gsm8k{language}")
    assert tree(f"experiment=gsm8k{language}") == tree(
        "model=qwen3-8b", f"data=gsm8k{language}", "max_tokens=256"
    )
    for run in (here, there):
        assert (run.model.id, run.data.name, run.max_tokens) == ("Qwen/Qwen3-8B", f"gsm8k{language}", 256)
        assert (run.batch_size, run.group_size, run.learning_rate, run.epochs) == (128, 16, 4e-5, 1)
        assert {name: term.weight for name, term in run.rewards.terms.items()} == {
            "correct": 0.9,
            "format": 0.1,
        }
        assert run.rewards.answer_region == "anywhere"
        assert run.optimizer.schedule == "constant" and run.optimizer.betas == (0.9, 0.95)
    assert (there.eval_every, there.optimizer.max_grad_norm) == (0, float("inf"))
    # 1e-8 for gradients that the loss divides by 128 * 16 rollouts x 256 tokens.
    assert there.optimizer.eps * 128 * 16 * 256 == pytest.approx(1e-8, rel=0.01)


def test_the_published_gsm8k_loss_is_centred_only_and_unclipped() -> None:
    """Advantages are reward minus group mean; the gradient is that of -rho * A, also where the ratio is far from 1."""
    import torch

    loss = composed("experiment=tinker_gsm8k").loss
    assert type(loss) is DrGRPO
    assert loss.advantages([1.0, 0.1, 0.1, 0.0], [0, 0, 1, 1]) == pytest.approx([0.45, -0.45, 0.05, -0.05])
    logprobs = torch.tensor([[-0.1, -3.0]], requires_grad=True)
    behavior = torch.tensor([[-3.0, -0.1]])
    coefficients = torch.tensor([[2.0, -2.0]])
    loss.surrogate(logprobs, behavior, coefficients, torch.ones(1, 2, dtype=torch.bool)).loss.backward()
    assert logprobs.grad is not None
    assert torch.allclose(logprobs.grad, -coefficients * (logprobs - behavior).exp().detach())


@pytest.mark.parametrize("experiment", ["numina_grpo", "numina_grpo_trl"])
def test_the_numina_recipe(experiment: str) -> None:
    run = composed(f"experiment={experiment}")
    assert run.model.id == "Qwen/Qwen2-0.5B-Instruct" and run.model.lora is not None
    assert (run.model.lora.rank, run.model.lora.alpha, run.model.lora.dropout) == (8, 32.0, 0.1)
    assert run.model.lora.target_modules == ["q_proj", "v_proj"]
    assert type(run.loss) is GRPO and run.loss.kl_beta == 0.04
    assert run.rewards.answer_format == "think_answer"
    assert {name: term.weight for name, term in run.rewards.terms.items()} == {"correct": 1.0, "format": 1.0}
    assert (run.learning_rate, run.group_size, run.max_tokens, run.epochs) == (1e-5, 4, 64, 1)
    assert (run.data.fraction, run.data.max_prompt_tokens) == (0.05, 128)
    # What trl 0.14 made of the page: 8 prompts a device x 16 accumulated, over 3,622 rows.
    assert run.batch_size == 8 * 16 and run.data.planned_rows(72_441) == 3_622
    assert run.total_steps(0) == 3_622 // run.batch_size == 28
    assert (run.temperature, run.optimizer.schedule, run.optimizer.warmup) == (0.9, "linear", 0.0)
    assert (run.optimizer.betas, run.optimizer.max_grad_norm) == ((0.9, 0.999), 1.0)


def test_the_flashreinforce_recipes() -> None:
    for name, tokens, context in (("r1_distill_1.5b", 8192, 9216), ("qwen2.5_math_1.5b", 4096, 6144)):
        run = composed(f"experiment=flashreinforce_{name}")
        assert type(run.loss) is FlashReinforce and run.loss.delta == 3e-3
        assert (run.batch_size, run.group_size, run.learning_rate) == (128, 1, 1e-6)
        assert (run.max_tokens, run.data.max_prompt_tokens) == (tokens, context - tokens)
        assert run.model.context in (None, context) and run.model.lora is None
        optimizer = run.optimizer
        assert (optimizer.schedule, optimizer.warmup, optimizer.final_ratio) == ("cosine", 0.03, 0.1)
        assert (optimizer.weight_decay, optimizer.max_grad_norm) == (0.1, 1.0)
        # Rewarded is what the prompt asks for: a box, 1 where it is right.
        assert run.rewards.answer_format == "boxed" and run.data.system_prompt is None
        assert {name: term.weight for name, term in run.rewards.terms.items()} == {
            "correct": 1.0,
            "format": 0.0,
        }
        text = (CONF / f"experiment/flashreinforce_{name}.yaml").read_text()
        assert "3e-3" in text and ("5e-3" in text) == name.startswith("r1")
    assert composed("experiment=flashreinforce_qwen2.5_math_1.5b").data.limit == 7500


def read(tmp_path: Path, data: str, rows: list[dict[str, Any]], *overrides: str) -> Any:
    """The problems of a shipped data set, read from a local file with its own columns."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = composed(f"data={data}", f"data.path={path}", *overrides).data
    return config, load(config, seed=0)


SANITY = [
    {
        "data_source": "math",
        "prompt": [
            {"role": "user", "content": f"What is {i} / 2? Put your final answer within \\boxed{{}}."}
        ],
        "reward_model": {"ground_truth": f"\\frac{{{i}}}{{2}}", "style": "rule"},
    }
    for i in (1, 3)
]


def test_the_sanity_sets_columns(tmp_path: Path) -> None:
    config, problems = read(tmp_path, "math_sanity", SANITY)
    assert [p.question for p in problems.train] == [row["prompt"][0]["content"] for row in SANITY]
    assert [p.answer for p in problems.train] == ["\\frac{1}{2}", "\\frac{3}{2}"]
    assert config.messages(problems.train[0]) == SANITY[0]["prompt"]


@pytest.mark.parametrize("layout", ["parquet", "saved"])
def test_nested_columns_of_arrow_files(layout: str, tmp_path: Path) -> None:
    from datasets import Dataset

    dataset, path = Dataset.from_list(SANITY), tmp_path / f"rows.{layout}"
    dataset.to_parquet(str(path)) if layout == "parquet" else dataset.save_to_disk(str(path))
    config = composed("data=math_sanity", f"data.path={path}", "data.test_split=null").data
    assert [p.question for p in load(config, 0).train] == [row["prompt"][0]["content"] for row in SANITY]


def test_a_nested_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "flat", "reward_model": {}}) + "\n")
    result = rl_basic("data=math_sanity", "data.path=rows.jsonl", cwd=tmp_path)
    assert result.returncode == 2 and len(result.stderr.strip().splitlines()) == 1
    assert "data.question=prompt.0.content: no such column" in result.stderr


def test_the_dapo_sets_columns(tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {i} + 1?", "solution": str(i + 1), "ability": "MATH"} for i in (1, 1, 2)]
    config, problems = read(tmp_path, "dapo_math", rows)
    assert [(p.question, p.answer) for p in problems.train] == [
        ("What is 1 + 1?", "2"),
        ("What is 2 + 1?", "3"),
    ]
    (message,) = config.messages(problems.train[0])
    assert message["content"].startswith("What is 1 + 1?") and "\\boxed{answer}" in message["content"]


def checkpoint(folder: Path, context: int) -> Path:
    """The embedded model with another limit in its config."""
    import shutil

    shutil.copytree(ROOT / "assets/tiny", folder / "model")
    config = json.loads((folder / "model/config.json").read_text()) | {"max_position_embeddings": context}
    (folder / "model/config.json").write_text(json.dumps(config))
    return folder / "model"


def test_a_context_can_be_extended(tmp_path: Path) -> None:
    small = ("batch_size=2", "group_size=2", "max_steps=1", "eval_every=0", "logger=none", "preflight=off")
    start = (f"model.path={checkpoint(tmp_path, 64)}", "model=tiny", *small)
    refused = rl_basic(*start, cwd=tmp_path)
    assert refused.returncode == 2 and "context holds 64" in refused.stderr
    result = rl_basic(*start, "model.context=256", "run_dir=r", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "r/final/config.json").read_text())["max_position_embeddings"] == 256
    assert yaml.safe_load((tmp_path / "r/config.yaml").read_text())["model"]["context"] == 256


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.context=0"], "model.context=0: expected a positive integer"),
        (["engine=tinker", "model.lora.rank=8", "model.context=6144"], "a service has its own limit"),
        (
            ["engine=trl", "engine.vllm=colocate", "model.context=6144"],
            "vLLM reads the checkpoint's own limit",
        ),
    ],
)
def test_a_context_that_cannot_be(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = rl_basic(*arguments, cwd=tmp_path)
    assert result.returncode == 2 and words in result.stderr
