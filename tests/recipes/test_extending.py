"""docs/extending.md as a user follows it: each block is saved outside the repository, each command is run unchanged."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.helpers.recipes import ROOT, run_recipe

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
SECTIONS = dict(zip(*[iter(re.split(r"^## (.+)$", PAGE, flags=re.M)[1:])] * 2, strict=True))
COMMAND = re.compile(r"^ {4}python -m recipes\.(\w+) (.+)$", re.M)
# Makes the page's runs short without changing what the page shows.
QUICK = ("eval_every=0", "preflight=off", "max_tokens=8", "group_size=2", "logger=none")


def saved(section: str, folder: Path) -> None:
    """Writes the section's blocks under the names in their first lines."""
    for language, name, text in re.findall(
        r"^```(\w+)\n(?:# (\S+)\n)?(.*?)^```$", SECTIONS[section], re.M | re.S
    ):
        path = folder / (name or {"json": "shop.jsonl"}[language])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def follow(section: str, folder: Path, *more: str) -> list[dict]:
    """Saves the blocks and runs the commands; returns the metrics of the last one."""
    saved(section, folder)
    commands = COMMAND.findall(SECTIONS[section])
    assert commands, section
    for recipe, typed in commands:
        arguments = shlex.split(typed)
        keys = {argument.partition("=")[0] for argument in arguments}
        quick = [each for each in QUICK if each.partition("=")[0] not in keys]
        if "run_dir" not in keys:
            shutil.rmtree(folder / "run", ignore_errors=True)
            arguments.append("run_dir=run")
        done = run_recipe(recipe, *arguments, *quick, *more, cwd=folder)
        assert done.returncode == 0, done.stderr
    where = next(a.partition("=")[2] for a in arguments if a.startswith("run_dir="))
    return [json.loads(line) for line in (folder / where / "metrics.jsonl").read_text().splitlines()]


def test_every_kind_of_plug_in_has_its_example():
    kinds = {"reward", "data set", "renderer", "model", "loss", "engine", "logger"}
    assert kinds == {re.sub("^An? ", "", title) for title in SECTIONS}


def test_a_reward(tmp_path):
    metrics = follow("A reward", tmp_path)
    assert metrics[0]["reward_short"] == pytest.approx(
        1 - 8 / 48, abs=1e-6
    )  # every completion is cut at 8 tokens


def test_a_data_set(tmp_path):
    follow("A data set", tmp_path)
    assert json.loads((tmp_path / "run/samples.jsonl").read_text().splitlines()[0])["id"].startswith("train-")


def test_a_renderer(tmp_path):
    follow("A renderer", tmp_path)
    assert (tmp_path / "run/final/renderer.txt").read_text().startswith("lined:")
    assert "greeting: Hi\n" in (tmp_path / "run/config.yaml").read_text()
    shown = run_recipe("render", "--config-dir", "conf", "renderer=lined", cwd=tmp_path)
    assert shown.returncode == 0 and "Good day." in shown.stdout, shown.stderr


def test_a_model(tmp_path):
    shutil.copytree(ROOT / "assets/tiny", tmp_path / "my_model")
    follow("A model", tmp_path)
    assert "mine-word_problems" in (tmp_path / "run/config.yaml").read_text()


def test_a_loss(tmp_path):
    """The run is named after the loss's file, and logs the loss's own metric."""
    metrics = follow("A loss", tmp_path)
    assert metrics[0]["largest_ratio"] == pytest.approx(1.0, abs=1e-4)
    assert "name: tiny-word_problems-leave_one_out-8" in (tmp_path / "run/config.yaml").read_text()


def test_a_logger(tmp_path):
    metrics = follow("A logger", tmp_path)
    step, reward = (tmp_path / "run/rewards.csv").read_text().strip().split(",")
    assert (int(step), float(reward)) == (1, pytest.approx(metrics[0]["reward_total"]))


def test_an_engine(tmp_path):
    """An engine outside the project trains with a lag, plans, checks budgets and evaluates."""
    metrics = follow("An engine", tmp_path)
    assert [row["lag/max"] for row in metrics] == [0, 1, 1]
    command = ("--config-dir", "conf", "engine=copying", *QUICK)
    plan = run_recipe("rl_basic", *command, "plan=true", cwd=tmp_path)
    assert plan.returncode == 0 and "engine=copying" in plan.stdout, plan.stderr
    preflight = run_recipe(
        "preflight", "--config-dir", "conf", "engine=copying", "max_tokens=8", "problems=2", "completions=2",
        "budgets=[4,8]", "out=preflight", cwd=tmp_path,
    )  # fmt: skip
    assert preflight.returncode == 0 and "peak memory" in preflight.stdout, preflight.stderr
    evaluated = run_recipe(
        "evaluate", "run=copied", "problems=2", "completions=1", "budgets=[8]", "out=evaluation", cwd=tmp_path
    )
    assert evaluated.returncode == 0, evaluated.stderr


def test_an_engine_resumes_exactly(tmp_path):
    """With max_lag 0, two steps and a resumed third equal three steps in one run."""
    saved("An engine", tmp_path)
    settings = (
        "--config-dir", "conf", "engine=copying", "engine.max_lag=0", "loss=flashreinforce", "batch_size=8", *QUICK,
        "model.lora.rank=4", "eval_every=0",
    )  # fmt: skip
    for run, steps in (("whole", (3,)), ("halves", (2, 3))):
        for last in steps:
            done = run_recipe("rl_basic", *settings, f"max_steps={last}", f"run_dir={run}", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
    whole, halves = (
        [
            {
                k: v
                for k, v in json.loads(line).items()
                if not k.startswith("time/") and k != "tokens_per_second"
            }
            for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()
        ]
        for run in ("whole", "halves")
    )
    assert whole == halves and len(whole) == 3


def test_a_reward_set_that_grades_nothing(tmp_path):
    """Only the format is rewarded: no answer is compared, and metrics of correctness are absent instead of 0."""
    settings = ("~rewards.correct", "max_tokens=64", "max_steps=1", "batch_size=2", "group_size=2", "eval_every=1",
                "eval_problems=2", "logger=none", "run_dir=run")  # fmt: skip
    done = run_recipe("rl_basic", *settings, "eval_completions=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    absent = {
        "frac_all_good",
        "tokens_per_correct",
        "correct_given_finished",
        "grade/wrong",
        "reward_correct",
    }
    assert not absent & metrics.keys() and {"reward_format", "eval/reward_format"} <= metrics.keys()
    assert not any(name.startswith(("by_group/", "grade/", "eval/grade/", "eval/pass@")) for name in metrics)
    sample = json.loads((tmp_path / "run/samples.jsonl").read_text().splitlines()[0])
    assert (sample["correct"], sample["reason"]) == (None, "ungraded")
    assert (tmp_path / "run/report.html").is_file()
