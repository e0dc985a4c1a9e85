"""`python -m recipes.grade`, as a user runs it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from recipes.grade import Row, read_rows, replacing
from rl.errors import UserError
from tests.helpers.recipes import ROOT, run_afresh, run_recipe

DATA = Path(__file__).parents[1] / "data"


grade = functools.partial(run_recipe, "grade", cwd=ROOT)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ["grading_cases.jsonl", "grading_cases2.jsonl"])
def test_the_table_as_a_file(tmp_path, name):
    out = tmp_path / "out.jsonl"
    result = run_afresh("grade", f"file={DATA / name}", f"out={out}", cwd=ROOT)
    assert result.returncode == 0, result.stderr
    cases, rows = read(DATA / name), read(out)
    assert [row["id"] for row in rows] == [case["id"] for case in cases]
    for case, row in zip(cases, rows, strict=True):
        assert list(row) == ["id", "gold", "extracted", "correct", "format", "reason", "seconds"]
        assert row["correct"] in (0, 1) and row["format"] in (0, 1) and row["seconds"] <= 1
        assert case["expect_correct"] in (None, row["correct"]), case["id"]
        assert case["expect_format"] in (None, row["format"]), case["id"]
        if case.get("expect_gold", "") is None:
            assert (row["reason"], row["correct"]) == ("gold_rejected", 0)
    assert "correct" in result.stdout
    assert ("gold_rejected" in result.stdout) == any(case.get("expect_gold", "") is None for case in cases)


def test_raw_golds_anywhere(tmp_path):
    rows = [
        {"id": "a", "completion": "\\boxed{1080}", "gold": "so\n#### 1,080"},
        {"id": "b", "completion": "\\boxed{0.1}", "gold": "so $\\boxed{\\frac{1}{10}}$"},
        {"id": "c", "completion": "\\boxed{18}", "gold": "18 it is"},
        {"id": "d", "completion": "<think>\\boxed{18}", "gold": "#### 18"},
    ]
    out = tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", *rows)
    result = grade(f"file={source}", f"out={out}", "raw_gold=true", "answer_region=anywhere")
    assert result.returncode == 0, result.stderr
    assert [(row["gold"], row["correct"], row["reason"]) for row in read(out)] == [
        ("1080", 1, "correct"),
        ("\\frac{1}{10}", 1, "correct"),
        (None, 0, "gold_rejected"),
        ("18", 1, "correct"),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ('{"completion": "18", "gold": NaN}', "line 1: gold=nan: expected a finite number"),
        ('{"completion": "18", "gold": -Infinity}', "line 1: gold=-inf"),
        ("no json", "line 1"),
        ('["a"]', "line 1: expected an object"),
        ('{"id": 1, "answer": "18"}', "the row has id, answer"),
        ('{"completion": "18", "gold": "18", "format_spec": "box"}', "format_spec=box"),
        ('{"completion": "18", "gold": "18", "prefilled_think": "false"}', "prefilled_think=false"),
        ('{"completion_parts": [["a"]], "gold": "18"}', "line 1: completion_parts holds ['a']"),
        ('{"completion_parts": [["a", -1]], "gold": "18"}', "expected pairs"),
        ('{"completion_parts": [["a", 99999999999]], "gold": "18"}', "characters"),
        ('{"completion": ' + "[" * 100_000, "line 1"),
        ('{"completion": "18", "gold": ["18", "19"]}', "line 1: gold is a list; expected one text or number"),
        (
            '{"completion": ["18"], "gold": "18"}',
            "line 1: completion holds '18'; expected a text, or messages",
        ),
        ('{"completion": [{"role": "user", "content": "?"}], "gold": "18"}', "no assistant message"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, message):
    source = tmp_path / "in.jsonl"
    source.write_text(row, encoding="utf-8")
    with pytest.raises(UserError) as error:
        read_rows(source, raw_gold=False)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_assistants_last_message_is_the_completion(tmp_path):
    """As TRL logs the completions of conversations."""
    messages = [
        {"role": "assistant", "content": "\\boxed{1}"},
        {"role": "tool", "content": "2", "name": "x"},
        {"role": "assistant", "content": "\\boxed{3}"},
    ]
    file = write(tmp_path / "in.jsonl", {"completion": messages, "gold": "3"})
    assert read_rows(file, raw_gold=False) == [Row(1, "\\boxed{3}", "3")]


def test_rows_in_another_encoding_are_named_and_one_broken_character_is_not(tmp_path):
    source, row = tmp_path / "in.jsonl", '{"completion": "答えは\\\\boxed{3}です", "gold": "3"}'
    for codec, name in {"shift_jis": "SHIFT_JIS", "utf-16": "UTF-16"}.items():
        source.write_bytes(row.encode(codec))
        with pytest.raises(UserError, match=f"iconv -f {name} -t UTF-8"):
            read_rows(source, raw_gold=False)
    source.write_bytes(row.encode().replace("え".encode(), b"\xff"))
    assert read_rows(source, raw_gold=False) == [Row(1, "答\ufffdは\\boxed{3}です", "3")]


def test_null_is_the_default(tmp_path):
    row = {"completion": "\\boxed{1}", "gold": "1", "format_spec": None, "prefilled_think": None}
    assert read_rows(write(tmp_path / "in.jsonl", row), raw_gold=False) == [Row(1, "\\boxed{1}", "1")]


def test_a_users_mistake_is_one_line(tmp_path):
    result = grade(f"file={write(tmp_path / 'in.jsonl', ['a'])}", f"out={tmp_path / 'out.jsonl'}")
    assert result.returncode == 2
    assert "line 1" in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_out_is_checked_first_and_replaced_only_when_whole(tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("rows")
    (tmp_path / "link.jsonl").symlink_to(source)
    for given, said in {
        str(source): "is the input file",
        str(tmp_path / "link.jsonl"): "is the input file",
        str(tmp_path): "not a file",
        "": "not a file",
        "/dev/null": "not a file",
        str(tmp_path / ("x" * 300)): "cannot be written",
        "/proc/x": "cannot be written",
    }.items():
        with pytest.raises(UserError, match=f"^out={given}: {said}"), replacing(given, source):
            pytest.fail("graded")
    out.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(str(out), source) as file:
        file.write("half")
        raise KeyboardInterrupt
    assert out.read_text() == "old"
    with replacing(str(out), source) as file:
        file.write("new")
    assert out.read_text() == "new" and source.read_text() == "rows"
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "link.jsonl", "out.jsonl"}


def test_bad_paths_are_one_line(tmp_path):
    missing = grade(f"file={tmp_path / 'none.jsonl'}", f"out={tmp_path / 'out.jsonl'}")
    assert missing.returncode == 2 and "no such file" in missing.stderr
    source = write(tmp_path / "in.jsonl", {"completion": "\\boxed{1}", "gold": "1"})
    folder = grade(f"file={source}", f"out={tmp_path / 'none' / 'out.jsonl'}")
    assert folder.returncode == 2 and "no such folder" in folder.stderr
    nothing = grade()
    assert nothing.returncode == 2 and "file" in nothing.stderr
