"""Control codes in data, completions and arguments are shown, never sent: on a terminal, in a pipe and in train.log."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rl.loggers.console import log_handler
from rl.terminal import EscapingConsole, escape_controls
from tests.helpers.recipes import run_recipe

TITLE, CLEAR, FLIP, CSI = "\x1b]0;owned\x07", "\x1b[2J", "\u202e", "\x9b31m"
CODES = (*map(chr, [*range(9), *range(11, 32), *range(127, 160)]), *"\u202a\u202d\u202e\u2066\u2069")


def clean(text: str) -> bool:
    return not any(code in text for code in CODES)


@given(st.text(st.one_of(st.sampled_from(CODES), st.characters())))
def test_what_is_escaped(text: str) -> None:
    escaped = escape_controls(text)
    assert clean(escaped) and escape_controls(escaped) == escaped
    if clean(text):
        assert escaped == text


def test_escapes_can_be_read() -> None:
    told = escape_controls(f"a{CLEAR}\tb\n{FLIP}りんご{CSI}")
    assert told == "a\\x1b[2J\tb\n\\u202eりんご\\x9b31m"


def test_rich_colours_and_moves_stay_and_those_of_a_text_do_not() -> None:
    file = io.StringIO()
    console = EscapingConsole(file=file, width=30, force_terminal=True, color_system="standard")
    console.print(Text(f"x{CLEAR}y", "red"))
    console.show_cursor(False)
    assert file.getvalue() == "\x1b[31mx\\x1b[2Jy\x1b[0m\n\x1b[?25l"


@pytest.mark.parametrize("text", [CLEAR * 20, "word " * 9 + TITLE * 5, f"{FLIP}りんご" * 9])
def test_frames_stay_whole_and_nothing_is_lost(text: str) -> None:
    file = io.StringIO()
    table = Table("a", "b")
    table.add_row(Text(text), "b")
    console = EscapingConsole(file=file, width=30)
    console.print(Panel(Text(text)), table)
    lines = file.getvalue().splitlines()
    panel = [line for line in lines if line.startswith("│") and line.count("│") == 2]
    inside = "".join("".join(line.strip("│").split()) for line in panel)
    assert inside == "".join(escape_controls(Text(text).plain).split())  # Text drops the bell by itself
    assert clean(file.getvalue())


def test_a_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("tanka", logging.WARNING, "", 0, "row %s", (f"{TITLE}1",), None)
    assert log_handler().format(record) == "warning: row \\x1b]0;owned\\x071"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """JSONL whose questions and golds hold control codes; one row is rejected, and a report of it is logged."""
    rows = [
        {"question": f"{CLEAR}What is {i} + {i}?{FLIP}{TITLE}", "answer": f"#### {2 * i}"}
        for i in range(1, 5)
    ]
    rows.append({"question": f"bad{TITLE}", "answer": f"no gold {CLEAR}{CSI}"})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def told(folder: Path, recipe: str, *arguments: str, code: int = 0) -> str:
    done = run_recipe(recipe, *arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    assert clean(done.stdout) and clean(done.stderr)
    return done.stdout + done.stderr


DATA = ("data=jsonl", "data.path=rows.jsonl")
RUN = (*DATA, "max_steps=1", "batch_size=2", "group_size=2", "max_tokens=8", "eval_every=0", "preflight=off", "logger=none")  # fmt: skip


def test_a_run_and_what_reads_it(folder: Path) -> None:
    out = told(folder, "rl_basic", *RUN, "run_dir=run")
    log = (folder / "run/train.log").read_text()
    assert "\\x1b" in out and "\\x1b" in log and clean(log)
    assert "\\x1b[2JWhat is" in told(folder, "sample", "run=run", "rows=1", "max_tokens=4")


def test_plan_and_render(folder: Path) -> None:
    assert "\\x1b[2JWhat is" in told(folder, "rl_basic", *RUN, "plan=true")
    assert "\\x1b[2JWhat is" in told(folder, "render", *DATA)


def test_grade(folder: Path) -> None:
    row = {"id": f"{TITLE}1", "completion": f"\\boxed{{{CLEAR}{FLIP}7}}", "gold": "8"}
    (folder / "in.jsonl").write_text(json.dumps(row) + "\n")
    assert "\\x1b]0;owned" in told(folder, "grade", "file=in.jsonl", "out=out.jsonl")


def test_error_lines(folder: Path) -> None:
    for recipe, argument in {
        "rl_basic": f"data.path={CLEAR}.jsonl",
        "sample": f"run={CLEAR}",
        "grade": f"file={CLEAR}",
    }.items():
        extra = ("out=o.jsonl",) if recipe == "grade" else ()
        assert "\\x1b[2J" in told(folder, recipe, argument, *extra, code=2)
