"""Columns for rewards, originals of translated rows, prompts that are too long, and files that are no rows at all."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipes.sample import read_questions
from rl.data.config import DataConfig, SourceConfig
from rl.data.problems import load, peek
from rl.errors import UserError
from rl.storage.file_kinds import likely_encoding
from tests.helpers.forked import start
from tests.helpers.recipes import run_recipe

POINTER = b"version https://git-lfs.example/spec/v1\noid sha256:0123\nsize 12345\n"
JAPANESE = '{"question": "りんごが3個、みかんが4個あります。全部で何個ですか？", "answer": "#### 7"}\n'


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"question": f"{i} + 1?", "answer": f"#### {i + 1}", "level": i % 3, **more} for i in range(count)
    ]


def config(path: str, **changes: Any) -> DataConfig:
    return DataConfig(name="own", path=path, test_split=None, **changes)


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_columns_of_every_kind_of_file_reach_the_problem(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = rows(4, tags=["a", "b"])
    path = write(tmp_path / "x.jsonl", table)
    datasets.Dataset.from_list(table).to_parquet(tmp_path / "x.parquet")
    datasets.Dataset.from_list(table).save_to_disk(tmp_path / "saved")
    for source in (path, str(tmp_path / "x.parquet"), str(tmp_path / "saved")):
        found = load(config(source, columns=["level", "tags"]), seed=0)
        assert [p.extra for p in found.train] == [{"level": i % 3, "tags": ["a", "b"]} for i in range(4)]
        assert load(config(source), seed=0).train[0].extra == {}
        hash(found.train[0])
    text = message(lambda: load(config(path, columns=["levl"]), seed=0))
    assert "data.columns=[levl]: no such column in" in text and "line 1" in text
    assert "it has question, answer, level, tags; type data.columns=[level]" in text
    table[2].pop("level")
    write(tmp_path / "x.jsonl", table)
    assert "line 3" in message(lambda: load(config(path, columns=["level"]), seed=0))


def test_a_reward_reads_a_column_and_a_run_notices_when_it_changed(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def level(rollouts):\n    return [r.problem.extra['level'] / 4 for r in rollouts]\n"
    )
    write(tmp_path / "x.jsonl", [{**row, "level": 2} for row in rows(4)])
    arguments = (
        "data=jsonl", "data.path=x.jsonl", "data.columns=[level]", "+rewards.level._target_=mine.level", "batch_size=2", "group_size=2",
        "max_tokens=4", "eval_every=0", "preflight=off", "logger=jsonl", "report.language=en", "run_dir=r",
    )  # fmt: skip
    process = start("rl_basic", *arguments, "max_steps=1", cwd=tmp_path)
    assert process.wait() == 0, process.err
    metrics = json.loads((tmp_path / "r/metrics.jsonl").read_text())
    assert metrics["reward_level"] == 0.5
    write(tmp_path / "x.jsonl", [{**row, "level": 3} for row in rows(4)])
    process = start("rl_basic", *arguments, "max_steps=2", cwd=tmp_path)
    assert process.wait() == 2 and "is not what this run was started with" in process.err


# --- translated rows ------------------------------------------------------------------------------------


def test_a_given_file_of_originals_goes_before_the_columns_that_a_shipped_set_names(tmp_path):
    """What docs/data.md shows, with the columns of data=gsm8k_ja."""
    shipped = {"question": "original_question", "answer": "original_answer"}
    originals = write(tmp_path / "en.jsonl", rows(3))
    translated = [{"question": f"{i} たす 1 は？", "answer": "答えは" if i else "#### 1"} for i in range(3)]
    ours = config(write(tmp_path / "ja.jsonl", translated), source=SourceConfig(**shipped, path=originals))
    found = load(ours, seed=0)
    assert found.report.splits["train"].noted == {"gold_from_source": 2}
    assert [p.answer for p in found.train] == ["1", "2", "3"]
    # A file that lacks a row leaves it to the columns beside the translation.
    beside = [{**row, "original_answer": f"#### {i + 7}"} for i, row in enumerate(translated)]
    write(tmp_path / "ja.jsonl", beside)
    write(tmp_path / "en.jsonl", rows(2))
    assert [p.answer for p in load(ours, seed=0).train] == ["1", "2", "9"]
    write(tmp_path / "first.jsonl", [{"question": "0 たす 1 は？", "answer": ""}, *translated[1:]])
    assert (
        peek(config(str(tmp_path / "first.jsonl"), source=SourceConfig(path=originals))).problem.answer == "1"
    )


@pytest.mark.parametrize(
    ("source", "ours", "expected"),
    [
        ([{"q": "a", "a": "#### 1"}], {}, "has no column question or answer; it has q, a"),
        ([], {}, "has no rows"),
        ([{"answer": "#### 1"}], {"id": "n"}, "data.source.id=n: no such column in data.source.path="),
        ([{"answer": "#### 1", "n": 1}], {"id": "n"}, "data.source.id=n: no such column in"),
    ],
)
def test_originals_that_can_repair_nothing_are_one_line(tmp_path, source, ours, expected):
    path = write(tmp_path / "source.jsonl", source)
    translated = write(tmp_path / "ja.jsonl", rows(2))
    text = message(lambda: load(config(translated, source=SourceConfig(path=path, **ours)), seed=0))
    assert expected in text


# --- prompts that are too long --------------------------------------------------------------------------


def test_plan_and_run_and_its_files_count_the_same_problems(tmp_path):
    """66 rows, of which 30 are too long: 36 problems in batches of 4 are 9 steps."""
    table = [
        {**row, "question": row["question"] + " long" * 90 * (i % 11 < 5)} for i, row in enumerate(rows(66))
    ]
    write(tmp_path / "x.jsonl", table)
    arguments = (
        "data=jsonl", "data.path=x.jsonl", "data.max_prompt_tokens=120", "batch_size=4", "group_size=2", "max_tokens=2",
        "max_steps=null", "epochs=1", "eval_every=0", "save_every=0", "preflight=off", "logger=none", "run_dir=r",
    )  # fmt: skip
    plan = run_recipe("rl_basic", *arguments, "plan=true", cwd=tmp_path)
    assert re.search(r"train problems +36\b", plan.stdout) and re.search(r"optimiser steps +9\b", plan.stdout)
    assert "at most" not in plan.stdout
    unknown = run_recipe("rl_basic", *arguments, "plan=true", "model=qwen3-0.6b", cwd=tmp_path)
    assert re.search(r"train problems +at most 66\b", unknown.stdout), unknown.stderr
    assert re.search(r"optimiser steps +at most 16\b", unknown.stdout)
    process = start("rl_basic", *arguments, cwd=tmp_path)
    assert process.wait() == 0, process.err
    assert "66 read, 36 kept, 30 rejected: 30 prompt too long" in process.out
    facts = json.loads((tmp_path / "r/data.json").read_text())
    assert facts["train"]["kept"] == facts["splits"]["train"]["kept"] == 36
    assert facts["splits"]["train"]["rejected"] == {"prompt_too_long": 30}
    assert json.loads((tmp_path / "r/status.json").read_text())["step"] == 9


def test_a_plan_counts_rejected_rows_out(tmp_path):
    write(tmp_path / "x.jsonl", [*rows(5), *rows(3)])
    plan = run_recipe(
        "rl_basic", "data=jsonl", "data.path=x.jsonl", "plan=true", "batch_size=2", cwd=tmp_path
    )
    assert re.search(r"train problems +5\b", plan.stdout), plan.stderr


# --- files that are no rows -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "name"),
    [
        ("shift_jis", "SHIFT_JIS"),
        ("euc_jp", "EUC-JP"),
        ("iso2022_jp", "ISO-2022-JP"),
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
    ],
)
def test_rows_in_another_encoding_are_named_with_what_converts_them(tmp_path, codec, name):
    path = tmp_path / "rows.jsonl"
    path.write_bytes((JAPANESE * 2).encode(codec))
    text = message(lambda: load(config(str(path)), seed=0))
    assert f"looks like {name}; type iconv -f {name} -t UTF-8 {path} > " in text
    command = text.partition("; type ")[2].partition(" and give that file")[0]
    subprocess.run(command, shell=True, check=True)
    assert load(config(str(tmp_path / "rows.utf8.jsonl")), seed=0).train[0].answer == "7"
    if codec in ("shift_jis", "euc_jp", "utf-16"):
        assert f"iconv -f {name}" in message(lambda: read_questions(path, config(str(path))))


@pytest.mark.parametrize(
    "data", [JAPANESE.encode(), JAPANESE.encode()[:-20] + b'\xff"}', b'{"question": "caf\xe9"}', b"{]", b""]
)
def test_no_encoding_is_guessed_without_a_sign_of_it(data):
    assert likely_encoding(data) is None


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_git_lfs_pointer_in_place_of_rows_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(POINTER)
    text = message(lambda: load(config(str(tmp_path / name)), seed=0))
    assert "is a Git LFS pointer" in text and "git lfs pull" in text
