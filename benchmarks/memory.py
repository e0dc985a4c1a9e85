"""Peak memory of a step of 2,048 rollouts at 135M parameters, by `engine.max_kv_gb`: `python -m benchmarks.memory [rounds]`.

One step of 256 problems x 8 completions of 16 tokens, all weights trained, at the shape of SmolLM2-135M with random
weights, in a fresh process for each limit. `estimated_gib` is what preflight says beforehand; `peak_gib` also holds Python
and its libraries.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.harness import Contender, Ratio, compare, in_fresh_process, peak_memory, rounds_from
from benchmarks.learner import SHAPE
from benchmarks.training import OURS, main_job, ours
from rl.blueprint import blueprint_from
from rl.rollouts import Rollout

LIMITS = ("0.25", "4")  # GiB; 4 is the default on a CPU
LONGEST_PROMPT = 120  # tokens, of the embedded task
STEP = ("preflight=off", "batch_size=256", "group_size=8", "max_tokens=16", "max_steps=1")


def main(rounds: int) -> None:
    contenders = [
        Contender(
            f"max_kv_gb_{limit}",
            {"overrides": [*STEP, f"engine.max_kv_gb={limit}"]},
            partial(in_fresh_process, "benchmarks.memory", "one", limit),
        )
        for limit in LIMITS
    ]
    ratios = [Ratio("peak_gib", contenders[0].name, contenders[-1].name)]
    compare("memory", contenders, ratios, rounds)


def one(limit: str) -> None:
    """Prints the figures of one step."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config = AutoConfig.for_model("llama", **SHAPE, eos_token_id=1)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained("assets/tiny").save_pretrained(folder)
        model = (
            f"model.path={folder}",
            "renderer=qwen3",
            "+rewards.tokens._target_=benchmarks.memory.by_tokens",
        )
        tree = main_job(*OURS, *STEP, *model, f"engine.max_kv_gb={limit}")
        blueprint = blueprint_from(tree)
        memory = blueprint.engine.step_memory(blueprint, LONGEST_PROMPT)
        assert memory is not None
        _, (step,) = ours(tree)
    figures = {"peak_gib": peak_memory(), "estimated_gib": memory["peak"] / 2**30, "seconds": step["seconds"]}
    print(json.dumps(figures))


def by_tokens(rollouts: Sequence[Rollout]) -> list[float]:
    """A reward that differs within groups, so that every rollout is trained on."""
    return [sum(rollout.completion.tokens) * 0.37 % 1 for rollout in rollouts]


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2])
    else:
        main(rounds_from(sys.argv[1:], default=1))
