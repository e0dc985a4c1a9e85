"""A conversation with an environment in the report, on the terminal and in samples.jsonl."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from recipes.sample import show_rollout
from rl.loggers.background import Loggers
from rl.loggers.base import RunInfo
from rl.loggers.console import sample_panel
from rl.report.run_page import write_report
from rl.rollouts import Completion, Parsed, Problem, Rollout, Turn, conversation
from tests.helpers.pages import Page

CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "17 * 24"}}</tool_call>'


def turn(thinking: str, text: str, *messages: dict[str, str], ended: Any = "stop") -> Turn:
    parsed = Parsed(thinking, text, f"{thinking}{text}", ended)
    return Turn(
        [1],
        Completion([7] * 9, [-1.0] * 9, "length" if ended == "length" else "stop"),
        parsed,
        list(messages),
    )


def rollout(ended: Any = "answered", cut: bool = False) -> Rollout:
    result = {"role": "tool", "content": "<b>408</b>"}
    last = (
        turn("", "It is \\boxed{40", result, ended="length")
        if cut
        else turn("so", "It is \\boxed{408}.", result)
    )
    return Rollout(Problem("p", "17 * 24?", "408", "en", "test"), 0, [turn("I ask.", CALL), last], ended)


def row(ended: Any = "answered", cut: bool = False) -> dict[str, Any]:
    made = rollout(ended, cut)
    return {
        "split": "test", "id": "p", "language": "en", "question": "17 * 24?", "raw": "",
        "thinking": made.parsed.thinking, "text": made.parsed.text, "tokens": made.length, "ended": made.parsed.ended,
        "gold": "408", "extracted": "408", "correct": True, "format": True, "reason": "correct", "rewards": {},
        "reward": 1.0, "conversation": conversation(made), "trajectory": ended,
    }  # fmt: skip


def test_a_conversation_holds_every_turn_and_what_the_environment_said():
    assert conversation(rollout()) == [
        {"role": "assistant", "thinking": "I ask.", "text": CALL, "tokens": 9},
        {"role": "tool", "text": "<b>408</b>"},
        {"role": "assistant", "thinking": "so", "text": "It is \\boxed{408}.", "tokens": 9},
    ]


def page(folder: Path, language: Any, early: dict[str, Any], late: dict[str, Any]) -> tuple[str, Page]:
    loggers = Loggers({})
    loggers.open(RunInfo(folder, "tiny", {}, 2, 0, "id"))
    for step, sample in ((1, early), (2, late)):
        loggers.log(step, {"reward_total": 0.5})
        loggers.samples(step, [sample])
    loggers.close(0)
    html = write_report(folder, language).read_text(encoding="utf-8")
    return html, Page(html)


@pytest.mark.parametrize(
    ("language", "tool", "cut", "turns"),
    [
        ("en", "tool", "cut after 18 tokens", "no turn left"),
        ("ja", "ツール", "18トークンで打ち切り", "ターン数の上限"),
    ],
)
def test_the_report_shows_calls_results_and_cuts(tmp_path, language, tool, cut, turns):
    html, read = page(tmp_path, language, row("budget", cut=True), row("turns"))
    assert read.text.count(CALL) == 2 and "<b>408</b>" not in html.replace("<b>tool</b>", "")
    assert f"<b>{tool}</b> &lt;b&gt;408&lt;/b&gt;" in html
    assert [text.strip("✂ ") for kind, text in read.marks if kind == "cut"] == [cut, turns]
    assert [text for kind, text in read.marks if kind == "box"] == ["\\boxed{408}"]
    assert "I ask." in read.folded_text and CALL not in read.folded_text
    assert read.text.index(CALL) < read.text.index("<b>408</b>") < read.text.index("It is")


def test_the_terminal_shows_the_turns_before_the_answer():
    for renderable in (sample_panel(3, row()), show_rollout(rollout())):
        console = Console(width=120, file=io.StringIO(), record=True)
        console.print(renderable)
        text = console.export_text()
        assert text.index("tool_call") < text.index("→ <b>408</b>") < text.index("It is")
    assert "18 tokens, 2 turns, stop" in text
    console.print(show_rollout(rollout("turns")))
    assert "18 tokens, 2 turns, ended by turns" in console.export_text()
