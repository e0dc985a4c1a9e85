"""One tool class, unchanged, in TRL's GRPOTrainer(environment_factory=...) and as an environment here."""

from __future__ import annotations

import inspect

import pytest

import renderers
from environments.tool_class import ToolClassConfig
from renderers import RendererConfig
from rl.rollouts import Completion, Problem
from tests.helpers.recipes import ROOT
from tests.helpers.renderer_families import template_text
from tests.helpers.tool_classes import Shop

CALL = '<tool_call>\n{"name": "buy", "arguments": {"item": "apple", "count": 4}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "buy", "arguments": {"item": "pear"}}\n</tool_call>'
TURNS = [CALL, WRONG, "Done."]
ROW = {"prompt": [{"role": "user", "content": "Buy apples."}], "question": "Buy apples.", "goods": ["apple"]}


@pytest.fixture(scope="module")
def tokenizer():
    """The embedded model's tokenizer with the tool tags and Qwen3's own template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "assets/tiny")
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    tokenizer.chat_template = template_text("qwen3")
    return tokenizer


def in_trl(tokenizer, tmp_path, monkeypatch) -> tuple[list[dict], dict]:
    """The rows that `reset` was given, and the metrics of one step whose turns are TURNS."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    rows = []

    class Watched(Shop):
        def reset(self, **row) -> str | None:
            rows.append(row)
            return super().reset(**row)

    model = AutoModelForCausalLM.from_pretrained(ROOT / "assets/tiny")
    model.resize_token_embeddings(len(tokenizer))
    settings = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=2, num_generations=2, max_completion_length=300,
        max_steps=1, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_list([ROW] * 2),
        processing_class=tokenizer,
        environment_factory=Watched,
    )
    said = iter(TURNS)

    def scripted(prompts, *arguments, **options):
        ids = tokenizer.encode(next(said) + "<|im_end|>", add_special_tokens=False)
        return [ids for _ in prompts], None

    assert "prompt_ids" in inspect.signature(trainer._generate_single_turn).parameters
    monkeypatch.setattr(trainer, "_generate_single_turn", scripted)
    trainer.train()
    return rows, trainer.state.log_history[0]


@pytest.mark.slow
def test_one_class_in_trl_and_here(tokenizer, tmp_path, monkeypatch):
    rows, logged = in_trl(tokenizer, tmp_path, monkeypatch)
    assert len(rows) == 2 and all(rows[0][key] == ROW[key] for key in ROW)
    assert (logged["tools/call_frequency"], logged["tools/failure_frequency"]) == (2.0, 0.5)
    assert logged["rewards/Watched/mean"] == pytest.approx(0.4)

    renderer = renderers.load(RendererConfig(name="qwen3"), tokenizer)
    config = ToolClassConfig(name="class", path="tests.helpers.tool_classes.Shop")
    environment = config.make(renderer.calls)
    environment.start(Problem("p", "Buy apples.", "4", "en", "test", extra={"goods": ["apple"]}))
    assert set(ROW) <= set(environment._tools._row)
    shown = []
    for turn in TURNS:
        ids = tokenizer.encode(turn + "<|im_end|>", add_special_tokens=False)
        shown.append(environment.step(renderer.parse(Completion(ids, [0.0] * len(ids), "stop"))))
    assert [messages and messages[0]["content"] for messages in shown] == [
        "4 bought",
        "error: ValueError: no pear here",
        None,
    ]
    assert environment.counts == {"tool_calls": 2, "tool_errors": 1, "tool_errors_raised": 1}
    assert environment.reward() == 0.4
