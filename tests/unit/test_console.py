"""The console and the live view, rendered into a buffer."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rich
from hypothesis import given
from hypothesis import strategies as st

from rl.boxes import split_boxes
from rl.loggers.base import RunInfo
from rl.loggers.console import Console, log_handler, sample_panel, sparkline, summary_table
from rl.report.summary import summarize

SAMPLE = {
    "split": "train", "id": "p1", "language": "ja", "question": "りんごは何個ですか。",
    "thinking": "3個が5袋で15個。", "text": "答えは\\boxed{11}です。", "raw": "", "tokens": 29, "ended": "stop",
    "gold": "11", "extracted": "11", "correct": True, "format": True, "reason": "correct",
    "rewards": {"correct": 1.0, "format": 1.0}, "reward": 1.0,
}  # fmt: skip
CUT = SAMPLE | {
    "language": "en", "question": "How many apples?", "thinking": "Okay, let me think. " * 60, "text": "",
    "tokens": 64, "ended": "length", "extracted": None, "correct": False, "format": False,
    "reason": "truncated", "reward": 0.0,
}  # fmt: skip


def metrics(step: int) -> dict[str, float]:
    names = ("reward_total", "reward_correct", "reward_format", "frac_all_good", "entropy", "learning_rate")
    return {name: step / 100 + i for i, name in enumerate(names)} | {"tokens/mean": 60.0 - step}


def run_info(folder: Path, total_steps: int) -> RunInfo:
    return RunInfo(folder, "tiny-test", {}, total_steps, 0, "id-1")


@pytest.fixture
def screen() -> Iterator[io.StringIO]:
    """rich's shared console writing to a buffer; `rich.reconfigure` again to make it a terminal."""
    buffer = io.StringIO()
    rich.reconfigure(file=buffer, width=100, force_terminal=False)
    yield buffer
    rich.reconfigure()


def run_console(folder: Path, steps: int, rows: list[dict[str, Any]]) -> None:
    console = Console()
    console.open(run_info(folder, total_steps=steps))
    for step in range(1, steps + 1):
        console.log(step, metrics(step) | {"time/step": 0.5})
        console.samples(step, rows)
    console.close(0)


def test_without_a_terminal_there_is_one_aligned_line_a_step(tmp_path: Path, screen: io.StringIO) -> None:
    rich.reconfigure(file=screen, width=40, force_terminal=False)  # narrower than a line, which must not wrap
    run_console(tmp_path, 12, [SAMPLE])
    lines = screen.getvalue().splitlines()
    assert lines[0] == (
        "step  1/12  reward 0.010  correct 1.010  format 2.010  all_good 3.010  tokens  59.0  entropy 4.010  "
        "lr 5.01e+00  0.5 s"
    )
    assert len(lines) == 12
    assert {len(line) for line in lines} == {len(lines[0])}


def test_an_evaluation_stands_above_its_step_in_the_same_columns(tmp_path: Path, screen: io.StringIO) -> None:
    console = Console()
    console.open(run_info(tmp_path, total_steps=4))
    console.log(
        1, {"reward_total": 0.25, "eval/reward_total": 0.5, "tokens/mean": 60.0, "eval/tokens/mean": 7.0}
    )
    console.close(0)
    assert screen.getvalue() == "test      reward 0.500  tokens   7.0\nstep 1/4  reward 0.250  tokens  60.0\n"


def test_the_live_view_shows_progress_values_and_samples(tmp_path: Path, screen: io.StringIO) -> None:
    rich.reconfigure(
        file=screen, width=80, height=40, force_terminal=True, force_interactive=True, color_system=None
    )
    log, handler = logging.getLogger("tanka.test"), log_handler()
    log.addHandler(handler)
    console = Console()
    console.open(run_info(tmp_path, total_steps=4))
    console.log(3, metrics(3) | {"eval/reward_total": 0.9, "eval/reward_correct": 0.875})
    console.samples(2, [CUT, SAMPLE])  # samples take turns: the cut one is shown first
    log.warning("a message [in brackets]")
    console.samples(3, [CUT, SAMPLE])
    console.close(0)
    log.removeHandler(handler)
    text = screen.getvalue()
    assert "3/4" in text and "0.875" in text and "a message [in brackets]" in text
    assert text.index("a message") < text.index("tiny-test")
    # The frame is whole: kana and kanji, two cells wide, push no border out of line.
    japanese = next(line for line in text.splitlines() if "答えは" in line)
    assert rich.cells.cell_len(japanese) == 80 and japanese.endswith("│")


def test_a_cut_sample_shows_the_end_of_its_thinking_and_the_mark(screen: io.StringIO) -> None:
    rich.get_console().print(sample_panel(3, CUT | {"thinking": "first. " + "again. " * 200 + "and so"}))
    lines = screen.getvalue().splitlines()
    assert len(lines) == 10  # two borders, the question, an ellipsis, six lines of thinking
    assert "first." not in screen.getvalue() and "and so ✂ cut after 64 tokens" in lines[-2]
    assert "truncated · gold 11 · reward 0.00" in lines[-1]


def test_summary_is_first_step_against_the_mean_of_the_last_five(screen: io.StringIO) -> None:
    rows = [{"step": s, "reward_total": s / 10, "learning_rate": 1e-4, "entropy": None} for s in range(1, 8)]
    # The last five steps are 3..7: their mean reward is 0.5.
    assert summarize(rows) == [("reward_total", "0.100", "0.500"), ("learning_rate", "1.00e-04", "1.00e-04")]
    rich.get_console().print(summary_table(rows))
    assert "step 1 → 7" in screen.getvalue() and "0.500" in screen.getvalue()


def test_sparkline_runs_from_the_lowest_to_the_highest_value() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([1.0]) == "▁"
    long = sparkline(list(range(1000)))
    assert len(long) == 40 and long[0] == "▁" and long[-1] == "█" and sorted(long) == list(long)


def test_boxes_are_found_with_their_nested_braces() -> None:
    pieces = list(split_boxes(r"so \boxed{\frac{1}{2}}, no: \boxed {7}. \boxed{open {"))
    assert pieces == [
        ("so ", False), (r"\boxed{\frac{1}{2}}", True), (", no: ", False), (r"\boxed {7}", True),
        (r". \boxed{open {", False),
    ]  # fmt: skip


@given(st.lists(st.sampled_from(["\\boxed", "\\boxed{", "{", "}", " ", "7", "あ"])).map("".join))
def test_pieces_join_to_the_text_and_boxes_are_balanced(text: str) -> None:
    pieces = list(split_boxes(text))
    assert "".join(piece for piece, _ in pieces) == text
    assert all(
        piece.startswith("\\boxed") and piece.count("{") == piece.count("}") for piece, box in pieces if box
    )
