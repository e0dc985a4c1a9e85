"""The main job on the embedded model and stock TRL on the same task: `python -m benchmarks.training [rounds [steps]]`.

Both train the same weights with the same problems in the same order, prompts, rewards, batch of 16 x 8, learning rate and
optimizer. Each round has its own seed, each training its own process. Figures: the seconds until the mean reward of
three steps is at least 0.9, and the median seconds of a step after warm-up.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from hydra import compose, initialize_config_dir
from trl import GRPOTrainer

from benchmarks.harness import Contender, Figures, Laps, Ratio, compare, in_fresh_process, rounds_from
from benchmarks.trl_baseline import BEST, BFLOAT16, DEFAULTS, Clock, grpo_config
from recipes.cli.compose import CONF, register_resolvers, resolved
from rl.blueprint import Blueprint, blueprint_from, resumable_keys
from rl.collecting import one_turn
from rl.data.problems import load
from rl.models.loading import open_renderer
from rl.rollouts import Completion
from rl.run import open_run
from rl.storage.jsonl import read_jsonl
from rl.storage.run_directory import open_directory
from rl.train import train

STEPS = 40
WARM_UP = 3
REWARD, WINDOW = 0.9, 3
# Only training: no evaluation, no checkpoint before the end, no tracker.
OURS = ("eval_every=0", "save_every=0", "logger=none")
TRL: dict[str, dict[str, Any]] = {
    "trl": {**BEST, "per_device_train_batch_size": 128},
    "trl_accumulating": {**BEST, "per_device_train_batch_size": 32},
    "trl_bf16": {**BFLOAT16, "per_device_train_batch_size": 32},
    "trl_defaults": {**DEFAULTS, "per_device_train_batch_size": 128},
}


def main(rounds: int, steps: int) -> None:
    settings = {"ours": {"overrides": list(OURS)}, **TRL}
    ratios = [
        Ratio("seconds_to_reward", "ours", "trl", 0.5),
        Ratio("seconds_to_reward", "ours", "trl_accumulating", 0.5),
        Ratio("step_seconds", "ours", "trl", 0.5),
        Ratio("step_seconds", "ours", "trl_accumulating", 0.5),
        Ratio("step_seconds", "ours", "trl_bf16", 0.5),
        Ratio("step_seconds", "ours", "trl_defaults", 0.25),
    ]
    compare("training", [contender(name, settings[name], steps) for name in settings], ratios, rounds)


def contender(name: str, settings: dict[str, Any], steps: int) -> Contender:
    seeds = itertools.count()
    return Contender(
        name,
        {**settings, "steps": steps},
        lambda: in_fresh_process("benchmarks.training", "one", name, str(next(seeds)), str(steps)),
    )


def one(name: str, seed: int, steps: int) -> None:
    """Prints the figures of one training."""
    tree = main_job(*OURS, f"seed={seed}", f"max_steps={steps}")
    rewards, times = ours(tree) if name == "ours" else trl(blueprint_from(tree), TRL[name])
    print(json.dumps(figures(rewards, times)))


def figures(rewards: Sequence[float], times: Sequence[Figures]) -> Figures:
    """The figures, from the mean reward and the time of each step."""
    means = [statistics.fmean(rewards[i - WINDOW : i]) for i in range(WINDOW, len(rewards) + 1)]
    reached = next((i for i, mean in enumerate(means, WINDOW) if mean >= REWARD), None)
    if reached is None:
        raise SystemExit(f"reward {REWARD} was not reached in {len(rewards)} steps: {rewards[-WINDOW:]}")
    steady = times[WARM_UP:]
    return {
        "seconds_to_reward": sum(time["seconds"] for time in times[:reached]),
        "steps_to_reward": reached,
        "step_seconds": statistics.median(time["seconds"] for time in steady),
        "step_cpu_seconds": statistics.median(time["cpu_seconds"] for time in steady),
    }


def main_job(*overrides: str) -> dict[str, Any]:
    """conf/rl_basic.yaml with these overrides, as `python -m recipes.rl_basic` composes it."""
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return resolved(compose("rl_basic", overrides=list(overrides)))


def ours(tree: dict[str, Any]) -> tuple[list[float], list[Figures]]:
    """Runs the main job in this process; a step lasts from one logged line to the next."""
    blueprint = blueprint_from(tree)
    with tempfile.TemporaryDirectory() as folder:
        directory = open_directory(
            Path(folder, "run"), Path(folder), tree, [], resume=True, resumable=resumable_keys(blueprint)
        )
        with open_run(blueprint, load(blueprint.data, blueprint.seed), directory, tree, []) as run:
            log, laps = run.loggers.log, Laps()

            def timed_log(*arguments: Any) -> None:
                log(*arguments)
                laps()

            run.loggers.log = timed_log  # type: ignore[method-assign, assignment]
            train(run)
        return [row["reward_total"] for row in read_jsonl(directory.path / "metrics.jsonl")], laps.figures


def trl(blueprint: Blueprint, settings: dict[str, Any]) -> tuple[list[float], list[Figures]]:
    """Stock GRPOTrainer on the blueprint's task, with the blueprint's optimizer."""
    problem_set = load(blueprint.data, blueprint.seed)
    tokenizer, renderer = open_renderer(blueprint.model, blueprint.renderer)
    assert blueprint.max_steps is not None
    problems = [
        problem
        for step in range(blueprint.max_steps)
        for problem in problem_set.batch(step, blueprint.batch_size, blueprint.seed)
    ]
    prompts = [renderer.prompt(problem_set.messages(problem)) for problem in problems]
    texts = [tokenizer.decode(prompt) for prompt in prompts]
    assert tokenizer(texts)["input_ids"] == prompts, "TRL would train on other prompts"
    means: list[float] = []

    def reward(completion_ids: list[list[int]], number: list[int], **_: Any) -> list[float]:
        rollouts = []
        for ids, i in zip(completion_ids, number, strict=True):
            stopped = ids[-1] in renderer.stop_ids
            completion = Completion(ids, [0.0] * len(ids), "stop" if stopped else "length")
            rollouts.append(one_turn(problems[i], i, prompts[i], completion, renderer))
        blueprint.rewards.score(rollouts)
        means.append(statistics.fmean(rollout.reward for rollout in rollouts))
        return [rollout.reward for rollout in rollouts]

    rollouts_a_step = blueprint.batch_size * blueprint.group_size
    optimizer, clock = blueprint.optimizer, Clock()
    trainer = GRPOTrainer(
        blueprint.model.source,
        reward_funcs=reward,  # type: ignore[arg-type]
        args=grpo_config(
            seed=blueprint.seed,
            max_steps=blueprint.max_steps,
            num_generations=blueprint.group_size,
            max_completion_length=blueprint.max_tokens,
            temperature=blueprint.temperature,
            shuffle_dataset=False,
            gradient_accumulation_steps=rollouts_a_step // settings["per_device_train_batch_size"],
            learning_rate=blueprint.learning_rate,
            lr_scheduler_type="constant",
            adam_beta1=optimizer.betas[0],
            adam_beta2=optimizer.betas[1],
            adam_epsilon=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            max_grad_norm=optimizer.max_grad_norm,
            **settings,
        ),
        train_dataset=Dataset.from_list([{"prompt": text, "number": i} for i, text in enumerate(texts)]),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    blueprint.rewards.start()
    try:
        trainer.train()
    finally:
        blueprint.rewards.close()
    return means, clock.steps


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main(rounds_from(sys.argv[1:]), int(sys.argv[2]) if len(sys.argv) > 2 else STEPS)
