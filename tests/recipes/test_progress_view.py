"""What a user sees while something takes long: plain lines without a terminal, a bar on one."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.helpers.recipes import run_recipe
from tests.helpers.terminal import on_terminal

SMALL = ("batch_size=2", "group_size=2", "max_tokens=8", "eval_every=0", "preflight=off", "logger=jsonl")
SLOW = "+rewards.slow._target_=slow.slow"
CLOCK = r"\d:\d\d:\d\d"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reward that takes 1.5 s can be imported from."""
    (tmp_path / "slow.py").write_text(
        "import time\n\ndef slow(rollouts):\n    time.sleep(1.5)\n    return [0.5 for _ in rollouts]\n"
    )
    return tmp_path


def lines_of(folder: Path, recipe: str, *arguments: str, every: str = "0.1") -> list[str]:
    """The lines that a recipe prints without a terminal."""
    done = run_recipe(
        recipe, *arguments, cwd=folder, path=folder, environment={"TANKA_PROGRESS_EVERY": every}
    )
    assert done.returncode == 0, done.stderr
    assert not re.search("[\x00-\x09\x0b-\x1f]", done.stdout + done.stderr)
    return done.stdout.splitlines()


def has(lines: list[str], pattern: str) -> bool:
    return any(re.fullmatch(pattern, line) for line in lines)


def test_a_run_prints_plain_lines_within_its_steps(folder):
    lines = lines_of(folder, "rl_basic", SLOW, *SMALL, "max_steps=2", "run_dir=run")
    assert has(lines, f"starting, for {CLOCK}") and has(lines, f"writing the report, for {CLOCK}")
    assert has(lines, f"step 1/2  grading: reward slow, for {CLOCK}")
    assert has(lines, f"step 2/2  grading: reward slow, {CLOCK} left of the step, {CLOCK} of the run")
    first, second = (next(i for i, line in enumerate(lines) if line.startswith(f"step {n}/2  reward ")) for n in (1, 2))  # fmt: skip
    assert first < next(i for i, line in enumerate(lines) if line.startswith("step 2/2  grading")) < second
    status = json.loads((folder / "run/status.json").read_text())
    assert (status["state"], status["step"], status["reason"]) == ("finished", 2, "")


@pytest.mark.slow
@pytest.mark.parametrize("every", ["0", "3600"])
def test_no_line_before_its_time(folder, every):
    lines = lines_of(folder, "rl_basic", SLOW, *SMALL, "max_steps=1", "run_dir=run", every=every)
    assert has(lines, r"step 1/1  reward .* s") and not any(" for 0:" in line for line in lines)


@pytest.mark.slow
def test_evaluations_and_preflights(folder):
    lines = lines_of(folder, "evaluate", SLOW, "problems=32", "completions=8", "budgets=[4,64]")
    assert has(lines, f"base: sampling [0-9]+/256 rollouts(, [0-9,]+ tokens/s)?, for {CLOCK}")
    assert has(lines, f"measuring 0/2 budgets: grading: reward slow, for {CLOCK}")
    lines = lines_of(folder, "preflight", SLOW, "problems=2", "completions=2", "budgets=[4]", "max_tokens=8")
    assert has(lines, f"measuring 1/2 budgets: grading: reward slow, (for {CLOCK}|{CLOCK} left)")


def test_samples_and_weights(folder):
    lines = lines_of(folder, "sample", "max_tokens=64", every="0.01")
    assert has(lines, f"starting: loading weights, for {CLOCK}")
    assert has(lines, f"base: sampling [0-4]/4 rollouts(, [0-9,]+ tokens/s)?, for {CLOCK}")


@pytest.mark.slow
def test_a_large_file_of_completions(folder):
    """Expressions go to worker processes, at about 2 ms each; plain numbers are compared here."""
    rows = [
        {"completion": f"\\boxed{{\\sqrt{{{n}}} + x}}" if n % 50 == 0 else f"\\boxed{{{n}}}", "gold": gold}
        for n in range(1, 20_001)
        for gold in [f"x + \\sqrt{{{n + 1}}}" if n % 50 == 0 else str(n)]
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = lines_of(folder, "grade", "file=in.jsonl", "out=out.jsonl", every="0.02")
    assert has(lines, rf"reading in.jsonl \d+%, for {CLOCK}")
    assert has(lines, f"finding answers [0-9,]+/20,000 completions, for {CLOCK}")
    assert has(lines, f"comparing numbers [0-9,]+/20,000 answers, for {CLOCK}")
    assert has(lines, f"comparing expressions [0-9]+/400 answers, (for {CLOCK}|{CLOCK} left)")
    assert lines[-1].startswith("20000 rows: ")


def test_a_data_set_of_many_rows(folder):
    """20,000 rows, the most that a plan reads; long ones, so that checking them takes about a second."""
    row = '{"question": "What is %d + %d? ' + "Think. " * 200 + '", "answer": "#### %d"}\n'
    (folder / "rows.jsonl").write_text("".join(row % (n, n, 2 * n) for n in range(20_000)))
    lines = lines_of(folder, "rl_basic", "data=jsonl", "data.path=rows.jsonl", "plan=true", every="0.02")
    assert has(lines, f"checking rows.jsonl [0-9,]+/20,000 rows, for {CLOCK}")


def test_a_wrong_interval_is_one_line(folder):
    for given in ("soon", "-1", "nan", "inf"):
        done = run_recipe("rl_basic", "plan=true", cwd=folder, environment={"TANKA_PROGRESS_EVERY": given})
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"TANKA_PROGRESS_EVERY={given}: expected seconds" in done.stderr


def test_a_run_on_a_terminal_has_a_second_bar(folder):
    code, text = on_terminal("rl_basic", SLOW, *SMALL, "max_steps=2", "run_dir=run", cwd=folder)
    assert code == 0
    assert "starting, for 0:00:0" in text  # before the run's own view
    assert "0/2 steps, 0:00:" in text and "grading: reward slow, for 0:00:0" in text
    assert re.search(f"1/2 steps, {CLOCK} elapsed, {CLOCK} left", text)
    assert re.search(f"grading: reward slow, {CLOCK} left of the step", text)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back
    last = text[text.rindex("2/2 steps") :]
    assert "grading" not in last and "weights: " in last  # the second bar ended with the work


@pytest.mark.slow
def test_an_evaluation_on_a_terminal_leaves_only_its_results(folder):
    code, text = on_terminal("evaluate", SLOW, "problems=2", "completions=2", "budgets=[8]", cwd=folder)
    assert code == 0
    assert "measuring 0/1 budgets: grading: reward slow, for 0:00:0" in text
    after = text[text.rindex("reward slow") :]
    assert "\x1b[2K" in after and after.index("\x1b[2K") < after.index("accuracy")  # the bar is wiped first


def test_ctrl_c_on_a_terminal(folder):
    def interrupt(text, process):
        if "reward slow" in text:
            process.send_signal(signal.SIGINT)

    sent = []
    code, text = on_terminal(
        "rl_basic", SLOW, *SMALL, "max_steps=50", "run_dir=run", cwd=folder,
        watch=lambda text, process: sent or ("reward slow" in text and sent.append(interrupt(text, process))),
    )  # fmt: skip
    assert code == 130, text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert json.loads((folder / "run/status.json").read_text())["state"] == "interrupted"
