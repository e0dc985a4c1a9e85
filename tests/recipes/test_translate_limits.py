"""recipes.translate stopped and continued, limited, planned, and typed wrongly."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.forked import start
from tests.helpers.openai_server import Answer, Server, good
from tests.helpers.recipes import run_recipe
from tests.recipes.test_translate import ROWS, folder, read, translate, write

__all__ = ["folder"]


def test_killed_at_any_instant_it_goes_on_and_pays_for_nothing_twice(folder):
    """SIGKILL three times in the middle of a set: an answer that reached the disk is never asked for again."""
    with Server(lambda request: Answer(good(request).text, seconds=0.15)) as server:
        arguments = ["data.path=en", f"server={server.url}", "model=m", "out=ja", "requests=3"]
        answers = folder / "ja" / "work" / "answers.jsonl"
        for wanted in (2, 7, 13):
            run = start("translate", *arguments, cwd=folder)
            deadline = time.monotonic() + 60
            while not (answers.is_file() and answers.read_bytes().count(b"\n") >= wanted):
                assert run.process.is_alive() and time.monotonic() < deadline, run.err
                time.sleep(0.005)
            os.kill(run.process.pid, signal.SIGKILL)
            assert run.wait() == -signal.SIGKILL
        with answers.open("ab") as file:
            file.write(
                b'{"key": "00ff", "text": "a line that was cut'
            )  # as a full disk or a power cut leaves it
        out = translate(folder, server, "requests=3")
    assert "train: 10 rows, 10 kept" in out and "test: 2 rows, 2 kept" in out
    asked = Counter(json.dumps(request["messages"]) for request in server.requests)
    assert len(asked) == 24 and sum(asked.values()) <= 24 + 3 * 3, (
        "only what was in flight is asked for again"
    )
    on_disk = [row["key"] for row in read(answers)]
    assert len(on_disk) == len(set(on_disk)) == 24
    before = (folder / "ja" / "train.jsonl").read_bytes()
    with Server(good) as server:
        translate(folder, server, "requests=1")
    assert server.requests == [] and (folder / "ja" / "train.jsonl").read_bytes() == before


def test_the_cost_limit_is_never_passed_and_may_be_raised(folder):
    """Prices of 1 USD a token make the limit a count of tokens; the same command with more money finishes the set."""
    prices = ["price.input=1000", "price.output=1000", "server.max_tokens=100"]
    with Server(good) as server:
        error = translate(folder, server, *prices, "max_usd=5", code=2)
        assert "max_usd=5: reached" in error
        spent = (
            sum(r["prompt_tokens"] + r["completion_tokens"] for r in read(folder / "ja/work/answers.jsonl"))
            / 1000
        )
        assert 0 < spent <= 5
        some = len(read(folder / "ja" / "train.jsonl"))
        assert some < 10 and "Not complete" in (folder / "ja" / "README.md").read_text()
        out = translate(folder, server, *prices, "max_usd=1000")
    assert "train: 10 rows, 10 kept" in out and len(server.requests) == 24
    assert "Not complete" not in (folder / "ja" / "README.md").read_text()


def test_other_choices_do_not_go_on_in_the_same_folder(folder):
    with Server(good) as server:
        translate(folder, server)
        error = translate(folder, server, "server.max_tokens=9", code=2)
        assert "was started with other choices (max_tokens: 4096 -> 9)" in error
        again = translate(
            folder, server, "attempts=1", "requests=2", "sample=0", "checks.length_ratio=[0,99]"
        )
    assert "10 kept" in again and len(server.requests) == 24
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    error = translate(folder, server, "out=mine", code=2)
    assert "out=" in error and "holds something other than a translation" in error
    assert [path.name for path in (folder / "mine").iterdir()] == ["notes.txt"]


def test_two_commands_do_not_share_a_folder(folder):
    with Server(lambda request: Answer(good(request).text, seconds=1.0)) as server:
        arguments = ["data.path=en", f"server={server.url}", "model=m", "out=ja", "requests=1"]
        first = start("translate", *arguments, cwd=folder)
        first.wait_for(folder / "ja" / "work" / "answers.jsonl")
        assert "another process" in translate(folder, server, code=2)
        os.kill(first.process.pid, signal.SIGINT)
        assert first.wait() == 130 and "Traceback" not in first.err
        assert "the same command goes on" in first.err


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(status=401, text="bad key"), "refused the key in MY_KEY (Error code: 401"),
        (Answer(status=404, text="The model m does not exist"), "no model m or no such path"),
        (Answer(status=400, text="max_tokens is too large"), "max_tokens is too large"),
        (Answer(status=503, text="overloaded"), "overloaded"),
    ],
)
def test_a_server_that_cannot_be_used(folder, answer, message):
    with Server(lambda _: answer) as server:
        options = ["server.key_env=MY_KEY", "server.retries=1"]
        error = translate(folder, server, *options, code=2, environment={"MY_KEY": "sk-secret"})
    assert message in error and server.url in error and "sk-secret" not in error


def test_no_server(folder):
    with Server(good) as server:
        pass
    error = translate(folder, server, "server.retries=0", code=2)
    assert "cannot be reached (All connection attempts failed)" in error


@pytest.mark.parametrize("key", ["sk-secret\n", "sk-secret\r", "sk secret", "sk-鍵"])
def test_a_key_that_cannot_be_sent(folder, key):
    """It would be repeated as a broken connection, or every row would be left out."""
    with Server(good) as server:
        error = translate(folder, server, code=2, environment={"OPENAI_API_KEY": key})
    assert "OPENAI_API_KEY: holds a blank, a line break" in error and "secret" not in error
    assert server.requests == [] and not (folder / "ja").exists()


def test_a_row_that_the_server_refuses_is_left_out(folder):
    """A 400 after good answers is about that row, e.g. one that is longer than the model's context."""

    def script(request):
        long = "[[1:5]] red" in request["messages"][1]["content"]
        return Answer(status=400, text="the prompt is too long") if long else good(request)

    with Server(script) as server:
        out = translate(folder, server, "requests=1", "splits=[train]")
    assert "1 left out: 1 no answer" in out
    assert "the prompt is too long" in (folder / "ja" / "rejected.jsonl").read_text()


def test_the_plan_shows_prompts_tokens_and_cost_and_asks_no_server(folder):
    prices = ["price.input=1", "price.output=2"]
    out = translate(folder, None, "plan=true", *prices)
    assert "Tom has [[1:2]] red apples" in out and "Tom has [[1]] apples." in out
    assert "about 24, plus what is asked again" in out and "USD" in out
    assert "into Japanese" in out and not (folder / "ja").exists()
    out = translate(folder, None, "plan=true", "prompts.question='Render it: {text}'")
    assert "Render it: Tom has" in out and "price.input=" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "server=null: expected the address"),
        (["server=localhost:8000"], "server=localhost:8000: expected an address with http"),
        (["server=http://localhost:1"], "model=null: expected a model of the server"),
        (["to=fr"], "to=fr: expected one of en, ja"),
        (["data=gsm8k_ja"], "to=ja: data=gsm8k_ja is in that language already; type to=en"),
        (["data=word_problems"], "data=word_problems: generates its problems"),
        (["max_usd=5"], "max_usd=5: needs the price of a million tokens"),
        (["requests=0"], "requests=0: expected an integer from 1 to 1000"),
        (["prompts.question='Translate {txt}'"], "prompts.question: no such field {txt}"),
        (["prompts.question='Translate it'"], "prompts.question: lacks {text}"),
        (["atempts=2"], "no such key: atempts; did you mean attempts?"),
        (["push=true"], "repo_id=null: push=true needs a repository name"),
        (["out="], "out=: expected a folder"),
        (["repair=", "data=gsm8k_ja"], "repair=: expected a file or a folder"),
        (["splits=[train,train]"], "splits=['train', 'train']: expected train, test or both"),
        (["attempts=1000000"], "attempts=1000000: expected an integer from 1 to 100"),
        (["price.input=inf", "price.output=1"], "price.input=inf: expected US dollars for a million tokens"),
        (["price.input=1"], "price.input=1: needs the other price too; e.g. price.output=0.5"),
        (["server.temperature=nan"], "server.temperature=nan: expected a number of 0 or more"),
        (["server.timeout=inf"], "server.timeout=inf: expected seconds above 0"),
        (["+server.extra.stream=true"], "server.extra.stream=True: recipes.translate sets this field itself"),
        (["server=http://localhost:1", "model="], "expected a model of the server"),
        (
            ["server=http://localhost:1", "model=m", "server.key_env=NO_SUCH_KEY"],
            "server.key_env=NO_SUCH_KEY: this environment variable is not set",
        ),
    ],
)
def test_what_cannot_be_is_one_line(folder, arguments, message):
    run = start("translate", "data.path=en", "out=ja", *arguments, cwd=folder)
    assert run.wait() == 2 and message in run.err and run.err.count("\n") == 1
    assert not (folder / "ja").exists()


def test_without_the_openai_package(folder):
    (folder / "openai.py").write_text("raise ImportError('no openai')\n")
    done = run_recipe(
        "translate", "data.path=en", "server=http://localhost:1", "model=m", "out=ja", cwd=folder, path=folder
    )
    assert done.returncode == 2 and "pip install 'tanka-rl[translate]'" in done.stderr


def test_push_is_shown_before_it_is_done(folder):
    with Server(good) as server:
        out = translate(folder, server, "push=true", "dry_run=true", "repo_id=me/gsm8k-ja")
    assert "push=true would upload to me/gsm8k-ja, private:" in out
    listed = out.split("private:\n")[1]
    for name in ("README.md", "train.jsonl", "train.parquet", "test.jsonl", "sample.html", "rejected.jsonl"):
        assert name in listed
    assert "answers.jsonl" not in listed and "job.json" not in listed


def test_rows_that_no_training_can_use_are_not_sent(folder):
    rows = [*ROWS[:2], {"question": "How many?", "answer": "no marker"}, ROWS[0]]
    write(folder / "en" / "train.jsonl", rows)
    with Server(good) as server:
        out = translate(folder, server, "splits=[train]")
    assert (
        "train: 4 rows, 2 kept, 2 left out: 1 missing marker, 1 duplicate" in out
        and len(server.requests) == 4
    )
    assert Path(folder / "ja" / "report.json").is_file()
