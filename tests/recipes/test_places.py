"""A run does not depend on the folder it was started in, and recognises its model and data by their contents."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from rl.places import with_absolute_places
from tests.helpers.forked import Forked, start
from tests.helpers.recipes import ROOT

SETTINGS = (
    "data=jsonl", "data.path=rows.jsonl", "data.test_path=test.jsonl", "batch_size=2", "group_size=2", "max_tokens=4",
    "eval_every=0", "save_every=1", "preflight=off", "logger=none", "run_dir=run",
)  # fmt: skip


def write(path: Path, start_at: int, count: int) -> None:
    rows = [
        {"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"}
        for n in range(start_at, start_at + count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module", params=["model.lora.rank=4", "model.lora=null"], ids=["adapter", "full"])
def finished(request, tmp_path_factory, tiny_random_model) -> tuple[Path, str]:
    """A folder with `run`, two steps long, the model and the rows that it was trained from; and its setting."""
    folder = tmp_path_factory.mktemp("places")
    model, tokenizer = tiny_random_model()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    write(folder / "rows.jsonl", 0, 4)
    write(folder / "test.jsonl", 50, 3)
    process = train(folder, request.param)
    assert process.wait() == 0, process.err
    return folder, request.param


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    """A copy for one test. The copied run still names the original paths."""
    shutil.copytree(finished[0], tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def lora(finished) -> str:
    return finished[1]


def train(folder: Path, lora: str, *more: str, cwd: Path | None = None) -> Forked:
    return start("rl_basic", "model.path=model", lora, *SETTINGS, "max_steps=2", *more, cwd=cwd or folder)


def refused(process: Forked) -> str:
    assert process.wait() == 2, process.err
    lines = [line for line in process.err.splitlines() if not line.startswith("renderer=auto: ")]
    assert len(lines) == 1, process.err
    return lines[0]


def config(folder: Path) -> dict:
    return yaml.safe_load((folder / "run/config.yaml").read_text())


def test_another_base_in_the_same_place_is_refused(folder, lora, tiny_random_model):
    before = config(folder), (folder / "run/final/base.json").read_text()
    tiny_random_model(initializer_range=0.2)[0].save_pretrained(folder / "model")
    said = refused(train(folder, lora, "max_steps=3"))
    assert "its weights" in said and "step-000002 was trained on" in said and "model.path=FOLDER" in said
    assert (config(folder), (folder / "run/final/base.json").read_text()) == before


def test_another_tokenizer_that_renders_alike_is_refused(folder, lora, tiny_random_model):
    """Swaps two ids that no prompt of digits uses, so that the renderer's own fingerprint cannot notice."""
    file = folder / "model/tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["Q"], vocabulary["Z"] = vocabulary["Z"], vocabulary["Q"]
    file.write_text(json.dumps(tokenizer))
    said = refused(train(folder, lora, "max_steps=3"))
    assert "its tokenizer" in said and "was trained with" in said


def test_what_was_moved_is_accepted_by_its_contents(folder, lora):
    """Resumed from another folder, with renamed files; files with other contents have the old names."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    for old, new in {"model": "weights", "rows.jsonl": "train.jsonl", "test.jsonl": "held_out.jsonl"}.items():
        shutil.move(folder / old, elsewhere / new)
    write(elsewhere / "rows.jsonl", 90, 4)
    places = (
        "model.path=weights",
        "data.path=train.jsonl",
        "data.test_path=held_out.jsonl",
        "run_dir=../run",
    )
    process = train(folder, lora, "max_steps=3", *places, cwd=elsewhere)
    assert process.wait() == 0, process.err
    assert "after step 2" in process.out
    assert config(folder)["model"]["path"] == str(elsewhere / "weights")
    assert config(folder)["data"]["path"] == str(elsewhere / "train.jsonl")
    said = refused(train(folder, lora, "max_steps=4", *places, "data.path=rows.jsonl", cwd=elsewhere))
    assert "data.path=rows.jsonl is not what this run was started with (its train problems differ" in said
    assert config(folder)["data"]["path"] == str(elsewhere / "train.jsonl"), (
        "a refused place is not written down"
    )


def test_other_rows_are_refused_though_the_run_is_finished(folder, lora):
    write(folder / "other.jsonl", 70, 3)
    said = refused(train(folder, lora, "data.test_path=other.jsonl"))
    assert (
        "data.test_path=other.jsonl is not what this run was started with (its test problems differ" in said
    )
    said = refused(train(folder, lora, "data.path=other.jsonl"))
    assert "its train problems differ" in said


@pytest.mark.parametrize("recipe", ["sample", "evaluate"])
def test_a_run_is_looked_at_from_anywhere(recipe, folder, lora, tmp_path):
    more = {"sample": ("rows=3",), "evaluate": ("problems=3", "completions=1", "out=out")}[recipe]
    for old in ("model", "rows.jsonl", "test.jsonl"):
        shutil.move(folder / old, tmp_path / f"moved-{old}")
    tree = config(folder)  # as if it had been started in `folder`, not in the fixture's
    for node, key, name in (
        ("model", "path", "model"),
        ("data", "path", "rows.jsonl"),
        ("data", "test_path", "test.jsonl"),
    ):
        assert Path(tree[node][key]).is_absolute()
        tree[node][key] = str(folder / name)
    (folder / "run/config.yaml").write_text(yaml.safe_dump(tree))
    assert f"model.path={folder}/model: no such folder" in refused(
        start(recipe, "run=copy/run", *more, cwd=tmp_path)
    )
    places = ("model.path=moved-model", "data.path=moved-rows.jsonl", "data.test_path=moved-test.jsonl")
    process = start(recipe, "run=copy/run", *more, *places, cwd=tmp_path)
    assert process.wait() == 0, process.err


@pytest.mark.parametrize("recipe", ["sample", "evaluate"])
def test_another_base_is_refused_beside_a_run(recipe, folder, lora, tiny_random_model):
    model, tokenizer = tiny_random_model(initializer_range=0.2)
    model.save_pretrained(folder / "other")
    tokenizer.save_pretrained(folder / "other")
    more = () if recipe == "sample" else ("out=out",)
    assert "are not those that" in refused(start(recipe, "run=run", "model.path=other", *more, cwd=folder))


def test_places_are_absolute_but_for_what_the_project_ships(tmp_path, monkeypatch):
    tree = {
        "model": {"path": "assets/tiny"},
        "data": {"path": "x.jsonl", "test_path": None, "source": {"path": "~/y.jsonl"}},
        "renderer": {},
    }
    for folder in (tmp_path, ROOT):
        monkeypatch.chdir(folder)
        assert with_absolute_places(tree) == {
            "model": {"path": "assets/tiny"},
            "data": {
                "path": str(folder / "x.jsonl"),
                "test_path": None,
                "source": {"path": str(Path.home() / "y.jsonl")},
            },
            "renderer": {},
        }
    (tmp_path / "assets/tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert with_absolute_places(tree)["model"]["path"] == str(tmp_path / "assets/tiny")
