"""`python -m recipes.render`: what it shows, and that a user can trust it."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

import renderers
from recipes.render import show
from renderers import RendererConfig
from tests.helpers.recipes import ROOT, run_recipe
from tests.helpers.renderer_families import FAMILIES, tokenizer_of

QUESTION = [{"role": "user", "content": "りんごは\\boxed{}個 [bold]?"}]


def shown(family: str) -> str:
    config = RendererConfig(name=FAMILIES[family].renderer)  # type: ignore[arg-type]
    tokenizer = tokenizer_of(family)
    console = Console(width=200, file=io.StringIO())
    console.print(
        show(renderers.load(config, tokenizer, stop_tokens=[tokenizer.eos_token]), tokenizer, QUESTION)
    )
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", FAMILIES)
def test_one_prompt_is_shown_whole(family: str) -> None:
    text = shown(family)
    assert "りんごは\\boxed{}個 [bold]?" in text
    assert "▶ the completion starts here" in text
    assert ("inside the reasoning" in text) == (family in ("qwen3.5", "qwen3.5-small", "deepseek"))
    for row in ("stop", "length", "The answer is \\boxed{6}."):
        assert row in text


def test_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recipes.render", "renderer=qwen3_disable_thinking", "data.language=ja"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"COLUMNS": "160", "PATH": "", "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "<|im_start|>assistant" in done.stdout and "renderer qwen3_disable_thinking" in done.stdout
    assert "回答は\\boxed{answer}の形式で書きなさい。<|im_end|>" in done.stdout


def test_a_mode_that_the_model_lacks_is_one_line() -> None:
    done = run_recipe("render", "renderer=llama3", cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "lacks <|start_header_id|>" in done.stderr
