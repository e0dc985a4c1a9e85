"""The main job as a user runs it: what it leaves behind, on the embedded model, on real rows, on other architectures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rl.storage.jsonl import read_jsonl
from tests.helpers.models import ARCHITECTURES
from tests.helpers.recipes import ROOT, rl_basic, run_afresh, shared_dir

SIX = ("reward_total", "reward_correct", "reward_format", "frac_all_good", "entropy", "learning_rate")
SMALL = ("batch_size=2", "group_size=2", "max_tokens=24", "max_steps=2", "logger=none")


def ok(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr + result.stdout
    return result.stdout


@pytest.fixture(scope="module")
def small_run(tmp_path_factory) -> tuple[Path, str]:
    """A short run with every logger, in a new process, and what it printed."""
    folder = tmp_path_factory.mktemp("start")
    out = ok(run_afresh("rl_basic", "batch_size=4", "group_size=2", "max_tokens=24", "max_steps=3", "eval_every=2",
                        "eval_problems=4", "save_every=2", "samples_per_step=2", cwd=folder))  # fmt: skip
    (run,) = (folder / "runs/rl_basic").iterdir()
    return run, out


def test_a_run_leaves_a_complete_directory(small_run):
    run, out = small_run
    assert run.name.endswith("-tiny-word_problems-grpo-24")
    for name in ("config.yaml", "overrides.yaml", "metrics.jsonl", "samples.jsonl", "train.log", "status.json", "report.html",
                 "data.json", "final/model.safetensors", "final/tokenizer.json", "checkpoints/step-000002",
                 "checkpoints/step-000003", "tensorboard", "wandb"):  # fmt: skip
        assert (run / name).exists(), name
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["step"]) == ("finished", 3)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["max_tokens"], config["batch_size"], config["learning_rate"]) == (24, 4, 1e-4)
    assert "max_steps=3" in yaml.safe_load((run / "overrides.yaml").read_text())
    assert f"{run}/report.html" in out and f"{run}/final" in out
    assert "wandb sync" in out
    assert "5,120 read, 5,120 kept" in out


def test_every_step_has_its_metrics(small_run):
    run, _ = small_run
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert set(SIX) <= row.keys()
        for name in ("frac_truncated", "tokens/p90", "tokens_per_correct", "by_group/frac_mixed", "trust/admitted",
                     "ratio/max", "grade/no_box", "grad_norm", "time/step", "thinking_ja_share"):  # fmt: skip
            assert name in row, name
        # On policy, in float32: sampler and learner agree on every token before the step.
        assert row["ratio/max"] == pytest.approx(1, abs=1e-5) and row["ratio/min"] == pytest.approx(
            1, abs=1e-5
        )
    assert [("eval/reward_total" in row) for row in rows] == [True, False, True]


def test_samples_say_what_was_asked_said_and_graded(small_run):
    run, _ = small_run
    rows = read_jsonl(run / "samples.jsonl")
    assert {(row["step"], row["split"]) for row in rows} >= {(1, "train"), (1, "test"), (4, "test")}
    for row in rows:
        assert (
            row["question"]
            and row["gold"]
            and row["reason"] in ("truncated", "correct", "wrong", "no_box", "unclosed_box", "unparsable")
        )
        assert row["reward"] == pytest.approx(
            0.9 * row["rewards"]["correct"] + 0.1 * row["rewards"]["format"]
        )


def test_the_final_model_loads_in_a_fresh_process(small_run):
    run, _ = small_run
    code = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"m = AutoModelForCausalLM.from_pretrained({str(run / 'final')!r})\n"
        f"t = AutoTokenizer.from_pretrained({str(run / 'final')!r})\n"
        "ids = t.apply_chat_template([{'role': 'user', 'content': '1+1?'}], add_generation_prompt=True, return_tensors='pt')\n"
        "print(m.generate(**ids, max_new_tokens=4).shape)\n"
    )
    ok(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120))


def test_same_seed_same_metrics(tmp_path):
    runs = []
    for name in ("a", "b"):
        ok(rl_basic(*SMALL, f"run_dir={name}", cwd=tmp_path))
        rows = read_jsonl(tmp_path / name / "metrics.jsonl")
        runs.append(
            [
                {k: v for k, v in row.items() if not k.startswith("time/") and k != "tokens_per_second"}
                for row in rows
            ]
        )
    assert runs[0] == runs[1]


def test_logger_none_touches_nothing_but_the_run_directory(tmp_path):
    ok(rl_basic(*SMALL, "run_dir=r", cwd=tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r"]
    assert not (tmp_path / "r/wandb").exists() and not (tmp_path / "r/tensorboard").exists()
    assert len(read_jsonl(tmp_path / "r/metrics.jsonl")) == 2


def test_multirun_makes_one_directory_a_job_and_a_failure_leaves_the_others(tmp_path):
    result = rl_basic("-m", "max_tokens=8,16,0", *(a for a in SMALL if "tokens" not in a), cwd=tmp_path)
    assert result.returncode == 1
    (sweep,) = (tmp_path / "runs/rl_basic").iterdir()
    states = {job.name: json.loads((job / "status.json").read_text()) for job in sweep.glob("max_tokens=*")}
    assert {name: status["state"] for name, status in states.items()} == {
        "max_tokens=8": "finished", "max_tokens=16": "finished", "max_tokens=0": "failed",
    }  # fmt: skip
    assert "expected a positive integer" in states["max_tokens=0"]["reason"]
    for job in sweep.glob("max_tokens=*"):
        assert (job / "train.log").read_text() != ""
        assert ((job / "metrics.jsonl").exists()) == (not job.name.startswith("max_tokens=0"))
    assert "max_tokens=16" in result.stdout and "failed" in result.stdout


def test_two_starts_never_share_a_directory(tmp_path):
    from rl.storage.run_directory import open_directory

    paths = {
        open_directory(None, tmp_path / "20260101-000000-run", {"a": 1}, [], True, frozenset()).path
        for _ in range(3)
    }
    assert len(paths) == 3


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_lora_on_every_linear_layer_of_a_local_checkpoint(architecture, tiny_random_model, tmp_path):
    model, tokenizer = tiny_random_model(architecture)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    out = ok(rl_basic("model.path=base", "model.lora.rank=32", *SMALL, "run_dir=r", cwd=tmp_path))
    assert "its own chat template" in out
    adapter = json.loads((tmp_path / "r/final/adapter_config.json").read_text())
    assert adapter["r"] == 32
    assert {name.rpartition(".")[2] for name in adapter["target_modules"]} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    PeftModel.from_pretrained(base, str(tmp_path / "r/final"))


def test_the_real_gsm8k_rows_train(tmp_path):
    train = shared_dir() / "data/gsm8k/train.jsonl"
    out = ok(rl_basic("data=jsonl", f"data.path={train}", "data.question=question", "data.answer=answer", *SMALL,
                      "run_dir=r", cwd=tmp_path))  # fmt: skip
    assert "7,473 read, 7,473 kept" in out
    assert json.loads((tmp_path / "r/data.json").read_text())["splits"]["train"]["kept"] == 7473


def test_the_japanese_rows_train_and_say_what_was_rejected(tmp_path):
    rows = shared_dir() / "data/gsm8k_ja/rows.jsonl"
    out = ok(
        rl_basic(
            "data=jsonl",
            f"data.path={rows}",
            "max_steps=1",
            "max_tokens=16",
            "group_size=2",
            "logger=none",
            cwd=tmp_path,
        )
    )
    assert "16 read, 12 kept, 4 rejected" in out
    for reason in ("missing marker", "different markers", "empty question", "refusal"):
        assert f"1 {reason}" in out


def test_a_model_that_is_not_there_is_one_line_with_the_way_out(tmp_path):
    result = rl_basic(
        "model=qwen3-8b",
        "data=gsm8k_ja",
        "max_tokens=256",
        cwd=tmp_path,
        environment={"HF_HOME": str(tmp_path / "hf")},
    )
    assert result.returncode == 2 and len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert "Qwen/Qwen3-8B" in result.stderr and "model.path=" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_plan_of_a_model_that_is_not_there(tmp_path):
    out = ok(rl_basic("model=qwen3-8b", "data=gsm8k_ja", "max_tokens=256", "plan=true", cwd=tmp_path))
    for words in ("needs the Hub: Qwen/Qwen3-8B", "needs the Hub: open-multilang/gsm8k-106", "58 steps", "58 steps x 2,048 rollouts x 256 tokens = 30,408,704", "30,588,928 completion tokens",
                  "max_tokens: 256  ← command line", "learning_rate: 4e-05  ← model.recipe.learning_rate", "回答は\\boxed{answer}"):  # fmt: skip
        assert words in out, words


def test_plan_shows_origins_and_a_rendered_prompt_without_loading_weights(tmp_path, monkeypatch):
    out = ok(rl_basic("loss=flashreinforce", "plan=true", cwd=tmp_path))
    assert "batch_size: 128  ← loss=flashreinforce" in out
    assert "<|im_start|>assistant" in out
    assert "40 steps x 128 rollouts x 64 tokens = 327,680" in out and "364,544 completion tokens" in out
    assert not (tmp_path / "runs").exists()


def test_a_users_own_reward(tmp_path):
    (tmp_path / "my_rewards.py").write_text(
        "def brevity(rollouts, target):\n"
        "    return [min(1.0, target / len(r.completion.tokens)) for r in rollouts]\n"
    )
    ok(rl_basic("+rewards.brevity._target_=my_rewards.brevity", "+rewards.brevity.weight=0.2", "+rewards.brevity.target=12",
                *SMALL, "run_dir=r", cwd=tmp_path))  # fmt: skip
    for row in read_jsonl(tmp_path / "r/metrics.jsonl"):
        assert 0.5 <= row["reward_brevity"] <= 1


def test_a_reward_that_raises_is_named(tmp_path):
    (tmp_path / "my_rewards.py").write_text("def broken(rollouts):\n    raise ZeroDivisionError('no')\n")
    result = rl_basic("+rewards.mine._target_=my_rewards.broken", *SMALL, "run_dir=r", cwd=tmp_path)
    assert result.returncode == 2 and "rewards.mine" in result.stderr and "ZeroDivisionError" in result.stderr
    assert json.loads((tmp_path / "r/status.json").read_text())["state"] == "failed"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("arguments", "japanese"),
    [
        ((), False),
        (("loss=flashreinforce",), False),
        (("loss=dr_grpo",), False),
        (("data.language=ja",), True),
    ],
)
def test_the_embedded_model_learns_to_reason_inside_the_budget(arguments, japanese, tmp_path):
    """reward_total from <= 0.25 to >= 0.90 (mean of the last five steps), frac_truncated from >= 0.7 to <= 0.05."""
    ok(rl_basic(*arguments, "logger=none", "run_dir=r", cwd=tmp_path))
    rows = read_jsonl(tmp_path / "r/metrics.jsonl")
    last = {
        name: sum(row[name] for row in rows[-5:]) / 5
        for name in ("reward_total", "frac_truncated", "thinking_ja_share")
    }
    assert rows[0]["reward_total"] <= 0.25 and last["reward_total"] >= 0.90
    assert rows[0]["frac_truncated"] >= 0.7 and last["frac_truncated"] <= 0.05
    if japanese:
        assert rows[0]["thinking_ja_share"] <= 0.2 and last["thinking_ja_share"] >= 0.5


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loss", ["rloo", "reinforce_pp", "maxrl", "cispo", "gspo"])
def test_every_group_loss_learns(loss, tmp_path):
    """reward_total from <= 0.25 to >= 0.75 in 30 steps (mean of the last three)."""
    ok(rl_basic(f"loss={loss}", "max_steps=30", "preflight=off", "eval_every=0", "logger=none", "run_dir=r", cwd=tmp_path))  # fmt: skip
    rewards = [row["reward_total"] for row in read_jsonl(tmp_path / "r/metrics.jsonl")]
    assert len(rewards) == 30 and rewards[0] <= 0.25 and sum(rewards[-3:]) / 3 >= 0.75


def test_the_console_script_is_installed():
    script = Path(sys.executable).parent / "rl-basic"
    result = subprocess.run(
        [script, "--help"], capture_output=True, text=True, cwd=ROOT, env=os.environ | {"COLUMNS": "100"}
    )
    assert result.returncode == 0 and "max_tokens" in result.stdout
