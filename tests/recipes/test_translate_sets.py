"""recipes.translate on other sets and directions, and its second opinion."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from rl.data.translate.rows import Result, SourceRow
from rl.data.translate.sample import table
from tests.helpers.openai_server import Answer, Server, good, is_solution, text_of
from tests.recipes.test_translate import ROWS, folder, read, translate, write

__all__ = ["folder"]


def into_english(request: dict[str, Any]) -> Answer:
    """English with the marks of the source, in order."""
    marks = [int(number) for number in re.findall(r"\[\[(\d+)", text_of(request))]
    if is_solution(request):
        return Answer("\n".join(f"Then we count [[{mark}]] of the red apples." for mark in marks))
    return Answer(
        f"Ken buys [[{marks[0]}]] red apples and [[{marks[1]}]] green apples. How many does he have in all?"
    )


def test_into_english(folder):
    row = {
        "question": "健は赤いりんごを１２個と青いりんごを1万2000個買いました。りんごは全部で何個ありますか？",
        "answer": "りんごは全部で12+12000 = <<12+12000=12012>>12012個です。\n#### 12,012個",
    }
    write(folder / "ja.jsonl", [row])
    with Server(into_english) as server:
        out = translate(folder, server, "data=gsm8k_ja", "data.path=ja.jsonl", "to=en", "out=en2")
    assert "train: 1 rows, 1 kept" in out and "data=gsm8k data.path=" in out
    (written,) = read(folder / "en2" / "train.jsonl")
    assert written["question"].startswith("Ken buys 12 red apples and 12,000 green apples.")
    assert written["answer"] == (
        "Then we count 12+12000 = <<12+12000=12012>>12012 of the red apples.\n#### 12,012個"
    )
    assert written["language"] == "en" and written["original_question"] == row["question"]


def test_formulas_code_and_boxes_come_back_as_they_were(folder):
    row = {
        "problem": "What is the coefficient of $x^2y^6$ in the expansion of $\\left(\\frac{3}{5}x-\\frac{y}{2}\\right)^8$?",
        "solution": "We use the binomial theorem for $(a+b)^n$ here:\n```python\nprint(28 * 9 / 1600)\n```\n```output\n0.1575\n```\n"
        "The coefficient is therefore $\\boxed{\\frac{63}{400}}$, as expected.",
    }
    write(folder / "tir.jsonl", [row])
    with Server(good) as server:
        arguments = ["data=numina_math_tir", "data.path=tir.jsonl", "splits=[train]", "sample=0"]
        out = translate(folder, server, *arguments)
    assert "train: 1 rows, 1 kept" in out, (folder / "ja" / "rejected.jsonl").read_text()
    assert "data=jsonl" in out and "data.question=problem data.answer=solution data.gold=boxed" in out
    (written,) = read(folder / "ja" / "train.jsonl")
    for formula in re.findall(r"\$[^$]+\$", row["problem"] + row["solution"]):
        assert formula in written["problem"] + written["solution"]
    assert "```python\nprint(28 * 9 / 1600)\n```" in written["solution"]
    for request in server.requests:
        assert "63" not in request["messages"][1]["content"], "the gold left the machine"


def test_a_source_with_its_answer_twice_gets_it_once(folder):
    gold = ROWS[0]["answer"].rpartition("\n")[2]
    write(folder / "en" / "train.jsonl", [{**ROWS[0], "answer": f"{ROWS[0]['answer']}\n{gold}"}])
    with Server(good) as server:
        out = translate(folder, server, "splits=[train]")
    assert "train: 1 rows, 1 kept; repaired: 1 marker doubled" in out
    answer = read(folder / "ja" / "train.jsonl")[0]["answer"]
    assert answer.count("####") == 1 and answer.endswith(f"\n{gold}")


def test_rows_with_a_bare_answer(folder):
    """Only the question is asked for; the answer is the source's."""
    write(
        folder / "own.jsonl", [{"problem": "How many legs do 3 dogs and 2 birds have in all?", "result": 16}]
    )
    columns = ["data.question=problem", "data.answer=result", "data.gold=plain", "data.language=en"]
    with Server(good) as server:
        out = translate(folder, server, "data=jsonl", "data.path=own.jsonl", *columns)
    (written,) = read(folder / "ja" / "train.jsonl")
    assert written["result"] == "16" and len(server.requests) == 1
    assert "unknown: ask its authors" in (folder / "ja" / "README.md").read_text()
    assert "data.gold=plain" in out


def judged(kind: str) -> Any:
    """A judge that doubts the row with 35 green apples."""

    def script(request: dict[str, Any]) -> Answer:
        if request["model"] != "judge":
            return good(request)
        text = request["messages"][0]["content"]
        if kind == "yes_no":
            return Answer("<think>hm</think>No." if "and 35 green" in text else "**Yes**")
        numbers = re.findall(r"\d+", text.split("\n\n")[1])
        same = f"Tom has {numbers[0]} red apples and {numbers[1]} green apples in the kitchen. How many apples does Tom have now?"
        return Answer("Something else entirely, about fish." if numbers[1] == "35" else same)

    return script


def test_a_second_opinion_ranks_the_sample(folder):
    for kind in ("yes_no", "back_translation"):
        with Server(judged(kind)) as server:
            arguments = ["judge.model=judge", f"judge.kind={kind}", f"out={kind}", "sample=3"]
            out = translate(folder, server, *arguments)
        assert "train: 10 rows, 10 kept" in out, "a judge rejects nothing"
        assert sum(request["model"] == "judge" for request in server.requests) == 12
        page = (folder / kind / "sample.html").read_text()
        assert re.findall(r"<header>(train-\d+)", page)[0] == "train-5" and "第二の意見" in page
        assert page.count('class="doubtful"') == 1
        assert "`judge`" in (folder / kind / "README.md").read_text()


def test_the_page_escapes_what_a_model_wrote(folder):
    """Text of the source and of the model is text: no tag and no control code of theirs has an effect."""
    write(folder / "en" / "train.jsonl", [{"question": "How many <b>eggs</b> are in 3 <script>alert(1)</script> nests?", "answer": "#### 3"}])  # fmt: skip
    text = "\x1b[m<img src=x onerror=f()>の巣が[[1]]個と卵があります。全部で卵はいくつありますか？"
    with Server(lambda _: Answer(text)) as server:
        out = translate(folder, server, "splits=[train]")
    page = (folder / "ja" / "sample.html").read_text()
    assert "<script" not in page and "<img" not in page and "&lt;img" in page
    assert "\x1b[m" not in out


def test_the_terminal_shows_whole_texts():
    """Japanese without blanks is folded, not cut."""
    text = "トムは台所に赤いリンゴと緑のリンゴをたくさん持っていて、" * 6
    row = SourceRow("train-0", "train", "Tom has apples. " * 20, "", "en")
    console = Console(width=80, file=io.StringIO())
    console.print(table([Result(row, text)], "ja"))
    shown = "".join(
        line.split("│")[-2].strip() for line in console.file.getvalue().splitlines() if "│" in line
    )
    assert shown.startswith(text) and "…" not in shown


def test_prompts_of_your_own(folder):
    (folder / "mine" / "translate").mkdir(parents=True)
    standard = Path(__file__).parents[2] / "conf" / "translate" / "standard.yaml"
    text = standard.read_text().replace("Translate this problem into {language}:", "Nihongo de:")
    (folder / "mine" / "translate" / "short.yaml").write_text(text)
    with Server(good) as server:
        translate(folder, server, "--config-dir", "mine", "translate@prompts=short", "splits=[train]")
    assert any("Nihongo de:" in request["messages"][1]["content"] for request in server.requests)
    assert "Nihongo de:" in json.dumps(json.loads((folder / "ja" / "report.json").read_text())["prompts"])
