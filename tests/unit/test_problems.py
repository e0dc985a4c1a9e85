"""Data sets from outside: what is read, what is kept, in which order it comes, and what a user is told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.data.checks import is_refusal, normalized
from rl.data.config import DataConfig, FewShot, SourceConfig
from rl.data.problems import ProblemSet, load, peek
from rl.errors import UserError
from rl.rollouts import Problem
from tests.helpers.recipes import ROOT, shared_dir

SUFFIX = {
    "en": " Write your answer in the format \\boxed{answer}.",
    "ja": "回答は\\boxed{answer}の形式で書きなさい。",
}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(start, start + count)]


def config(path: str | None = None, **changes: Any) -> DataConfig:
    return DataConfig(name="own", path=path, **changes)


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    return text


# --- rows that cannot be trusted ------------------------------------------------------------------------


def test_defects_of_translated_rows_are_rejected_by_reason() -> None:
    path = shared_dir() / "data" / "gsm8k_ja" / "rows.jsonl"
    expected = [json.loads(line)["expect_gold"] for line in path.read_text(encoding="utf-8").splitlines()]

    found = load(config(str(path)), seed=0)

    train = found.report.splits["train"]
    assert (train.read, train.kept) == (16, 12)
    reasons = {"missing_marker": 1, "different_markers": 1, "empty_question": 1, "refusal": 1}
    assert train.rejected == reasons
    kept = [gold for row, gold in enumerate(expected) if row not in (3, 13, 14, 15)]
    assert [problem.answer for problem in found.train] == kept
    assert {problem.language for problem in found.train} == {"ja"}
    line = found.report.lines()[0]
    assert "16 read, 12 kept, 4 rejected" in line
    assert all(f"1 {reason.replace('_', ' ')}" in line for reason in reasons)
    assert found.report.to_json()["splits"]["train"]["rejected"] == reasons
    json.dumps(found.report.to_json(), allow_nan=False)


def test_a_source_row_repairs_a_missing_marker(tmp_path: Path) -> None:
    path = str(shared_dir() / "data" / "gsm8k_ja" / "rows.jsonl")
    original = {
        "id": 3,
        "question": "How many liters are left after 8 days?",
        "answer": "500 - 280 = 220\n#### 220",
    }
    by_id = SourceConfig(path=write(tmp_path / "source.jsonl", [original]), id="id")
    by_row = SourceConfig(path=write(tmp_path / "rows.jsonl", [{"answer": ""}] * 3 + [original]))

    for source in (by_id, by_row):
        found = load(config(path, source=source), seed=0)
        assert found.report.splits["train"].kept == 13
        assert found.report.splits["train"].noted == {"gold_from_source": 1}
        assert [p.answer for p in found.train if p.id == "train-3"] == ["220"]


def test_golds_that_differ_from_the_source_are_noted(tmp_path: Path) -> None:
    pairs = [(f"#### {i}", f"#### {i + (i in (2, 5, 7))}") for i in range(10)]
    table = [{"question": f"問{i}", "answer": a, "original": b} for i, (a, b) in enumerate(pairs)]

    report = load(
        config(write(tmp_path / "x.jsonl", table), source=SourceConfig(answer="original")), 0
    ).report

    assert report.splits["train"].noted == {"gold_differs_from_source": 3}
    assert [text.split(":")[0] for text in report.splits["train"].examples["gold_differs_from_source"]] == [
        "line 3",
        "line 6",
        "line 8",
    ]


def test_an_empty_cell_of_pandas_is_no_gold(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(
        '{"question": "a 1", "answer": NaN}\n{"question": "b 2", "answer": Infinity}\n{"question": "c", "answer": 3}\n'
    )
    report = load(DataConfig(name="own", path=str(file), gold="plain"), seed=0).report
    assert (report.splits["train"].kept, report.splits["train"].rejected["unreadable_gold"]) == (1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "申し訳ありませんが、この文章を翻訳することはできません。",
        "申し訳ございませんが、ご依頼には対応いたしかねます。",
        "この文章は翻訳できません。",
        "申し訳ありませんが、この質問には答えられません。",
        "私はAIアシスタントとして、この質問にはお答えできません。",
        "I'm sorry, but I can't assist with that request.",
        "Sorry, I cannot translate this text.",
        "I’m unable to help with this.",
        "As an AI language model, I do not have feelings.",
        "Unfortunately, I am not able to provide a translation.",
    ],
)
def test_refusals(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "Sorry for the mess, said Tom, and picked up 12 of the 30 toys. How many are left?",
        "I cannot help but count: 3 birds, then 4 more. How many birds do I see?",
        "As an AI researcher, Mei labels 40 images an hour. How many does she label in 6 hours?",
        "Unfortunately, I lost 3 of my 10 pens. How many are left?",
        "すみません、と言って太郎は3個のりんごを買いました。1個80円です。いくらですか？",
        "花子は問題を12問解きましたが、3問はできませんでした。何問解けましたか？",
        "残念ながら、雨で5人が来ませんでした。20人の予定でした。何人来ましたか？",
        "AIロボットは1時間に12個の部品を作れます。5時間では何個ですか？",
    ],
)
def test_questions_that_only_sound_like_refusals(text: str) -> None:
    assert not is_refusal(text)


def test_duplicates_empty_and_broken_questions(tmp_path: Path) -> None:
    table = [
        {"question": "Tom has 3 pens, and buys 4. How many?", "answer": "#### 7"},
        {"question": "tom has 3  pens and buys 4.\nHow many", "answer": "#### 7"},
        {"question": " ?\n", "answer": "#### 7"},
        {"question": None, "answer": "#### 7"},
        {"question": "Half a character: \ud83d", "answer": "#### 7"},
        {"question": "Tom has 3.5 pens, and buys 4. How many?", "answer": "#### 7.5"},
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in table))

    report = load(config(str(path)), seed=0).report.splits["train"]

    assert report.rejected == {"duplicate": 1, "empty_question": 2, "broken_text": 1}
    assert report.kept == 2


@given(st.text() | st.text(alphabet="a1 .,?"))
def test_comparison_ignores_width_case_blanks_and_punctuation(text: str) -> None:
    assert normalized(f"  {text.upper()}。 ") == normalized(text.upper())


@pytest.mark.parametrize(
    ("one", "other"),
    [("costs $1.5", "costs $15"), ("3 + 4", "3 - 4"), ("(3+4)*2", "3+4*2"), ("3:4", "34"), ("5!", "5")],
)
def test_comparison_keeps_numbers_and_operators_apart(one: str, other: str) -> None:
    assert normalized(one) != normalized(other)


def test_comparison_folds_the_width_of_japanese_text() -> None:
    assert normalized("１２個の りんご、いくつ？") == normalized("12個のりんごいくつ")


# --- leaks ----------------------------------------------------------------------------------------------


def test_a_leak_is_an_error_unless_allowed(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", rows(10))
    test = write(
        tmp_path / "test.jsonl", [{"question": "what is  4 + 1", "answer": "#### 5"}, *rows(3, start=50)]
    )

    text = message(lambda: load(config(train, test_path=test), seed=0))
    assert "1 of 10 train rows" in text
    assert "train-4 equals test-0" in text
    assert "data.allow_leak=true" in text

    allowed = load(config(train, test_path=test, allow_leak=True), seed=0)
    assert allowed.report.leaks == {"train-4": "test-0"}
    assert len(allowed.train) == 10


def test_a_leak_across_languages(tmp_path: Path) -> None:
    japanese = [
        {"question": f"{i}足す1は？", "answer": f"#### {i + 1}", "row": i, "en": f"What is {i} + 1?"}
        for i in range(8)
    ]
    train = write(tmp_path / "ja.jsonl", japanese)
    by_number = write(
        tmp_path / "numbered.jsonl", [{"question": "Add 1 to 6.", "answer": "#### 7", "row": 6}]
    )
    by_text = write(tmp_path / "english.jsonl", rows(2, start=7))
    source = write(tmp_path / "source.jsonl", rows(8))

    assert "train-6 equals test-0" in message(
        lambda: load(config(train, test_path=by_number, source=SourceConfig(id="row")), 0)
    )
    assert "train-7 equals test-0" in message(
        lambda: load(config(train, test_path=by_text, source=SourceConfig(question="en")), 0)
    )
    assert "train-7 equals test-0" in message(
        lambda: load(config(train, test_path=by_text, source=SourceConfig(path=source)), 0)
    )
    assert len(load(config(train, test_path=by_text), 0).train) == 8  # without the originals nobody can know


# --- order and batches ----------------------------------------------------------------------------------


def numbered(count: int, **changes: Any) -> ProblemSet:
    return load(
        config(generator=f"{__name__}.numbered_problems", train_size=count, test_size=0, **changes), seed=0
    )


def numbered_problems(split: str, count: int, seed: int, language: str) -> list[Problem]:
    return [Problem(f"{split}-{i}", f"{i}?", str(i), "en", "numbered") for i in range(count)]


@given(size=st.integers(1, 200), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 1000))
def test_an_epoch_is_a_permutation_decided_by_seed_and_epoch(size: int, seed: int, epoch: int) -> None:
    found = numbered(size)
    order = list(found.order(seed, epoch))
    assert sorted(order) == list(range(size))
    assert order == list(numbered(size).order(seed, epoch))


def test_epochs_and_seeds_differ() -> None:
    found = numbered(64)
    orders = [tuple(found.order(seed, epoch)) for seed in range(4) for epoch in range(4)]
    assert len(set(orders)) == 16


def test_without_shuffling_rows_come_as_they_stand() -> None:
    found = numbered(10, shuffle=False)
    assert [p.answer for p in found.batch(1, 4, seed=3)] == ["4", "5", "6", "7"]


def test_the_last_partial_batch_is_dropped_and_no_batch_straddles_epochs() -> None:
    found = numbered(10)
    assert found.steps_per_epoch(4) == 2
    for epoch in range(3):
        batches = [found.batch(2 * epoch + i, 4, seed=1) for i in range(2)]
        ids = [int(p.answer) for batch in batches for p in batch]
        assert ids == list(found.order(1, epoch))[:8]


def test_a_resumed_run_sees_the_uninterrupted_order() -> None:
    whole = [[p.id for p in numbered(64).batch(step, 8, seed=5)] for step in range(24)]
    fresh = numbered(64)
    assert [[p.id for p in fresh.batch(step, 8, seed=5)] for step in range(13, 24)] == whole[13:]
    counts = Counter(name for batch in whole for name in batch)
    assert set(counts.values()) == {3}  # 24 steps of 8 are three epochs of 64


def test_a_set_smaller_than_a_batch_is_one_batch(caplog: pytest.LogCaptureFixture) -> None:
    found = numbered(10)
    assert found.steps_per_epoch(16) == 1
    assert "batches of 10, not 16" in caplog.text
    for step in range(3):  # each step is an epoch
        assert [int(p.answer) for p in found.batch(step, 16, seed=0)] == list(found.order(0, step))


# --- prompts --------------------------------------------------------------------------------------------


def test_prompt_of_each_language(tmp_path: Path) -> None:
    table = [{"question": "How many?", "answer": "#### 1"}, {"question": "何個ですか？", "answer": "#### 2"}]
    found = load(config(write(tmp_path / "x.jsonl", table), suffix=SUFFIX), seed=0)
    assert [found.messages(p) for p in found.train] == [
        [{"role": "user", "content": "How many? Write your answer in the format \\boxed{answer}."}],
        [{"role": "user", "content": "何個ですか？回答は\\boxed{answer}の形式で書きなさい。"}],
    ]


def test_system_prompt_and_worked_examples_come_first() -> None:
    shots = [FewShot("1+1?", "\\boxed{2}"), FewShot("2足す2は？", "\\boxed{4}")]
    found = numbered(1, system_prompt="Be brief.", few_shot=shots, suffix={"en": " [en]", "ja": "（日）"})
    assert found.messages(found.train[0]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1? [en]"},
        {"role": "assistant", "content": "\\boxed{2}"},
        {"role": "user", "content": "2足す2は？（日）"},
        {"role": "assistant", "content": "\\boxed{4}"},
        {"role": "user", "content": "0? [en]"},
    ]


def test_long_prompts_are_taken_out_of_train_only(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", rows(12))
    test = write(tmp_path / "test.jsonl", rows(3, start=100))
    found = load(config(train, test_path=test), seed=0)

    found.filter_by_prompt_length(lambda problem: len(problem.question), limit=len("What is 9 + 1?"))

    assert [p.id for p in found.train] == [f"train-{i}" for i in range(10)]
    assert len(found.test) == 3
    assert found.report.splits["train"].rejected == {"prompt_too_long": 2}
    assert found.report.splits["train"].kept == 10
    assert "data.max_prompt_tokens=3" in message(
        lambda: found.filter_by_prompt_length(lambda problem: 9, limit=3)
    )


# --- how much is read -----------------------------------------------------------------------------------


def test_fraction_reads_the_first_part_and_limit_keeps_the_first_usable(tmp_path: Path) -> None:
    table = rows(40)
    table[1]["answer"] = "no marker"
    path = write(tmp_path / "x.jsonl", table)
    part = load(config(path, fraction=0.25), seed=0).report.splits["train"]
    assert (part.read, part.kept) == (10, 9)
    few = load(config(path, limit=3), seed=0)
    assert [p.id for p in few.train] == ["train-0", "train-2", "train-3"]
    assert len(load(config(path, fraction=0.001), seed=0).train) == 1
    assert peek(config(path, fraction=0.25, limit=5)).rows == 5


def test_five_percent_of_numina_are_the_published_rows() -> None:
    assert config(fraction=0.05).planned_rows(72_441) == 3_622


def test_where_keeps_the_rows_that_have_the_value(tmp_path: Path) -> None:
    table = [{**row, "language": "ja" if i % 2 else "en"} for i, row in enumerate(rows(10))]
    path = write(tmp_path / "x.jsonl", table)
    found = load(config(path, where={"language": "ja"}, fraction=0.4), seed=0)
    assert [p.question for p in found.train] == ["What is 1 + 1?", "What is 3 + 1?"]
    assert len(load(config(path, where={"absent": "ja"}), seed=0).train) == 10


def test_other_columns_and_layouts(tmp_path: Path) -> None:
    fence = "```output\n\\boxed{7}\n```"
    table = [
        {"problem": "P?", "solution": f"\\boxed{{3}} {fence} so \\boxed{{10}}."},
        {"problem": "Q?", "solution": "42."},
    ]
    boxed = load(
        config(write(tmp_path / "b.jsonl", table), question="problem", answer="solution", gold="boxed"), 0
    )
    assert [p.answer for p in boxed.train] == ["10"]
    assert boxed.report.splits["train"].rejected == {"missing_marker": 1}
    plain = [{"question": f"{i}?", "answer": value} for i, value in enumerate([42, 2.5, "1,234", 1e16, ""])]
    found = load(config(write(tmp_path / "p.jsonl", plain), gold="plain"), 0)
    assert [p.answer for p in found.train] == ["42", "2.5", "1234", "10000000000000000"]
    assert found.report.splits["train"].rejected == {"unreadable_gold": 1}


# --- kinds of files -------------------------------------------------------------------------------------


def test_every_local_kind_gives_the_same_problems(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = rows(20)
    write(tmp_path / "train.jsonl", table)
    split = datasets.Dataset.from_list(table)
    (tmp_path / "parquet").mkdir()
    split.select(range(12)).to_parquet(tmp_path / "parquet" / "train-00000-of-00002.parquet")
    split.select(range(12, 20)).to_parquet(tmp_path / "parquet" / "train-00001-of-00002.parquet")
    split.to_parquet(tmp_path / "whole.parquet")
    split.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": split}).save_to_disk(tmp_path / "saved")

    expected = list(load(config(str(tmp_path), test_split=None), seed=0).train)
    assert len(expected) == 20
    for name in ("train.jsonl", "parquet", "whole.parquet", "one", "saved"):
        one = config(str(tmp_path / name), test_split=None)
        assert list(load(one, seed=0).train) == expected, name
        assert peek(one)[:2] == (expected[0], 20)
    # what `load_dataset` itself reads, as from the Hub
    hub = DataConfig(name="own", id=str(tmp_path / "parquet"), test_split=None)
    assert list(load(hub, seed=0).train) == expected
    text = message(lambda: load(config(str(tmp_path / "saved")), seed=0))
    assert "no split 'test'; it holds train" in text
    assert "columns" not in text
    text = message(lambda: load(config(str(tmp_path / "saved"), test_split=None, question="q"), seed=0))
    assert "it has question, answer" in text


def test_where_and_sources_of_arrow_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = [
        {
            "question": f"問{i}",
            "answer": "なし",
            "original_answer": f"#### {i}",
            "language": ["ja", "fr"][i % 2],
        }
        for i in range(6)
    ]
    datasets.DatasetDict({"train": datasets.Dataset.from_list(table)}).save_to_disk(tmp_path / "saved")
    found = load(
        config(
            str(tmp_path / "saved"),
            test_split=None,
            where={"language": "ja"},
            source=SourceConfig(answer="original_answer"),
        ),
        seed=0,
    )
    assert [p.answer for p in found.train] == ["0", "2", "4"]


def test_jsonl_with_blank_lines_a_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = [json.dumps(row) for row in rows(3)]
    path.write_bytes(("\ufeff" + "\r\n\r\n".join(lines)).encode())
    assert [p.id for p in load(config(str(path)), seed=0).train] == ["train-0", "train-1", "train-2"]
    path.write_bytes(path.read_bytes() + b"\r\n{]")
    assert f"{path}, line 6: not JSON" in message(lambda: load(config(str(path)), seed=0))


# --- what a user is told --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"question": "a", "answer": "#### 1"}\n{"question": ', "line 2: not JSON"),
        (b'{"question": "a", "answer": "#### 1"}\n\n[1, 2]', "line 3: JSON, but a list"),
        (b'{"question": "\xff", "answer": "#### 1"}', "line 1: not JSON"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b'{"question": 7, "answer": "#### 1"}', "line 1 holds a int; expected text"),
        (b'{"question": "a", "answer": true}', "line 1 holds a bool; expected text"),
        (b'{"questions": "a", "answer": "#### 1"}', "it has questions, answer; type data.question=questions"),
        (b'{"question": "a", "gold": "#### 1"}', "it has question, gold; type data.answer="),
        (b"", "has no rows"),
        (b'{"question": "a", "answer": "1"}', "no usable row (1 read, 0 kept, 1 rejected: 1 missing marker)"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(content)
    text = message(lambda: load(config(str(path)), seed=0))
    assert expected in text
    assert str(path) in text
    if b"\n" not in content:
        assert message(lambda: peek(config(str(path)))) == text


def test_missing_and_unknown_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = message(lambda: load(config("nowhere/x.jsonl"), seed=0))
    assert str(tmp_path / "nowhere" / "x.jsonl") in text
    assert "data.path" in text
    (tmp_path / "x.csv").write_text("question,answer\n")
    assert "expected .jsonl, .parquet" in message(lambda: load(config("x.csv"), seed=0))
    assert "data.path=" in message(lambda: load(config(), seed=0))
    write(tmp_path / "own.jsonl", rows(2))
    text = message(lambda: load(config("."), seed=0))
    assert "no split 'test'" in text
    assert "own.jsonl" in text
    assert "data.test_path=no.jsonl" in message(
        lambda: load(config("own.jsonl", test_path="no.jsonl"), seed=0)
    )
    assert "data.source.path=no.jsonl" in message(
        lambda: load(config("own.jsonl", source=SourceConfig(path="no.jsonl")), seed=0)
    )
    (tmp_path / "x.parquet").write_text("no parquet")
    assert "cannot be read as Parquet" in message(lambda: load(config("x.parquet"), seed=0))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fraction": 0.0}, "data.fraction=0.0"),
        ({"fraction": 1.5}, "data.fraction=1.5"),
        ({"limit": 0}, "data.limit=0"),
        ({"max_prompt_tokens": -1}, "data.max_prompt_tokens=-1"),
        ({"test_size": -1}, "data.test_size=-1"),
        ({"generator": "a.b"}, "data.train_size="),
        ({"suffix": {"fr": "x"}}, "data.suffix.fr"),
    ],
)
def test_values_out_of_range(changes: dict[str, Any], expected: str) -> None:
    assert expected in message(lambda: config(**changes))


def test_the_hub_is_not_asked_for_a_plan() -> None:
    found = peek(DataConfig(name="gsm8k", id="openai/gsm8k", rows=7473, limit=100))
    assert found[:2] == (None, 100)
    assert "needs the Hub: openai/gsm8k" in found.note


def test_without_network_the_way_out_is_named() -> None:
    code = (
        "from rl.data.config import DataConfig\nfrom rl.data.problems import load\n"
        "from rl.errors import UserError\n"
        "try: load(DataConfig(name='gsm8k', id='openai/gsm8k', config='main'), 0)\n"
        "except UserError as error: print(error)"
    )
    result = python(code, HF_HUB_OFFLINE="1", HF_HOME="/nonexistent")
    assert "openai/gsm8k" in result
    assert "data.path=" in result
    assert result.count("\n") == 1


def test_a_jsonl_file_is_checked_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", rows(3))
    code = (
        "import sys\n"
        "from rl.data.config import DataConfig\nfrom rl.data.problems import load, peek\n"
        f"config = DataConfig(name='own', path={path!r})\n"
        "peek(config); assert len(load(config, 0).train) == 3\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'numpy', 'hydra'} & set(sys.modules)))"
    )
    assert python(code) == "[]\n"


def python(code: str, **environment: str) -> str:
    import os

    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout


@pytest.mark.slow
def test_a_million_rows_start_in_seconds_with_flat_memory(tmp_path: Path) -> None:
    path = tmp_path / "million.jsonl"
    story = "Tom packs boxes of pens all day long and counts every one of them twice. " * 4
    with path.open("w") as file:
        for i in range(1_000_000):
            file.write(
                f'{{"question": "{story}What is {i} + 1?", "answer": "It is {i + 1}.\\n#### {i + 1}"}}\n'
            )
    code = (
        "import resource, time\n"
        "from rl.data.config import DataConfig\nfrom rl.data.problems import load\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "before, start = peak(), time.process_time()\n"
        f"found = load(DataConfig(name='own', path={str(path)!r}), 0)\n"
        "assert len(found.batch(1000, 128, seed=0)) == 128\n"
        "print(len(found.train), peak() - before, time.process_time() - start)"
    )
    kept, megabytes, seconds = map(float, python(code).split())
    assert kept == 1_000_000
    assert megabytes < 300  # the file has 350 MB
    assert seconds < 60
