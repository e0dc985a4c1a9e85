"""`thinking_tokens=` as typed: plan, training, resume, evaluation, preflight, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl.storage.jsonl import read_jsonl
from tests.helpers.forked import set_up, start, timeless


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["thinking_token=16"], ["did you mean thinking_tokens?"]),
        (["thinking_tokens=0"], ["thinking_tokens=0: expected a positive integer", "thinking_tokens=48"]),
        (["thinking_tokens=many"], ["thinking_tokens=many: expected"]),
        (["thinking_tokens=64"], ["thinking_tokens=64: expected fewer than max_tokens", "max_tokens has 64"]),
        (["thinking_tokens=32", "eval_max_tokens=[16,64]"], ["fewer than eval_max_tokens", "has 16", "eval_max_tokens above 32"]),
        (["thinking_tokens=16", "renderer=qwen3_disable_thinking"], ["renderer=qwen3_disable_thinking has no reasoning", "thinking_tokens=null"]),
        (["thinking_tokens=16", "renderer=chat_template", "renderer.thinking=false"], ["renderer=chat_template has no reasoning"]),
        (["thinking_tokens=16", "renderer=role_colon"], ["renderer=role_colon has no reasoning", "renderer=qwen3"]),
        (["thinking_tokens=16", "model=tiny_tools", "environment=calculator"], ["environment=calculator has several turns"]),
        (["thinking_tokens=16", "engine=tinker", "engine.max_lag=1", "model.lora.rank=32", "model.lora.alpha=32", "model.lora.target_modules=all-linear", "temperature=1.0"], ["engine.max_lag=1: with thinking_tokens=16", "engine.max_lag=0"]),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(arguments, words, tmp_path):
    process = start("rl_basic", *arguments, "preflight=off", "logger=none", cwd=tmp_path)
    assert process.wait() == 2, process.out
    (line,) = process.err.splitlines()
    assert line.startswith("error: ") and all(word in line for word in words), line


def test_a_plan_shows_it_and_checks_the_renderer(tmp_path):
    process = start("rl_basic", "thinking_tokens=48", "plan=true", cwd=tmp_path)
    assert process.wait() == 0, process.err
    assert "thinking_tokens: 48  ← command line" in process.out
    assert "closed after 48 of 64 tokens, so that 16 are left to answer" in process.out
    process = start("rl_basic", "thinking_tokens=48", "renderer=role_colon", "plan=true", cwd=tmp_path)
    assert process.wait() == 2 and "has no reasoning" in process.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_random_model) -> Path:
    """A random model whose prompts open the reasoning, which it hardly ever closes."""
    folder = tmp_path_factory.mktemp("thinking")
    model, tokenizer = tiny_random_model()
    tokenizer.chat_template = tokenizer.chat_template.replace("{% endif %}{% endif %}", "{% else %}<think>\n{% endif %}{% endif %}")  # fmt: skip
    set_up(folder, model, tokenizer)
    return folder


SMALL = (
    "model.path=model", "renderer=qwen3", "+rewards.chance._target_=saboteur.chance", "data.train_size=7", "data.test_size=2",
    "batch_size=2", "group_size=2", "max_tokens=12", "thinking_tokens=4", "learning_rate=1e-2",
)  # fmt: skip


def run(folder: Path, name: str, *more: str, sabotage: str = "log:0:0", code: int = 0) -> list[dict]:
    arguments = (
        *SMALL,
        "eval_every=0",
        "preflight=off",
        "logger=none",
        "save_every=2",
        *more,
        f"run_dir={name}",
    )
    process = start("rl_basic", *arguments, cwd=folder, environment={"SABOTAGE": sabotage})
    assert process.wait() == code, process.err
    return timeless(folder / name)


def test_a_run_resumes_exactly(folder):
    """Killed after step 3 and while step 4 samples: its third and fourth calls are the passes of step 4."""
    whole = run(folder, "whole", "max_steps=4", "refill=1")
    run(folder, "parts", "max_steps=4", "refill=1", sabotage="log:3:9", code=-9)
    run(folder, "parts", "max_steps=4", "refill=1", sabotage="sample:4:9", code=-9)
    assert run(folder, "parts", "max_steps=4", "refill=1") == whole
    assert (folder / "parts/samples.jsonl").read_text() == (folder / "whole/samples.jsonl").read_text()
    assert all(0 < row["thinking/forced"] <= 1 for row in whole)
    assert all(4 <= row["tokens/max"] <= 12 and not row["skipped"] for row in whole)


def test_samples_evaluations_and_the_first_check(folder):
    rows = run(folder, "evaluated", "max_steps=1", "eval_every=1", "preflight=warn", "samples_per_step=9", "eval_max_tokens=[6,24]")  # fmt: skip
    assert rows[0]["eval/thinking/forced"] > 0 and rows[0]["eval/budget/6/tokens"] <= 6
    forced = [row for row in read_jsonl(folder / "evaluated/samples.jsonl") if row["forced"]]
    assert {row["split"] for row in forced} == {"train", "test"}
    for row in forced:
        assert row["raw"].count("</think>") == 1
        assert 4 < row["tokens"] <= 12  # the close tag does not count
    checked = json.loads((folder / "evaluated/preflight.json").read_text())
    assert [each["budget"] for each in checked["budgets"]] == [6, 12, 24]


def test_an_evaluation_takes_over_the_runs_budget_for_the_reasoning(folder):
    run(folder, "trained", "max_steps=1")
    common = ("run=trained", "problems=2", "completions=2")
    process = start("evaluate", *common, "out=e", cwd=folder)
    assert process.wait() == 0, process.err
    found = json.loads((folder / "e/evaluation.json").read_text())
    assert found["thinking_tokens"] == 4
    assert "of the reasonings closed at 4 tokens" in process.out
    process = start("evaluate", *common, "thinking_tokens=null", "out=plain", cwd=folder)
    assert process.wait() == 0, process.err
    assert "thinking_tokens" not in json.loads((folder / "plain/evaluation.json").read_text())
    process = start("evaluate", *common, "budgets=[4,12]", "out=bad", cwd=folder)
    assert process.wait() == 2
    assert "thinking_tokens=4: expected fewer than budgets" in process.err and "budgets has 4" in process.err
    process = start("sample", "run=trained", "rows=1", cwd=folder)
    assert process.wait() == 0, process.err
    assert process.out.count("thinking closed at its budget") == 2  # base and trained
    process = start("sample", "run=trained", "rows=1", "thinking_tokens=null", cwd=folder)
    assert process.wait() == 0, process.err
    assert "closed" not in process.out
    process = start("sample", "run=trained", "rows=1", "max_tokens=4", cwd=folder)
    assert process.wait() == 2
    assert "thinking_tokens=4: expected fewer than max_tokens" in process.err


def test_a_preflight_measures_budgets_that_leave_tokens_for_the_answer(folder):
    process = start("preflight", *SMALL, "problems=2", "completions=2", "out=p", cwd=folder)
    assert process.wait() == 0, process.err
    found = json.loads((folder / "p/preflight.json").read_text())
    assert min(each["budget"] for each in found["budgets"]) > 4
    process = start("preflight", *SMALL, "problems=2", "completions=2", "budgets=[4]", "out=q", cwd=folder)
    assert process.wait() == 2 and "fewer than budgets" in process.err


def test_engine_trl_trains_on_the_same_tokens(folder):
    """Its trainer reads the forced tag and trains on what was sampled, as engine=local does."""
    settings = ("max_steps=2", "optimizer.eps=1.0", "learning_rate=0.5", "model.lora=null", "device=cpu")
    local = run(folder, "by-local", *settings)
    trl = run(folder, "by-trl", *settings, "engine=trl", "engine.gradient_checkpointing=false")
    assert (folder / "by-trl/samples.jsonl").read_text() == (folder / "by-local/samples.jsonl").read_text()
    for mine, theirs in zip(local, trl, strict=True):
        for name in ("loss", "grad_norm", "thinking/forced", "tokens/mean", "ratio/max"):
            assert theirs[name] == pytest.approx(mine[name], rel=1e-4, abs=1e-5), name
