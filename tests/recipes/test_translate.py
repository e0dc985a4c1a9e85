"""recipes.translate against a scripted server over real HTTP: good, bad, slow, broken, cut and refused answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forked import start
from tests.helpers.openai_server import Answer, Server, good, is_solution, text_of

ROWS = [
    {
        "question": f"Tom has {n + 2} red apples and {n + 30} green apples in the kitchen. How many apples does Tom have now?",
        "answer": f"Tom has {n + 2}+{n + 30} = <<{n + 2}+{n + 30}={2 * n + 32}>>{2 * n + 32} apples.\n#### {2 * n + 32}",
    }
    for n in range(12)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "en").mkdir()
    write(tmp_path / "en" / "train.jsonl", ROWS[:10])
    write(tmp_path / "en" / "test.jsonl", ROWS[10:])
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def translate(folder: Path, server: Server | None, *arguments: str, code: int = 0, **options: Any) -> str:
    """Runs the command to its end; returns its output, or the error line where `code` is not 0."""
    address = [f"server={server.url}"] if server else []
    run = start("translate", "data.path=en", *address, "model=m", "out=ja", *arguments, cwd=folder, **options)
    assert run.wait() == code, run.err
    if code == 2:
        assert run.err.count("\n") == 1, run.err
    return run.err if code else run.out


def first_text(request: dict[str, Any]) -> str:
    return "solution" if is_solution(request) else "question"


def test_a_whole_set(folder):
    """Each part is asked for once; the gold is in no request; what is written trains, with its originals beside it."""
    with Server(good) as server:
        out = translate(folder, server, "requests=4", environment={"OPENAI_API_KEY": "sk-secret"})
    assert "train: 10 rows, 10 kept" in out and "test: 2 rows, 2 kept" in out
    assert Counter(map(first_text, server.requests)) == {"question": 12, "solution": 12}
    assert server.most <= 4 and server.keys == {"Bearer sk-secret"}
    for request in server.requests:
        if is_solution(request):
            n = int(request["messages"][1]["content"].split("Tom has ")[1].split()[0]) - 2
            assert f"{2 * n + 32}" not in request["messages"][1]["content"], "the gold left the machine"
            assert "####" not in request["messages"][1]["content"]
    written = read(folder / "ja" / "train.jsonl")
    assert [row["id"] for row in written] == [f"train-{i}" for i in range(10)]
    for row, source in zip(written, ROWS, strict=False):
        assert row["original_question"] == source["question"] and row["original_answer"] == source["answer"]
        calculation, gold = source["answer"].split(" ", 2)[2].split(" apples.\n")
        assert calculation in row["answer"] and row["answer"].endswith(f"\n{gold}")
        assert "Tom" not in row["question"] + row["answer"]
    datasets = pytest.importorskip("datasets")
    assert datasets.Dataset.from_parquet(str(folder / "ja" / "test.parquet")).num_rows == 2
    card = (folder / "ja" / "README.md").read_text()
    assert "license: mit" in card and "`m`" in card and "| train | 10 | 10 | 0 |" in card
    assert "Translate this problem into {language}" in card
    page = (folder / "ja" / "sample.html").read_text()
    assert page.count("<section") == 12
    everything = "".join(
        p.read_text() for p in (folder / "ja").rglob("*") if p.suffix in (".json", ".jsonl", ".md")
    )
    assert "sk-secret" not in everything + out
    command = out.split("train on it: python -m recipes.rl_basic ")[1].split()
    plan = start("rl_basic", *command, "plan=true", cwd=folder)
    assert plan.wait() == 0, plan.err
    assert re.search(r"train problems +10 ", plan.out)


@pytest.mark.slow
def test_the_set_trains(folder):
    with Server(good) as server:
        out = translate(folder, server)
    command = out.split("train on it: python -m recipes.rl_basic ")[1].split()
    small = [
        "max_steps=1",
        "max_tokens=16",
        "batch_size=2",
        "group_size=2",
        "preflight=off",
        "eval_every=0",
        "run_dir=run",
    ]
    done = start("rl_basic", *command, *small, cwd=folder)
    assert done.wait() == 0, done.err
    report = json.loads((folder / "run" / "data.json").read_text())
    assert report["splits"]["train"]["kept"] == 10 and report["splits"]["train"]["rejected"] == {}


class Scripted:
    """Answers well, except what `faults` lists: for a text with the key in it, the answers in turn."""

    def __init__(self, faults: dict[str, list[Answer]]) -> None:
        self.faults = faults
        self.asked: Counter[str] = Counter()

    def __call__(self, request: dict[str, Any]) -> Answer:
        for key, answers in self.faults.items():
            if key in text_of(request) and answers:
                self.asked[key] += 1
                return answers.pop(0)
        return good(request)


def question(n: int) -> str:
    """What only the question of row n holds."""
    return f"[[1:{n + 2}]] red"


def test_bad_answers_are_asked_again_with_the_reason(folder):
    """Each kind of bad answer once; the second one is good, so every row is kept and the repetitions are counted."""
    bad = {
        question(0): Answer(""),
        question(1): Answer("申し訳ありませんが、この文章を翻訳することはできません。"),
        question(2): Answer("<think>Tom is トム"),
        question(3): Answer("トムは赤いリンゴを[[1]]個持っています。緑のリンゴはいくつですか？"),
        question(4): Answer(ROWS[4]["question"]),
        question(5): Answer("トムは赤いリンゴ[[1]]個と緑の", finish="length"),
        question(6): Answer("トムの台所には赤いリンゴが[[1]]個と緑のリンゴが99個あります。全部で何個ありますか？"),
        question(7): Answer("トムは[[1]]ドルの赤いリンゴと[[2]]個の緑のリンゴを持っています。全部でいくつですか？"),
        question(8): Answer("**翻訳** トムは台所に赤いリンゴを[[1]]個と緑のリンゴを[[2]]個持っています。全部で何個ですか？"),
        question(9): Answer(body="{broken"),
    }  # fmt: skip
    script = Scripted({key: [answer] for key, answer in bad.items()})
    script.faults[question(0)].append(Answer("half a character: \ud800"))
    with Server(script) as server:
        out = translate(folder, server, "splits=[train]")
    assert "train: 10 rows, 10 kept; asked again:" in out
    counted = json.loads((folder / "ja" / "report.json").read_text())["splits"]["train"]["asked_again"]
    assert counted == {
        "empty": 1, "refusal": 1, "thinking": 1, "numbers_lost": 2, "same_as_source": 1, "cut": 1, "units_changed": 1,
        "markdown": 1, "no_answer": 1, "broken_text": 1,
    }  # fmt: skip
    again = [r["messages"] for r in server.requests if len(r["messages"]) == 4]
    assert len(again) == 11 and all(m[2]["role"] == "assistant" for m in again)
    said = "\n".join(m[3]["content"] for m in again)
    assert "Numbers of the source are missing: 33. Keep every number." in said
    assert "Numbers that the source does not have: 99." in said
    assert "Units or currencies that the source does not have: dollar" in said


def test_what_fails_every_time_is_left_out_and_listed(folder):
    """attempts=2: a question that stays bad costs no solution; a solution without its marks is no solution."""
    words = "トムはリンゴを全部で持っています。"
    script = Scripted({question(0): [Answer("")] * 9, "[[1]] apples.": [Answer(words)] * 2})
    with Server(script) as server:
        out = translate(folder, server, "splits=[train]", "attempts=2", "requests=1")
    assert "train: 10 rows, 8 kept, 2 left out: 1 empty, 1 marks wrong" in out
    assert script.asked == {question(0): 2, "[[1]] apples.": 2}
    listed = read(folder / "ja" / "rejected.jsonl")
    assert [row["id"] for row in listed] == ["train-0", "train-1"]
    assert listed[1]["reasons"][0] == "marks wrong (missing [[1]])" and words in listed[1]["answer"]
    assert {row["id"] for row in read(folder / "ja" / "train.jsonl")} == {f"train-{i}" for i in range(2, 10)}


def test_a_server_in_trouble_is_asked_again(folder):
    """429, 500, 503, a cut connection and an answer that is too slow: each is repeated, and no row suffers."""
    trouble = [Answer(status=429, headers=("Retry-After: 0.1",)), Answer(status=500), Answer(status=503)]
    trouble += [Answer("x" * 99, cut=True), Answer("late", seconds=5.0)]
    with Server(Scripted({"": trouble})) as server:
        out = translate(folder, server, "splits=[train]", "server.timeout=2")
    assert "train: 10 rows, 10 kept" in out and "asked again" not in out
    assert len(server.requests) == 25
