"""`python -m recipes.evaluate` as a user runs it: a model alone, a run, an adapter, and every mistake in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forked import Forked, start

SMALL = ("problems=6", "completions=2", "out=out")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_random_model) -> Path:
    """`same`: a run of an adapter that was never moved. `moved`: one that was. `other`: a model of other weights."""
    folder = tmp_path_factory.mktemp("evaluate")
    for name in ("model", "other"):
        model, tokenizer = tiny_random_model(initializer_range=0.3 if name == "model" else 0.2)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "odd_reward.py").write_text(
        "def odd(rollouts):\n    return [sum(r.completion.tokens) % 2 for r in rollouts]\n"
    )
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"question": f"{n} + 1?", "answer": f"#### {n + 1}"}) + "\n" for n in range(9))
    )
    for name, rate in {"same": 0.0, "moved": 0.3}.items():
        process = start(
            "rl_basic", "model.path=model", "model.lora.rank=4", "+rewards.odd._target_=odd_reward.odd", "data.train_size=8",
            "data.test_size=8", "batch_size=2", "group_size=4", "max_tokens=12", "max_steps=3", "save_every=1", "eval_every=0",
            "logger=none", f"learning_rate={rate}", f"run_dir={name}", cwd=folder,
        )  # fmt: skip
        assert process.wait() == 0, process.err
    return folder


def evaluate(folder: Path, *arguments: str) -> Forked:
    return start("evaluate", *arguments, cwd=folder)


def results(process: Forked, folder: Path, out: str = "out") -> dict[tuple[str, int, str], dict[str, Any]]:
    """The rows of evaluation.json by policy, budget and part."""
    assert process.wait() == 0, process.err
    document = json.loads((folder / out / "evaluation.json").read_text())
    return {(row["policy"], row["budget"], row["part"]): row for row in document["results"]}


def test_the_embedded_model_alone_at_three_budgets(tmp_path: Path) -> None:
    process = evaluate(tmp_path, "budgets=[128,16,64,16]", "problems=8", "completions=2", "ks=[2]", "out=out")
    rows = results(process, tmp_path)
    assert list(dict.fromkeys(budget for _, budget, _ in rows)) == [16, 64, 128]
    assert {policy for policy, _, _ in rows} == {"base"}
    assert {part for _, _, part in rows} >= {"all", "language=en", "language=ja"}
    cut = [rows["base", budget, "all"]["truncated"] for budget in (16, 64, 128)]
    assert cut[0][0] == 1 and cut[0][0] >= cut[1][0] > cut[2][0] == 0
    assert (
        rows["base", 16, "all"]["accuracy"][0] == 0
        and rows["base", 16, "all"]["tokens_per_correct"][0] is None
    )
    assert rows["base", 128, "all"]["accuracy"][0] >= 0.8
    assert rows["base", 128, "all"]["problems"] == 8 and rows["base", 128, "language=ja"]["problems"] == 4
    assert "pass@2" in process.out and "8 problems x 2 completions" in process.out
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "budgets-dark.png", "budgets-light.png", "evaluation.json", "evaluation.md",
    ]  # fmt: skip


def test_the_same_command_gives_the_same_bytes(folder: Path) -> None:
    for out in ("first", "again"):
        process = evaluate(folder, "run=moved", "problems=4", "seed=7", f"out={out}")
        assert process.wait() == 0, process.err
    for file in (folder / "first").iterdir():
        assert file.read_bytes() == (folder / "again" / file.name).read_bytes(), file.name


def test_a_run_is_measured_on_its_own_test_split_and_budget(folder: Path) -> None:
    """An adapter that was never moved changes nothing; one that was does."""
    rows = results(evaluate(folder, "run=same", *SMALL, "budgets=[6,12]"), folder)
    for name in ("accuracy", "reward", "format", "truncated", "tokens", "pass@2", "maj@2"):
        assert rows["trained", 12, "all"][name] == rows["base", 12, "all"][name]
        assert rows["change", 12, "all"][name][0] == 0
    assert rows["change", 12, "all"]["tokens"] == [0, 0, 0]
    assert rows["change", 12, "language=ja"]["problems"] == 3

    rows = results(evaluate(folder, "run=moved", *SMALL), folder)
    assert {budget for _, budget, _ in rows} == {12}
    assert rows["change", 12, "all"]["reward"][0] != 0  # the run's own reward counts

    checkpoint = evaluate(folder, "run=moved/checkpoints/step-000003", *SMALL)
    assert results(checkpoint, folder) == rows  # the last step's


def test_an_adapter_beside_a_model_and_another_data_set(folder: Path) -> None:
    rows = results(
        evaluate(folder, "model.path=model", "adapter=moved/final", "budgets=[12]", "data=jsonl", "data.path=rows.jsonl",
                 "split=train", *SMALL), folder,
    )  # fmt: skip
    assert {policy for policy, _, _ in rows} == {"base", "trained", "change"}
    assert {part for _, _, part in rows} == {"all", "language=en"}
    same_data = results(
        evaluate(folder, "run=moved", "data=jsonl", "data.path=rows.jsonl", "split=train", *SMALL), folder
    )
    # The run's rewards differ from the default ones, what the two policies said does not.
    for key, row in rows.items():
        assert {**same_data[key], "reward": 0, "signal": 0} == {**row, "reward": 0, "signal": 0}


def test_what_is_typed_of_a_node_takes_its_place_in_the_runs(folder: Path) -> None:
    """The run generated 8 test problems; three more are asked for here, in one language."""
    rows = results(
        evaluate(folder, "run=same", "data.test_size=11", "data.language=ja", "problems=null", "completions=1", "out=out"),
        folder,
    )  # fmt: skip
    assert rows["base", 12, "all"]["problems"] == rows["base", 12, "language=ja"]["problems"] == 11


MISTAKES = {
    "k beyond the completions": (["ks=[1,9]"], "ks=[1, 9]: expected numbers from 1 to the completions of a problem (8)"),
    "no budget": (["budgets=[]"], "budgets=[]: expected integers from 1"),
    "budget of none": (["budgets=[16,0]"], "budgets=[16, 0]: expected integers from 1"),
    "budget that is no list": (["budgets=16"], "budgets=16: expected a list in brackets"),
    "budget beyond the context": (["budgets=[64,2000]"], "the context of tiny is 1024; type budgets of at most 957"),
    "typo": (["budgts=[16]"], "did you mean budgets?"),
    "greedy completions": (["temperature=0", "completions=4"], "completions=4: with temperature=0"),
    "temperature": (["temperature=nan"], "temperature=nan: expected 0 (greedy) or a positive number"),
    "no test split": (["data=jsonl", "data.path=rows.jsonl"], "type data.test_path=FILE.jsonl, or split=train"),
    "missing run": (["run=nowhere"], "run=nowhere: holds no weights"),
    "run and adapter": (["run=same", "adapter=same/final"], "run, adapter: expected only one of them"),
    "run and model": (["run=same", "model=qwen3-8b"], "a run brings its own model"),
    "run and another model's path": (["run=same", "model.path=other"], "are not those that"),
    "run and model id": (["run=same", "model.id=a/b"], "a run brings its own model"),
    "weights without a run": (["run=model"], "not in a run directory"),
    "missing adapter": (["adapter=nowhere"], "adapter=nowhere: holds no weights"),
    "another base": (["model.path=other", "adapter=moved/final"], "are not those that"),
    "another chat format": (["run=same", "renderer=role_colon"], "was trained with the chat format"),
    "out is a file": (["out=rows.jsonl"], "cannot create this folder"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line(folder: Path, arguments: list[str], said: str) -> None:
    process = evaluate(folder, *arguments)
    assert process.wait() == 2, process.err
    *before, last = process.err.splitlines()
    assert last.startswith("error: ") and said in last, process.err
    assert all(
        line.startswith("renderer=auto: ") for line in before
    )  # a warning of a model outside the catalogue


@pytest.mark.slow
def test_a_sweep_keeps_its_jobs_apart(folder: Path) -> None:
    few = ("-m", "run=same,moved", "problems=2", "completions=1")
    process = evaluate(folder, *few, "hydra.sweep.dir=sweep")
    assert process.wait() == 0, process.err
    assert len(list((folder / "sweep").glob("run=*/evaluation.json"))) == 2
    process = evaluate(folder, *few, "hydra.sweep.dir=refused", "out=one")
    assert process.wait() == 1
    for job in (folder / "refused").glob("run=*"):
        assert "out: one folder cannot hold all jobs of a sweep" in (job / "train.log").read_text()
