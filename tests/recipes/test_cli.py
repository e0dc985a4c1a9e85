"""The command line as a user meets it: bad input is one line and exit code 2, before torch is imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from recipes.cli.arguments import HYDRA, checked_arguments
from recipes.cli.compose import CONF, register_resolvers
from rl.blueprint import Blueprint
from tests.helpers.recipes import rl_basic as command

# A torch that cannot be imported: whoever tries is named in the traceback that the test then sees.
POISON = "raise ImportError('torch was imported')\n"


@pytest.fixture(scope="session")
def without_torch(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("poison")
    for name in ("torch", "transformers"):
        (folder / f"{name}.py").write_text(POISON)
    return folder


def broken_file(folder: Path) -> Path:
    file = folder / "broken.jsonl"
    file.write_text(
        '{"question": "1+1?", "answer": "#### 2"}\n{"question": "1+2?", "answer"\n', encoding="utf-8"
    )
    return file


MISTAKES = {
    "typo": (["max_token=256"], ["max_token=256", "did you mean max_tokens?"]),
    "added typo": (["+max_token=256"], ["did you mean max_tokens?"]),
    "forced typo": (["++lrr=1"], ["lrr"]),
    "nested typo": (["loss.dleta=1", "loss=flashreinforce"], ["did you mean loss.delta?"]),
    "key of another loss": (["loss.delta=1"], ["loss.delta"]),
    "learning rate typo": (["learning_rte=1e-4"], ["did you mean learning_rate?"]),
    "unknown option": (["data=gsm8k_jp"], ["data=gsm8k_jp", "gsm8k_ja", "word_problems", "numina_math_tir", "jsonl"]),
    "unknown loss": (["loss=gpro"], ["did you mean loss=grpo?", "flashreinforce", "dr_grpo"]),
    "text for int": (["max_tokens=abc"], ["max_tokens=abc: expected a whole number", "max_tokens="]),
    "negative": (["max_tokens=-1"], ["max_tokens=-1: expected a positive integer"]),
    "None": (["max_steps=None"], ["max_steps=None: expected a whole number", "null"]),
    "float for int": (["seed=1e3"], ["seed=1000.0: expected a whole number"]),
    "octal-looking text": (["seed=08"], ["seed='08': expected a whole number"]),
    "quoted number": (["max_steps='2'"], ["max_steps='2': expected a whole number"]),
    "seed beyond 63 bits": (["seed=9223372036854775808"], ["expected a whole number from 0 to 2**63 - 1"]),
    "group of one": (["group_size=1", "loss=grpo"], ["group_size=1", "loss=flashreinforce"]),
    "empty batch": (["batch_size=0"], ["batch_size=0: expected a positive integer"]),
    "bool for int": (["batch_size=true"], ["batch_size=true: expected a whole number"]),
    "device": (["device=gpu"], ["device=gpu: expected one of auto, cpu, cuda, mps"]),
    "top_p": (["sampling.top_p=0.9"], ["sampling.top_p=0.9", "sampling.allow_truncated_support=true"]),
    "no value": (["max_tokens"], ["expected key=value"]),
    "unquoted Japanese": (["name=李明"], ["needs quotes", "\"name='李明'\""]),
    "unquoted box": (["data.suffix.en=\\boxed{}"], ["needs quotes", "\"data.suffix.en='\\boxed{}'\""]),
    "missing file": (["data=jsonl", "data.path=nowhere.jsonl"], ["nowhere.jsonl"]),
    "missing checkpoint": (["model.path=nowhere"], ["model.path=nowhere: no such folder"]),
    "mistake in the middle": (["max_steps=2", "rewards.format.wieght=1"], ["did you mean rewards.format.weight?"]),
    "no option": (["loss=null"], ["loss=null: no such option", "flashreinforce"]),
    "option in a sweep": (["-m", "loss=grpo,gpro"], ["did you mean loss=grpo?"]),
    "flag behind a mistake": (["max_token=8,16", "-m"], ["did you mean max_tokens?"]),
    "list of the wrong length": (["optimizer.betas=[0.9]"], ["optimizer.betas=[0.9]", "2 values"]),
    "not a number": (["learning_rate=nan"], ["learning_rate=nan: expected a number"]),
    "comma without -m": (["max_tokens=32,64"], ["max_tokens=32,64", "add -m"]),
    "run_dir under a file": (["run_dir=file/run"], ["run_dir=", "cannot create this folder", "give another run_dir"]),
    "one folder for a sweep": (["-m", "max_tokens=8,16", "run_dir=r"], ["hydra.sweep.dir=FOLDER"]),
    "folder without a checkpoint": (["model.path=."], ["model.path=.: has no config.json"]),
    "reward function's typo": (
        ["+rewards.x._target_=os.path.join", "+rewards.x.wieght=1"], ["rewards.x.wieght: no such key", "did you mean rewards.x.weight?"],
    ),
    "betas": (["optimizer.betas=[0.9,2]"], ["optimizer.betas=[0.9, 2.0]: expected two numbers in [0, 1)"]),
    "case": (["loss=GRPO"], ["did you mean loss=grpo?"]),
    "two options": (["loss=[grpo,dr_grpo]"], ["expected one option"]),
    "no rewards": (["~rewards"], ["rewards: missing"]),
    "module that raises": (["+rewards.x._target_=broken_module.f"], ["rewards.x._target_", "cannot be imported"]),
    "tiny temperature": (["temperature=1e-300"], ["temperature=1e-300: expected a positive number"]),
    "missing config dir": (["--config-dir", "nowhere"], ["--config-dir=nowhere: no such folder"]),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line(case, tmp_path, without_torch):
    arguments, words = MISTAKES[case]
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "broken_module.py").write_text("1 / 0")
    result = command(*arguments, cwd=tmp_path, path=without_torch)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr
    assert not (tmp_path / "runs").exists()


def test_missing_file_is_named_with_its_absolute_path(tmp_path, without_torch):
    result = command("data=jsonl", "data.path=nowhere.jsonl", cwd=tmp_path, path=without_torch)
    assert str(tmp_path / "nowhere.jsonl") in result.stderr


def test_broken_line_is_named_with_file_and_number(tmp_path, without_torch):
    file = broken_file(tmp_path)
    result = command("data=jsonl", f"data.path={file}", cwd=tmp_path, path=without_torch)
    assert result.returncode == 2 and len(result.stderr.strip().splitlines()) == 1
    assert str(file) in result.stderr and "2" in result.stderr.replace(str(file), "")


def test_empty_data_set(tmp_path, without_torch):
    (tmp_path / "empty.jsonl").write_text("")
    result = command("data=jsonl", "data.path=empty.jsonl", cwd=tmp_path, path=without_torch)
    assert result.returncode == 2 and len(result.stderr.strip().splitlines()) == 1
    assert "empty.jsonl" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--cfg", "job"], ["--cfg", "job", "--resolve"], ["--info", "searchpath"]]
)
def test_hydras_own_answers_need_no_torch(arguments, tmp_path, without_torch):
    result = command(*arguments, cwd=tmp_path, path=without_torch)
    assert result.returncode == 0, result.stderr
    assert "max_tokens" in result.stdout or arguments[0] == "--info"


def test_help_says_what_can_be_chosen(tmp_path):
    result = command("--help", cwd=tmp_path)
    for word in ("qwen3-8b", "gsm8k_ja", "flashreinforce", "max_tokens"):
        assert word in result.stdout


def test_a_users_own_config_folder(tmp_path):
    """`--config-dir` adds options, Japanese text and boxes included."""
    (tmp_path / "conf/data").mkdir(parents=True)
    (tmp_path / "rows.jsonl").write_text(
        '{"question": "りんごは何個？", "answer": "#### 3"}\n' * 1, encoding="utf-8"
    )
    (tmp_path / "conf/data/mine.yaml").write_text(
        "defaults: [jsonl, _self_]\nname: mine\npath: rows.jsonl\nlanguage: ja\n"
        "suffix: {ja: '回答は\\boxed{answer}の形式で書きなさい。'}\n",
        encoding="utf-8",
    )
    result = command("--config-dir", "conf", "data=mine", "plan=true", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "りんごは何個？回答は\\boxed{answer}の形式で書きなさい。" in result.stdout.replace("\n", "")


def test_a_broken_yaml_of_the_users_own_is_one_line_that_names_it(tmp_path):
    (tmp_path / "conf/data").mkdir(parents=True)
    (tmp_path / "conf/data/mine.yaml").write_text("{a: [")
    result = command("--config-dir", "conf", "data=mine", cwd=tmp_path)
    assert result.returncode == 2 and len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert "mine.yaml" in result.stderr


def test_a_terminal_that_knows_no_japanese_is_no_reason_to_fail(tmp_path):
    result = command("data.language=ja", "plan=true", cwd=tmp_path, environment={"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0, result.stderr


def test_a_value_quoted_for_the_command_line_arrives(tmp_path):
    result = command("data.suffix.en=' 答えは\\boxed{}へ'", "data.language=en", "plan=true", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "答えは\\boxed{}へ" in result.stdout


def test_a_key_that_only_the_schema_knows_needs_no_plus(tmp_path):
    result = command("model.lora.rank=4", "--cfg", "job", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "rank: 4" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["max_tokens=7", "loss=dapo", "seed=3", "engine=vllm", "engine.max_lag=2"],
        ["++model.lora.alpha=3", "model.path=/x/y", "+rewards.own._target_=own.reward", "name='a, b'"],
        ["experiment=tinker_gsm8k", "hydra.run.dir=/tmp/x", "hydra.verbose=true", "learning_rate=1e-3"],
        ["~loss.kl_beta", "hydra/job_logging=default", "logger=[jsonl,wandb]"],
        ["eval_data=[math_500,mgsm_ja]", "sampling.top_p=0.5"],
        [f"hydra.searchpath=[file://{Path(__file__).parents[1] / 'helpers/conf'}]", "max_tokens=8"],
    ],
)
def test_the_config_of_a_run_is_what_hydra_composes(arguments):
    """Also its `hydra` node, although the command composes with the choices only and then sets the values."""
    register_resolvers()
    checked = checked_arguments("rl_basic", Blueprint, arguments)
    with initialize_config_dir(str(CONF), job_name="rl_basic", version_base=HYDRA):
        composed = compose("rl_basic", checked.arguments, return_hydra_config=True)
    assert checked.config is not None
    found, expected = (OmegaConf.to_container(each, resolve=False) for each in (checked.config, composed))
    for each in (found, expected):
        for source in each["hydra"]["runtime"]["config_sources"]:  # type: ignore[call-overload,index]
            source.pop("provider")
    assert found == expected
    assert list(found) == list(expected), "the order in which --cfg job shows them"
