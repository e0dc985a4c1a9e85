"""engine=molt without Molt: flags, refusals, prompts, what is read from its output."""

from __future__ import annotations

import json
import math

import pytest

from rl.data.problems import load
from rl.engines.molt.command import MODULE, environment
from rl.engines.molt.conversation import problem_of
from rl.engines.molt.dataset import require_token_ends, write_problems
from rl.engines.molt.expressible import require_expressible
from rl.engines.molt.flags import JobFiles, passes
from rl.engines.molt.logs import evaluation_metrics, last_error, plain, step_metrics
from rl.engines.molt.model_folder import write_model
from rl.errors import UserError
from rl.models.config import ModelConfig
from rl.models.loading import open_renderer
from rl.task import Task
from tests.helpers.blueprints import composed
from tests.helpers.molt.presets import command_of
from tests.helpers.recipes import ROOT, run_recipe

MOLT = ("engine=molt", "loss=flashreinforce", "data.max_prompt_tokens=64")


def test_the_command_is_one_flag_a_line_and_quoted():
    command = command_of(composed(*MOLT, "engine.python=/a b/python"))
    lines = command.shell().split(" \\\n")
    assert lines[0] == "cd /runs/a/molt && env" and f"  '/a b/python' -u -m {MODULE}" in lines
    assert "  --reward.clip_range -1000000000 1000000000" in lines and "  --train.force_on_policy" in lines
    assert command.argv[:4] == ["/a b/python", "-u", "-m", MODULE]


def test_ray_is_connected_to_unless_it_is_to_be_started(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert environment(composed(*MOLT).engine)["RAY_ADDRESS"] == "auto"
    assert environment(composed(*MOLT, "engine.ray=start").engine)["RAY_ADDRESS"] == "local"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert environment(composed(*MOLT).engine)["RAY_ADDRESS"] == "10.0.0.1:6379"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["group_size=4"], "type group_size=1 batch_size=512"),
        (["engine.actor_gpus=3"], "3 copies of the model cannot share a batch of 128"),
        (["loss=gspo"], "type loss=flashreinforce, loss=grpo or loss=dapo"),
        (["loss=grpo_kl"], "type loss.kl_beta=0"),
        (["loss=grpo", "loss.updates_per_batch=2"], "loss.updates_per_batch=2"),
        (["loss.negative_token_fraction=0.9"], "no release of molt-rl has a flag for it"),
        (["loss=grpo", "engine.queue=8"], "type engine.queue=1"),
        (["loss=dapo", "engine.in_flight=100"], "engine.in_flight=null"),
        (["length=kimi", "loss=grpo"], "length=kimi: compares"),
        (["optimizer.schedule=linear"], "type optimizer.schedule=cosine"),
        (["budget=tighten"], "budget=constant"),
        (["curriculum=difficulty"], "curriculum=none"),
        (["refill=2", "loss=grpo"], "type refill=0"),
        (["truncated=mask"], "type truncated=zero"),
        (["eval_max_tokens=[32,64]"], "type eval_max_tokens=null"),
        (["thinking_tokens=16"], "type thinking_tokens=null"),
        (["max_sampled_tokens=1000"], "max_steps=N"),
        (["+data@eval_data.aime=aime"], "leave eval_data out"),
        (["device=cpu"], "type device=auto"),
        (["loss=grpo", "loss.correction=tis"], "type loss.correction=none"),
        (["data.shuffle=false"], "data.shuffle=true"),
        (["keep_best=reward_total"], "keep_best=null"),
        (["preflight=warn"], "preflight=off"),
        (["data.max_prompt_tokens=null"], "engine.max_len=1088"),
        (["engine.max_len=100"], "type engine.max_len=128"),
        (["max_tokens=100000"], "the model's context holds"),
        (["+model.lora.dropout=0.1"], "model.lora.dropout=0"),
        (["+model.lora.alpha=1.5"], "model.lora.alpha=2"),
    ],
)  # fmt: skip
def test_what_molt_cannot_do_is_refused_in_one_line(overrides, words):
    blueprint = composed(*MOLT, *overrides)
    with pytest.raises(UserError) as error:
        require_expressible(blueprint, blueprint.engine)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["engine.rollout_tensor_parallel=2"], "does not divide engine.rollout_gpus=7"),
        (["engine.tensor_parallel=2"], "does not divide the 1 that train"),
        (["engine.expert_parallel=2"], "does not divide the 1 GPUs that train"),
        (["engine.actor_gpus=0"], "expected a positive integer"),
        (["engine.gpu_memory=1.5"], "expected a share in (0, 1)"),
        (["engine.eval_top_p=0"], "expected a share in (0, 1]"),
        (["engine.attn_implementation=sdpa"], "type engine.packing=false"),
        (["sampling.top_p=0.9"], "Molt's importance weights need the whole distribution"),
    ],
)  # fmt: skip
def test_bad_options_are_one_line(overrides, words):
    with pytest.raises(UserError) as error:
        composed(*MOLT, *overrides)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_more_flags_are_passed_on_and_owned_ones_refused():
    flags = command_of(
        composed(*MOLT, "+engine.flags.vllm.enforce_eager=true", "+engine.flags.vllm.block_size=128")
    ).flags
    assert flags["vllm.enforce_eager"] is True and flags["vllm.block_size"] == 128
    with pytest.raises(UserError, match="already sets this flag to 128"):
        command_of(composed(*MOLT, "+engine.flags.rollout.batch_size=64"))


def test_passes_count_whole_ones_with_the_smaller_last_batch():
    def of(problems: int, *overrides: str):
        found = passes(composed(*MOLT, *overrides), problems)
        return found.problems, found.episodes

    assert of(1460, "max_steps=null", "epochs=350", "batch_size=128") == (1460, 350)
    assert of(10, "max_steps=2", "batch_size=4") == (8, 1)  # the first two batches of one pass
    assert of(10, "max_steps=3", "batch_size=4") == (10, 1)
    assert of(10, "max_steps=6", "batch_size=4") == (10, 2)
    with pytest.raises(UserError, match="type max_steps=3 or 6"):
        of(10, "max_steps=4", "batch_size=4")


def test_lora_and_schedules_become_molts_flags():
    flags = command_of(
        composed(
            *MOLT, "+model.lora.rank=8", "+model.lora.target_modules=[q_proj,v_proj]", "optimizer.warmup=0.1"
        )
    ).flags
    assert flags["actor.lora_dim"] == 8 and flags["actor.lora_target_modules"] == ["*.q_proj", "*.v_proj"]
    assert flags["actor.lr_scheduler"] == "constant_with_warmup"
    assert "actor.lora_target_modules" not in command_of(composed(*MOLT, "+model.lora.rank=8")).flags


LINE = (
    "\x1b[36m(TrainingActor pid=7, ip=10.0.0.2)\x1b[0m INFO 09-01 12:00:00 rl_trainer.py:935] Global step 12: {'policy_loss': "
    "-1.5e-05, 'actor_lr': tensor(9.9e-07), 'kl': nan, 'is_filter_ratio': np.float64(0.25), 'rollout/reward_mean': 1, "
    "'reward_correct': 0.5, 'grade/wrong': 0.25, 'text': 'a: 3'}"
)


def test_a_step_is_read_from_a_line():
    step, metrics = step_metrics(plain(LINE))
    assert step == 12 and math.isnan(metrics.pop("molt/kl"))
    assert metrics == {
        "molt/policy_loss": -1.5e-5, "learning_rate": 9.9e-7, "trust/admitted": 0.75, "reward_total": 1.0,
        "reward_correct": 0.5, "grade/wrong": 0.25,
    }  # fmt: skip
    assert step_metrics("Global step: {") is None
    assert plain("a  10%|#\rb 20%|##\r") == "b 20%|##"


def test_an_evaluation_is_read_from_a_line():
    line = "Eval at step 128: {'eval_aime24_pass32': 0.5, 'eval_aime24_pass1': 0.25, 'eval_aime25_pass1': 0.75, 'eval_truncated_rate': 0.1}"
    step, metrics = evaluation_metrics(line)
    assert step == 128 and metrics["eval/reward_total"] == 0.5 and metrics["eval/frac_truncated"] == 0.1
    assert metrics["eval/molt/aime24_pass32"] == 0.5


def test_the_last_error_is_found():
    lines = [
        "Traceback:",
        "ray.exceptions.RayTaskError(ValueError): ray::fit()",
        "RuntimeError: GPU over-subscription: 8 > 4",
        "bye",
    ]
    assert last_error(lines) == "RuntimeError: GPU over-subscription: 8 > 4"
    assert last_error(["x", ""]) == "x" and last_error([]) == ""


def test_problems_are_written_as_messages_or_as_text_without_a_template(tmp_path):
    from datasets import load_from_disk

    blueprint = composed(*MOLT, "data.train_size=6")
    tokenizer, renderer = open_renderer(blueprint.model, blueprint.renderer)
    problems = load(blueprint.data, 0)
    task = Task(problems.messages, renderer, blueprint.environment)
    assert write_problems(task, tokenizer, problems.train, tmp_path / "a", "train") is True
    for row, problem in zip(load_from_disk(tmp_path / "a"), problems.train, strict=True):
        rendered = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        assert tokenizer(text=rendered, add_special_tokens=False)["input_ids"] == task.prompt(problem)
        assert problem_of(row["reward_model"]) == problem and row["datasource"] == "word_problems"
    tokenizer.chat_template = None
    assert write_problems(task, tokenizer, problems.test, tmp_path / "b", "test") is False
    first = load_from_disk(tmp_path / "b")[0]
    assert first["prompt"].startswith("<|im_start|>user\n") and first["reward_model"]["split"] == "test"


def test_a_format_that_ends_answers_by_text_is_refused():
    blueprint = composed(*MOLT, "renderer=role_colon")
    _, renderer = open_renderer(blueprint.model, blueprint.renderer)
    with pytest.raises(UserError, match="renderer=role_colon"):
        require_token_ends(Task(blueprint.data.messages, renderer, blueprint.environment))


def test_a_context_of_its_own_is_written_into_a_copy(tmp_path):
    tiny = ROOT / "assets/tiny"
    write_model(ModelConfig(name="a", path=str(tiny), context=6144), tmp_path / "model")
    assert json.loads((tmp_path / "model/config.json").read_text())["max_position_embeddings"] == 6144
    assert (tmp_path / "model/model.safetensors").resolve() == (tiny / "model.safetensors").resolve()
    assert json.loads((tiny / "config.json").read_text())["max_position_embeddings"] != 6144
    write_model(ModelConfig(name="a", path=str(tiny)), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    files = JobFiles(tmp_path)
    assert files.model != files.export


def test_the_plan_says_what_was_checked(tmp_path):
    from tests.helpers.molt.stand_in import write_stand_in

    python = write_stand_in(tmp_path)
    done = run_recipe("rl_basic", *MOLT, f"engine.python={python}", "plan=true", "run_dir=a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        "accepted by molt-rl 0.2.1" in done.stdout
        and "GPUs: 1 train (1 x 1), 7 sample (7 x 1)" in done.stdout
    )
    assert f"cd {tmp_path}/a/molt && env" in done.stdout and not (tmp_path / "a").exists()
    refused = run_recipe("rl_basic", *MOLT, "group_size=2", "plan=true", cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.startswith("error: group_size=2") and not refused.stdout
    unchecked = run_recipe("rl_basic", *MOLT, "engine.python=/no/python", "plan=true", cwd=tmp_path)
    assert unchecked.returncode == 0 and "nothing was checked" in unchecked.stdout
