"""recipes.translate against a real server, vLLM with the embedded model: `make test-servers` (installs about 4 GB)."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from rl.data.translate.checks import REASONS
from tests.helpers import vllm_server
from tests.helpers.forked import start
from tests.helpers.recipes import free_port
from tests.recipes.test_translate import ROWS, read, write

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of the server; TANKA_LLM_SERVER names one that runs already."""
    if url := os.environ.get("TANKA_LLM_SERVER"):
        yield url
        return
    if not os.environ.get("TANKA_TEST_SERVERS"):
        pytest.skip("needs a server: make test-servers")
    vllm_server.install()
    port = free_port()
    running = vllm_server.start(port, tmp_path_factory.mktemp("server") / "log.txt")
    yield f"http://127.0.0.1:{port}/v1"
    vllm_server.stop(running)


def test_nonsense_fails_the_checks_with_the_right_reasons(address, tmp_path):
    """The embedded model cannot translate: each row is asked for twice and left out, cut or in the wrong language."""
    (tmp_path / "en").mkdir()
    write(tmp_path / "en" / "train.jsonl", ROWS[:10])
    write(tmp_path / "en" / "test.jsonl", ROWS[10:])
    arguments = [
        "data.path=en", f"server={address}", f"model={vllm_server.MODEL}", "out=ja", "attempts=2", "requests=4",
        "server.max_tokens=200", "server.temperature=1", "price.input=1", "price.output=1",
    ]  # fmt: skip
    first = start("translate", *arguments, cwd=tmp_path)
    answers = tmp_path / "ja" / "work" / "answers.jsonl"
    deadline = time.monotonic() + 300
    while not (answers.is_file() and answers.read_bytes().count(b"\n") >= 5):
        assert first.process.is_alive() and time.monotonic() < deadline, first.err
        time.sleep(0.01)
    os.kill(first.process.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    paid = len(read(answers))
    done = start("translate", *arguments, cwd=tmp_path)
    assert done.wait(900) == 0, done.err
    listed = read(tmp_path / "ja" / "rejected.jsonl")
    assert len(listed) >= 11, "a nonsense answer may pass once, not more"
    report = json.loads((tmp_path / "ja" / "report.json").read_text())
    reasons = {name for split in report["splits"].values() for name in split["rejected"]}
    possible = {
        "cut", "wrong_language", "empty", "broken_text", "length_ratio", "marks_wrong", "numbers_lost", "numbers_new", "thinking",
        "markdown",
    }  # fmt: skip
    assert reasons <= possible <= set(REASONS), reasons
    everything = read(answers)
    assert len(everything) > paid and len({row["key"] for row in everything}) == len(everything)
    assert all(row["prompt_tokens"] > 100 and row["completion_tokens"] >= 1 for row in everything)
    assert "spent:" in done.out and "USD" in done.out
    again = start("translate", *arguments, cwd=tmp_path)
    assert again.wait() == 0 and len(read(answers)) == len(everything), "a finished set asks for nothing"


def test_a_model_that_the_server_does_not_have(address, tmp_path):
    (tmp_path / "en").mkdir()
    write(Path(tmp_path / "en" / "train.jsonl"), ROWS)
    run = start(
        "translate",
        "data.path=en",
        f"server={address}",
        "model=missing",
        "splits=[train]",
        "out=ja",
        cwd=tmp_path,
    )
    assert run.wait() == 2 and "no model missing" in run.err and run.err.count("\n") == 1
