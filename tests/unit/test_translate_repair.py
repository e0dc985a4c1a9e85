"""Repairs of translated rows that exist: the hand-made rows, rows of our own for each reason, and `repair=FILE`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl.data.translate.answers import gold_of, split_answer
from rl.data.translate.checks import Direction
from rl.data.translate.journal import locked
from rl.data.translate.repair import repair_row, tidy
from tests.helpers.recipes import run_recipe, shared_dir

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "translated_rows.jsonl").read_text("utf-8").splitlines()
]
INTO_JAPANESE = Direction("en", "ja")
NO_SOURCE = ("", "")


def hand_made() -> list[dict]:
    return [
        json.loads(line)
        for line in (shared_dir() / "data" / "gsm8k_ja" / "rows.jsonl").read_text("utf-8").splitlines()
    ]


@pytest.mark.parametrize("row", ROWS, ids=[row["note"] for row in ROWS])
def test_every_reason_and_every_repair(row):
    source = (row["original_question"], row["original_answer"])
    found = repair_row(row["question"], row["answer"], source, "marker", INTO_JAPANESE)
    assert (found.faults[0].reason if found.faults else None) == row["reason"], list(map(str, found.faults))
    if row["reason"] is None:
        assert [change.what for change in found.changes] == row["changes"]
        assert gold_of(found.answer, "marker") == row["gold"]
        assert found.answer.count("####") == 1 and found.answer.endswith(f"#### {row['gold']}")


@pytest.mark.parametrize("row", [row for row in ROWS if row["reason"] is None], ids=lambda row: row["note"])
def test_a_repaired_row_needs_no_repair(row):
    source = (row["original_question"], row["original_answer"])
    once = repair_row(row["question"], row["answer"], source, "marker", INTO_JAPANESE)
    twice = repair_row(once.question, once.answer, source, "marker", INTO_JAPANESE)
    assert (twice.question, twice.answer) == (once.question, once.answer)
    assert twice.changes == [] and twice.faults == []


def test_the_hand_made_rows_without_a_source():
    """12 kept with the right gold; the one without a marker needs its source, three cannot be used."""
    reasons = {3: "missing_marker", 13: "different_markers", 14: "empty", 15: "refusal"}
    for row in hand_made():
        found = repair_row(row["question"], row["answer"], NO_SOURCE, "marker", INTO_JAPANESE)
        assert (found.faults[0].reason if found.faults else None) == reasons.get(row["id"]), row["note"]
        if not found.faults:
            assert split_answer(found.answer, "marker").last == f"#### {row['expect_gold']}", row["note"]


def test_the_hand_made_row_without_a_marker_is_repaired_from_its_source():
    row = hand_made()[3]
    source = (
        "A farmer's tank holds 500 liters of water. If 35 liters are used every day, how many liters are left after 8 days?",
        "In 8 days 35*8 = <<35*8=280>>280 liters are used.\n500-280 = <<500-280=220>>220 liters are left.\n#### 220",
    )
    found = repair_row(row["question"], row["answer"], source, "marker", INTO_JAPANESE)
    assert found.faults == [] and found.answer.endswith("220リットルです。\n#### 220")
    assert [change.what for change in found.changes] == ["marker_from_source"]


@pytest.mark.parametrize(
    ("calculation", "after"),
    [
        ("2*3 = <<2*3=5>>6個です。", "2*3 = <<2*3=6>>6個です。"),  # the result beside it proves the slip
        ("10/3 = <<10/3=3.33>>3.33です。", "10/3 = <<10/3=3.33>>3.33です。"),  # rounded
        ("20% = <<20%=0.2>>0.2です。", "20% = <<20%=0.2>>0.2です。"),
        ("7//2 = <<7//2=3>>3です。", "7//2 = <<7//2=3>>3です。"),  # not read, so not judged
    ],
)
def test_calculations_without_a_source(calculation, after):
    found = repair_row("りんごはいくつですか？", f"{calculation}\n#### 6", NO_SOURCE, "marker", INTO_JAPANESE)
    assert found.faults == [] and found.answer == f"{after}\n#### 6"


def test_a_calculation_that_nothing_mends_is_a_reason():
    found = repair_row(
        "りんごはいくつですか？", "2*3 = <<2*3=5>>5個です。\n#### 5", NO_SOURCE, "marker", INTO_JAPANESE
    )
    assert [str(fault) for fault in found.faults] == ["calculation wrong (<<2*3=5>>)"]


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("<think>a\n</think>\n\n答え", "答え"),
        ("reasoning without an opening tag</think>答え", "答え"),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>答え<|return|>",
            "答え",
        ),
        ("```text\n答え\n```", "答え"),
        ("翻訳：答え", "答え"),
        ("<think>never closed", "<think>never closed"),
        ("前 ```code``` 後", "前 ```code``` 後"),
    ],
)
def test_what_surrounds_an_answer(text, after):
    assert tidy(text)[0] == after


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_repair_writes_the_set_the_changes_and_what_is_left_out(tmp_path):
    """As for the article's set: rows without originals, and the English file they are aligned with."""
    english = [{"question": row["original_question"], "answer": row["original_answer"]} for row in ROWS]
    write(tmp_path / "train.jsonl", english)
    write(tmp_path / "ja.jsonl", [{k: row[k] for k in ("question", "answer")} for row in ROWS])
    arguments = ["repair=ja.jsonl", "data=gsm8k_ja", "data.source.path=train.jsonl", "out=repaired"]
    done = run_recipe("translate", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    kept = [i for i, row in enumerate(ROWS) if row["reason"] is None]
    written = read(tmp_path / "repaired" / "train.jsonl")
    assert [row["id"] for row in written] == [f"train-{i}" for i in kept]
    assert [row["original_answer"] for row in written] == [english[i]["answer"] for i in kept]
    assert {gold_of(row["answer"], "marker") for row in written} == {"72", "10", "150"}
    changes = read(tmp_path / "repaired" / "changes.jsonl")
    assert [(c["id"], c["what"]) for c in changes] == [
        (f"train-{i}", what) for i in kept for what in ROWS[i]["changes"]
    ]
    rejected = read(tmp_path / "repaired" / "rejected.jsonl")
    assert len(rejected) + len(written) == len(ROWS) and all(row["reasons"] for row in rejected)
    assert f"train: {len(ROWS)} rows, {len(kept)} kept" in done.stdout
    report = json.loads((tmp_path / "repaired" / "report.json").read_text())
    assert report["splits"]["train"]["rejected"]["numbers_lost"] == 3
    again = run_recipe("translate", *arguments, cwd=tmp_path)
    assert again.returncode == 0 and read(tmp_path / "repaired" / "train.jsonl") == written


def test_repair_of_the_public_set(tmp_path):
    """Rows of many languages with their originals as columns: the Japanese ones are read, from Parquet too."""
    datasets = pytest.importorskip("datasets")
    columns = ("question", "answer", "original_question", "original_answer")
    rows = [{**{k: row[k] for k in columns}, "language": "ja"} for row in ROWS[:5]]
    rows.insert(1, {**rows[0], "question": "Una pregunta de 48", "language": "es"})
    (tmp_path / "set").mkdir()
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "set" / "train-00000-of-00001.parquet")
    done = run_recipe("translate", "repair=set", "data=gsm8k_ja", "out=repaired", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "train: 5 rows, 5 kept; repaired: 1 marker from source" in done.stdout


def test_a_source_in_another_order_is_pointed_out(tmp_path):
    good = [row for row in ROWS if row["reason"] is None][:3]
    english = [{"question": row["original_question"], "answer": row["original_answer"]} for row in good]
    write(tmp_path / "train.jsonl", [*english[1:], english[0]])
    write(tmp_path / "ja.jsonl", [{k: row[k] for k in ("question", "answer")} for row in good])
    arguments = ["repair=ja.jsonl", "data=gsm8k_ja", "data.source.path=train.jsonl", "out=repaired"]
    done = run_recipe("translate", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "more than half left out: do the rows of train.jsonl have the same order?" in done.stdout


def test_rows_in_the_wrong_language_are_left_out_without_a_source(tmp_path):
    japanese = {"question": "トムはりんごを5個持っています。何個ありますか？", "answer": "5個です。\n#### 5"}
    english = {"question": "Tom has 5 apples. How many are there?", "answer": "He has 5.\n#### 5"}
    write(tmp_path / "mixed.jsonl", [japanese, english])
    done = run_recipe("translate", "repair=mixed.jsonl", "data=gsm8k_ja", "out=repaired", cwd=tmp_path)
    assert "train: 2 rows, 1 kept, 1 left out: 1 wrong language" in done.stdout, done.stderr


def test_a_repaired_set_is_not_overwritten_by_another(tmp_path):
    """Neither with another file nor with itself; the same file is repaired again as often as wanted."""
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / name, [{"question": "何個ありますか？", "answer": f"{len(name)}個です。\n#### 7"}])

    def repair(given: str) -> str:
        done = run_recipe("translate", f"repair={given}", "data=gsm8k_ja", "out=out", cwd=tmp_path)
        assert done.returncode in (0, 2) and done.stderr.count("\n") == bool(done.returncode), done.stderr
        return done.stderr

    assert repair("a.jsonl") == ""
    before = (tmp_path / "out" / "train.jsonl").read_bytes()
    for other in ("b.jsonl", "out", "out/train.jsonl"):
        assert "was started with other choices (repair: " in repair(other)
    assert (
        repair(str(tmp_path / "a.jsonl")) == "" and (tmp_path / "out" / "train.jsonl").read_bytes() == before
    )
    with locked(tmp_path / "out" / "work"):
        assert "another process" in repair("a.jsonl")
    (tmp_path / "out" / "work" / "job.json").write_text("[]")
    assert "was started with other choices" in repair("a.jsonl")


def test_places_that_hold_no_set(tmp_path):
    write(tmp_path / "ja.jsonl", [{"question": "何個ありますか？", "answer": "7個です。\n#### 7"}])
    (tmp_path / "file").write_text("mine")
    for out, message in {
        "file": "is a file; type an empty or a new folder",
        "file/below": "cannot create this folder (Not a directory); give another out",
        "/proc/nowhere": "cannot create this folder (No such file or directory); give another out",
    }.items():
        done = run_recipe("translate", "repair=ja.jsonl", "data=gsm8k_ja", f"out={out}", cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_a_parquet_file_prints_nothing_of_its_own(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"question": "何個ありますか？", "answer": "7個です。\n#### 7", "language": "ja"}]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "good.parquet")
    (tmp_path / "bad.parquet").write_bytes((tmp_path / "good.parquet").read_bytes()[:300])
    done = run_recipe("translate", "repair=good.parquet", "data=gsm8k_ja", "out=good", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = run_recipe("translate", "repair=bad.parquet", "data=gsm8k_ja", "out=bad", cwd=tmp_path)
    assert (
        done.returncode == 2 and "cannot be read as Parquet" in done.stderr and done.stderr.count("\n") == 1
    )


def test_what_repair_cannot_read(tmp_path):
    for arguments, message in {
        ("repair=missing.jsonl",): "repair=missing.jsonl: no such file or folder",
        ("repair=.", "data=gsm8k"): "to=ja: data=gsm8k holds rows in another language",
    }.items():
        done = run_recipe("translate", "data=gsm8k_ja", *arguments, "out=out", cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
        assert not (tmp_path / "out").exists()
