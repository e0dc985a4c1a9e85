"""Base and trained model answer the same prompts side by side."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from environments.single_turn import SingleTurnConfig
from recipes.sample import Answers, SampleConfig, question, read_questions, show_rollout, totals
from rl.blueprint import blueprint_from
from rl.data.config import DataConfig
from rl.errors import UserError
from rl.evaluation.base_and_trained import SIDES, read_config
from rl.rollouts import Completion, Parsed, Problem
from tests.helpers.forked import Forked, start
from tests.helpers.rollouts import one_turn

REWARD = "def spread(rollouts):\n    return [sum(r.completion.tokens) % 7 / 7 for r in rollouts]\n"


@pytest.fixture(scope="module", params=["adapter", "full"])
def folder(request, tmp_path_factory, tiny_random_model) -> Path:
    """A finished run in `run`, of an adapter or of all weights, trained far enough that its answers differ."""
    folder = tmp_path_factory.mktemp("sample")
    model, tokenizer = tiny_random_model()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "spread_reward.py").write_text(REWARD)
    lora = "model.lora.rank=4" if request.param == "adapter" else "model.lora=null"
    process = start(
        "rl_basic", "model.path=model", lora, "+rewards.spread._target_=spread_reward.spread", "data.train_size=8", "data.test_size=3",
        "batch_size=2", "group_size=4", "max_tokens=12", "max_steps=4", "logger=none", "learning_rate=0.1", "run_dir=run",
        cwd=folder,
    )  # fmt: skip
    assert process.wait() == 0, process.err
    return folder


def sample(folder: Path, *arguments: str, stdin: str = "") -> Forked:
    return start("sample", "run=run", *arguments, cwd=folder, stdin=stdin)


def ok(process: Forked) -> str:
    assert process.wait() == 0, process.err
    return process.out


def test_rows_are_answered_by_both_and_graded(folder):
    out = ok(sample(folder, "rows=3"))
    assert out.count("base") == 4 and out.count("trained") == 4  # three problems and the totals
    assert out.count("(gold ") == 6 and "12 tokens, CUT" in out and "0%" in out and "seconds" in out


def test_the_base_side_is_the_base_and_the_trained_side_what_was_trained(folder, monkeypatch):
    """Against transformers' own greedy decoding of the two models."""
    from transformers import AutoModelForCausalLM

    from recipes.sample import question
    from rl.collecting import roll_out
    from rl.engines.base import SamplingParams
    from rl.evaluation.base_and_trained import load_base_and_trained
    from rl.models.adapters import load_adapter
    from rl.models.export import find_weights, is_adapter
    from rl.models.loading import open_renderer
    from rl.task import open_task

    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    weights = find_weights(str(folder / "run"), "run")
    blueprint = blueprint_from(read_config(weights))
    problem = question("りんごが3個あります。", blueprint.data, "3")
    assert problem.language == "ja"
    _, renderer = open_renderer(blueprint.model, blueprint.renderer)
    policies = load_base_and_trained(blueprint.model, renderer, weights, "cpu")
    params = SamplingParams(max_tokens=10, temperature=0.0, stop_ids=renderer.stop_ids, seed=0)
    task = open_task(blueprint.data.messages, renderer, blueprint.environment, blueprint.model)
    answers = {side: roll_out(policies.sampler(side), task, [problem], 1, params) for side in SIDES}
    base = AutoModelForCausalLM.from_pretrained(folder / "model")
    if is_adapter(weights):
        trained = load_adapter(weights, None, torch.device("cpu"))
    else:
        trained = AutoModelForCausalLM.from_pretrained(weights)
    for side, model in {"base": base, "trained": trained}.items():
        ids = torch.tensor([answers[side][0].prompt_tokens])
        stop = sorted(renderer.stop_ids)
        expected = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=10,
            eos_token_id=stop,
        )
        assert answers[side][0].completion.tokens == expected[0, ids.shape[1] :].tolist(), side
    assert answers["base"][0].completion.tokens != answers["trained"][0].completion.tokens


def test_a_prompt_a_file_and_what_is_typed(folder):
    assert "How many[bold]?" in ok(sample(folder, 'prompt="How many[bold]?"', "max_tokens=5"))  # no markup
    (folder / "questions.jsonl").write_text(
        json.dumps({"question": "3+4?", "answer": 7})
        + "\n"
        + json.dumps({"question": "5+6?", "answer": "11"})
        + "\n"
    )
    out = ok(sample(folder, "file=questions.jsonl", "max_tokens=5"))
    assert "3+4?" in out and "5+6?" in out and "(gold 11)" in out
    (folder / "questions.txt").write_text("一つ目は？\n\n二つ目は？\n")
    out = ok(sample(folder, "file=questions.txt", "max_tokens=5"))
    assert "一つ目は？" in out and "二つ目は？" in out and "gold" not in out
    out = ok(sample(folder, "interactive=true", "max_tokens=5", stdin="first?\nsecond?\n"))
    assert (
        "first?" in out and "second?" in out and out.count("trained") == 4
    )  # above the answer and in the totals, twice


def test_mistakes_are_one_line(folder):
    (folder / "empty.jsonl").write_text('{"question": "1 + 1?"}\n{"question": ""}\n')
    for arguments, word in {
        ("run=nowhere",): "run=nowhere",
        ("file=nowhere.txt",): "nowhere.txt",
        ("prompt=x", "interactive=true"): "expected only one of them",
        ("rows=0",): "rows=0",
        ("prompt=''",): "prompt: empty",
        ("prompt=' '",): "prompt: empty",
        ("prompt=''", "file=x"): "prompt: empty",
        ("file=empty.jsonl",): "row 2 has no question",
        ("model=tiny",): "a run brings its own model",
        ("adapter=run",): "run, adapter",
        ("temperature=nan",): "temperature=nan",
    }.items():
        process = sample(folder, *arguments)
        assert process.wait() == 2
        assert len(process.err.splitlines()) == 1 and word in process.err, process.err


@pytest.mark.parametrize(
    ("key", "value"),
    [("temperature", v) for v in (math.nan, math.inf, -1.0, 1e-50)] + [("seed", v) for v in (-1, 2**63)],
)
def test_numbers_out_of_range_are_one_line(key, value):
    config = {
        "model": None, "data": SimpleNamespace(), "renderer": None, "rewards": SimpleNamespace(instruction=None),
        "environment": SingleTurnConfig(), "engine": None, "run": "run", "adapter": None,
        "rows": 1, "prompt": None, "file": None, "interactive": False, "max_tokens": 8, "thinking_tokens": None,
        "temperature": 0.0, "seed": 2**63 - 1, "device": "cpu",
    }  # fmt: skip
    SampleConfig(**config)
    with pytest.raises(UserError, match=rf"^{key}={value}: expected [^\n]*; e\.g\. {key}="):
        SampleConfig(**{**config, key: value})


def test_files_that_are_no_text_or_no_blueprint_are_one_line(tmp_path):
    (tmp_path / "questions.txt").write_text("一つ目は？", encoding="utf-16")
    with pytest.raises(UserError, match=r"^file=[^\n]*is not UTF-8[^\n]*$"):
        read_questions(tmp_path / "questions.txt", DataConfig(name="none"))
    (tmp_path / "final").mkdir()
    for content in (b"", b"- 1", b"a: [", "名前".encode("utf-16"), b"a: 1"):
        (tmp_path / "config.yaml").write_bytes(content)
        with pytest.raises(UserError, match=r"^[^\n]+$"):
            blueprint_from(read_config(tmp_path / "final"))


def test_a_base_model_answers_without_a_run(tmp_path):
    out = ok(start("sample", "model=tiny", "prompt='What is 17 + 25?'", "max_tokens=5", cwd=tmp_path))
    assert "What is 17 + 25?" in out and "<think>" in out and "5 tokens, CUT" in out and "trained" not in out
    assert "seconds" in out and "5.0" in out
    out = ok(start("sample", "model=tiny", "data.language=ja", "rows=2", "max_tokens=5", cwd=tmp_path))
    assert out.count("(gold ") == 2 and "ですか" in out


SENTENCES = {
    "en": " Write your answer in the format \\boxed{answer}.",
    "ja": "回答は\\boxed{answer}の形式で書きなさい。",
}


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("What is 1 + 1?", "What is 1 + 1?" + SENTENCES["en"]),
        ("What is 1 + 1?" + SENTENCES["en"] + "\n", "What is 1 + 1?" + SENTENCES["en"]),
        (
            "What is 1 + 1?\nWrite your answer in the  format \\boxed{answer}",
            "What is 1 + 1?" + SENTENCES["en"],
        ),
        ("1個と1個は?" + SENTENCES["ja"], "1個と1個は?" + SENTENCES["ja"]),
        ("1個と1個は?\n" + SENTENCES["ja"], "1個と1個は?" + SENTENCES["ja"]),
        (
            "1 + 1 = ?" + SENTENCES["ja"],
            "1 + 1 = ?" + SENTENCES["ja"],
        ),  # in the sentence's language, not the rest's
        (SENTENCES["ja"], SENTENCES["ja"] * 2),  # nothing else is asked
    ],
)
def test_the_format_sentence_is_asked_once(typed, asked):
    data = DataConfig(name="none", suffix=SENTENCES)
    assert data.messages(question(typed, data))[-1]["content"] == asked
    plain = DataConfig(name="none")
    assert plain.messages(question(typed, plain))[-1]["content"] == typed.strip()


def shown(**parsed) -> str:
    """What is printed of a completion of nine tokens, and the totals of it and of one without thinking."""
    rollouts = [
        one_turn(
            Problem("p", "1 + 1?", "2", "en", "test"), 0, [1], Completion([7] * 9, [0.0] * 9, "stop"), each
        )
        for each in (Parsed(ended="stop", **parsed), Parsed("", "2", "2", "stop"))
    ]
    console = Console(width=80, record=True)
    console.print(show_rollout(rollouts[0]), totals({"base": Answers(rollouts, 1.25)}))
    return console.export_text(styles=True)


def test_boxes_in_the_thinking_are_marked_and_counted_and_its_tags_shown():
    box = "\\boxed{2}"
    text = shown(thinking=f"so {box}", text=f"it is {box}", raw=f"<think>so {box}</think>it is {box}")
    assert f"\x1b[1;33m{box}" in text and f"\x1b[1;32m{box}" in text and "box in thinking" in text
    assert "<think>" in text and "</think>" in text and " 50% " in text and "1.2" in text
    cut = shown(thinking="so 2", text="", raw="so 2", prefilled=True)
    assert "<think>" in cut and "</think>" not in cut and ", box in thinking" not in cut
    assert "think>" not in shown(thinking="", text="2", raw="2")
