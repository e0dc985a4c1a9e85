"""The dataset card and what is pushed; the journal that pays for nothing twice."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from rl.data.translate import card
from rl.data.translate.journal import Journal, Reply, request_key
from rl.data.translate.outputs import Counts, write_report
from rl.errors import UserError
from rl.storage.disk import disk_errors
from tests.helpers.recipes import ROOT

FILES = ("README.md", "train.jsonl", "train.parquet", "rejected.jsonl", "sample.html")


class Hub:
    """Stands for the Hub's client; `public` repositories exist already."""

    def __init__(self, public: bool = False) -> None:
        self.public = public
        self.uploads: list[dict] = []

    def create_repo(self, repo_id, **options):
        self.created = {"repo_id": repo_id, **options}
        return SimpleNamespace(repo_id=repo_id)

    def dataset_info(self, repo_id):
        return SimpleNamespace(private=not self.public)

    def upload_folder(self, **options):
        self.uploads.append(options)


@pytest.fixture
def folder(tmp_path):
    for name in (*FILES, ".train.jsonl.tmp", "work/answers.jsonl", "work/.lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


def test_pushed_are_the_set_and_its_reports_only(folder, monkeypatch):
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    card.push(folder, "me/gsm8k-ja", private=True)
    assert hub.created == {
        "repo_id": "me/gsm8k-ja",
        "repo_type": "dataset",
        "private": True,
        "exist_ok": True,
    }
    (upload,) = hub.uploads
    assert upload["repo_type"] == "dataset" and sorted(upload["allow_patterns"]) == sorted(FILES)


def test_a_public_repository_gets_no_private_set(folder, monkeypatch):
    hub = Hub(public=True)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    with pytest.raises(UserError, match="exists and is public; type private=false"):
        card.push(folder, "me/gsm8k-ja", private=True)
    assert hub.uploads == []


def test_the_card_can_be_read_by_the_hub(tmp_path):
    counts = {"train": Counts(read=3, kept=2), "test": Counts(read=1)}
    counts["train"].rejected["numbers_lost"] += 1
    (tmp_path / "train.jsonl").write_text("{}\n{}\n")
    facts = {
        "name": "gsm8k_ja", "to": "ja", "language": "Japanese", "source_name": "gsm8k", "source_id": "openai/gsm8k",
        "license": "mit", "model": "openai/gpt-oss-120b", "judge": None, "prompts": {"question": "Translate: {text}"},
        "date": "2026-11-30", "complete": True, "why": {"train": "1 numbers lost", "test": ""},
    }  # fmt: skip
    report = write_report(tmp_path, facts, counts)
    text = card.write_card(tmp_path, report, counts).read_text()
    _, front, body = text.split("---\n", 2)
    found = yaml.safe_load(front)
    assert (
        found["language"] == ["ja"]
        and found["license"] == "mit"
        and found["source_datasets"] == ["openai/gsm8k"]
    )
    assert found["configs"][0]["data_files"] == [{"split": "train", "path": "train.parquet"}]
    assert "| train | 3 | 2 | 1 | 1 numbers lost |" in body and "Translate: {text}" in body
    digest = hashlib.sha256(b"{}\n{}\n").hexdigest()
    assert f"| sha256 of train.jsonl | `{digest}` |" in body


def test_the_journal_finds_every_answer_again(tmp_path):
    request = [{"role": "user", "content": "訳して \ud800"}]
    first, second = request_key("m", request, 1), request_key("m", request, 2)
    journal = Journal(tmp_path)
    journal.put(first, "m", Reply("答え\n2行目", "stop", 5, 7))
    journal.put(second, "judge", Reply("yes", "stop", 1, 1))
    assert "another process (pid" in opened_elsewhere(tmp_path)
    journal.close()
    with (tmp_path / "answers.jsonl").open("ab") as file:
        file.write(b'not JSON\n{"key": "cut')
    again = Journal(tmp_path)
    assert again.get(first) == Reply("答え\n2行目", "stop", 5, 7) and again.get(second).text == "yes"
    assert again.get(request_key("other", request, 1)) is None
    assert {model: spent.tokens for model, spent in again.spent.items()} == {"m": 12, "judge": 2}
    third = request_key("m", request, 3)
    again.put(third, "m", Reply("x", "stop", 1, 1))
    assert again.get(third).text == "x"
    again.close()
    assert (tmp_path / "answers.jsonl").read_bytes().count(b"\n") == 4


def opened_elsewhere(folder):
    """The error of opening the journal in another process; POSIX locks belong to a process."""
    code = (
        "import sys; from pathlib import Path; from rl.data.translate.journal import Journal; from rl.errors import UserError\n"
        "try: Journal(Path(sys.argv[1]))\nexcept UserError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.run(command, text=True, capture_output=True, check=True, cwd=ROOT).stdout


def test_an_error_of_the_disk_names_the_option_that_chose_it():
    with (
        pytest.raises(
            UserError,
            match=r"^out=ja: cannot be written \(ja/x\): Read-only .*; give another out that can be written",
        ),
        disk_errors("out=ja"),
    ):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "ja/x")
