"""One update on 16 rows of 128 + 256 tokens at the shape of a 135M-parameter Llama: `python -m benchmarks.learner [rounds]`.

Measures time and peak memory of our learner and of stock TRL, each in a fresh process with the same random weights, rows
and advantages, and finally compares the gradients.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from trl import GRPOTrainer

from benchmarks.harness import (
    ON_GPU,
    Contender,
    Figures,
    Ratio,
    compare,
    in_fresh_process,
    now,
    peak_memory,
    rounds_from,
    since,
)
from benchmarks.trl_baseline import BEST, BFLOAT16, DEFAULTS, Clock, grpo_config
from rl.engines.local.config import LocalEngineConfig
from rl.engines.local.learner import LocalLearner
from rl.engines.local.precision import Precision, compute_dtype
from rl.losses.grpo import GRPO
from rl.optimizer import OptimizerConfig
from rl.rollouts import TrainingRow

PROMPTS, GROUP, PROMPT_TOKENS, COMPLETION_TOKENS = 2, 8, 128, 256
ROWS = PROMPTS * GROUP
# The shape of SmolLM2-135M.
SHAPE: dict[str, Any] = {
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
MICROBATCH_TOKENS = LocalEngineConfig().microbatch(ON_GPU)
OURS = ("ours", "ours_float32")
CONTENDERS: dict[str, dict[str, Any]] = {
    "ours": {"microbatch_tokens": MICROBATCH_TOKENS, "compute": "auto"},
    "ours_float32": {"microbatch_tokens": MICROBATCH_TOKENS, "compute": "float32"},
    "trl": {**BEST, "per_device_train_batch_size": 16},
    "trl_accumulating": {**BEST, "per_device_train_batch_size": 4},
    "trl_bf16": {**BFLOAT16, "per_device_train_batch_size": 4},
    "trl_defaults": {**DEFAULTS, "per_device_train_batch_size": 8},
}


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        contenders = [
            Contender(name, settings, partial(in_fresh_process, "benchmarks.learner", "one", name, folder))
            for name, settings in CONTENDERS.items()
        ]
        promised = [
            Ratio("seconds", "ours", "trl_bf16", 0.65),
            Ratio("seconds", "ours_float32", "trl", 0.65),
            Ratio("peak_gib", "ours_float32", "trl", 0.35),
        ]
        observed = [
            Ratio(figure, "ours", name)
            for name in ("ours_float32", "trl_accumulating", "trl_bf16", "trl_defaults")
            for figure in ("seconds", "peak_gib")
            if (figure, name) != ("seconds", "trl_bf16")
        ]
        compare("learner", contenders, [*promised, *observed], rounds)
        a, b = (torch.load(Path(folder, f"{name}.pt"), weights_only=True) for name in ("ours_float32", "trl"))
        print(
            f"the gradients of ours_float32 and trl differ by {max((a[k] - b[k]).abs().max() for k in a):.1e} at most"
        )


def one(name: str, folder: Path) -> None:
    """Prints the figures of one contender's update and writes its gradient to a file."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SHAPE)).to(
        "cuda" if ON_GPU else "cpu"
    )
    figures = ours(model, CONTENDERS[name]["compute"]) if name in OURS else trl(model, CONTENDERS[name])
    figures["peak_gib"] = peak_memory()
    torch.save({key: p.grad for key, p in model.named_parameters()}, folder / f"{name}.pt")
    print(json.dumps(figures))


def batch() -> dict[str, torch.Tensor]:
    """Tokens [N, P] and [N, T] of groups that share a prompt, and advantages [N] that sum to 0 in each group."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(SHAPE["vocab_size"], (PROMPTS, PROMPT_TOKENS), generator=generator)
    completions = torch.randint(SHAPE["vocab_size"], (ROWS, COMPLETION_TOKENS), generator=generator)
    return {
        "prompt_ids": prompts.repeat_interleave(GROUP, 0),
        "completion_ids": completions,
        "advantages": torch.tensor([1.0, -1.0]).repeat(ROWS // 2),
    }


def ours(model: PreTrainedModel, compute: Literal["auto", "float32"]) -> Figures:
    """Our update. The behaviour log-probabilities are the model's own, as on policy."""
    learner = LocalLearner(
        model,
        OptimizerConfig(max_grad_norm=math.inf),
        1.0,
        MICROBATCH_TOKENS,
        precision=Precision(compute_dtype(model, compute)),
    )
    unscored = [
        TrainingRow(
            prompt,
            completion,
            [True] * len(completion),
            [0.0] * len(completion),
            [advantage / (ROWS * len(completion))] * len(completion),
        )
        for prompt, completion, advantage in zip(*(part.tolist() for part in batch().values()), strict=True)
    ]
    scores = learner.logprobs(unscored)
    rows = [replace(row, behavior_logprobs=values) for row, values in zip(unscored, scores, strict=True)]
    start = now()
    learner.update(rows, GRPO(), 0.0)
    return since(start)


def trl(model: PreTrainedModel, settings: dict[str, Any]) -> Figures:
    """One step of GRPOTrainer's own loop, from the rows to the end of the optimizer step."""

    class Fixed(GRPOTrainer):
        """Uses given rows instead of sampling."""

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
            rows = batch() | {
                f"{part}_mask": torch.ones_like(batch()[f"{part}_ids"]) for part in ("prompt", "completion")
            }
            rows["num_items_in_batch"] = rows["completion_mask"].sum()
            return {name: values.to(model.device) for name, values in rows.items()}

    clock = Clock()
    trainer = Fixed(
        model,
        reward_funcs=lambda prompts, **_: [0.0] * len(prompts),  # type: ignore[arg-type]
        args=grpo_config(
            max_steps=1,
            learning_rate=0.0,
            max_grad_norm=0.0,
            num_generations=GROUP,
            max_completion_length=COMPLETION_TOKENS,
            gradient_accumulation_steps=ROWS // settings["per_device_train_batch_size"],
            **settings,
        ),
        train_dataset=Dataset.from_list([{"prompt": "given"}] * PROMPTS),
        processing_class=AutoTokenizer.from_pretrained("assets/tiny"),
        callbacks=[clock],
    )
    # Keeps the gradient, which the trainer would clear after its step.
    model.zero_grad = lambda *_, **__: None  # type: ignore[method-assign]
    trainer.train()
    return clock.steps[0]


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2], Path(sys.argv[3]))
    else:
        main(rounds_from(sys.argv[1:]))
