"""Stands in for the Python of Molt's environment: answers in_molt.py's questions, and logs, saves and exports as Molt does.

It trains nothing. The JSON in MOLT_STAND_IN changes it: "answer" (fields of the answer), "fail_at", "hang_at" (steps),
"silent_exit" (exit code without a word), "no_export", "prints" (texts printed before a step, by its number), "end_at" (the
step after which it exports and ends), "killed_at".
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PLAN = json.loads(os.environ.get("MOLT_STAND_IN", "{}"))
ANSWER = {
    "packages": {"molt": "0.2.1", "ray": "2.59.0", "vllm": "0.32.0", "nemo_automodel": "0.5.0"},
    "accepted": True, "words": "", "missing": "", "gpus": 8, "cluster": "",
}  # fmt: skip

SAMPLE = {
    "split": "train", "language": "en", "question": "1 + 1?", "thinking": "", "text": "2", "raw": "2", "tokens": 1,
    "ended": "stop", "gold": "2", "extracted": "2", "correct": True, "format": True, "reason": "correct",
    "rewards": {"correct": 1.0}, "reward": 1.0,
}  # fmt: skip


def write_stand_in(folder: Path) -> Path:
    """An executable that acts as Molt's Python."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__)} "$@"\n')
    path.chmod(0o755)
    return path


def flags_of(arguments: list[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    for argument in arguments:
        if argument.startswith("--"):
            name = argument[2:]
            flags[name] = ""
        else:
            flags[name] = f"{flags[name]} {argument}".strip()
    return flags


def say(actor: str, text: str) -> None:
    print(f"\x1b[36m({actor} pid=4242)\x1b[0m {text}", flush=True)


def metrics(step: int) -> dict[str, float]:
    """A step's numbers under Molt's names, and the means of the agent's."""
    return {
        "policy_loss": 0.25 / step, "actor_lr": 1e-6, "actor_grad_norm": 0.5, "is_filter_ratio": 0.25, "vllm_kl": 1e-4,
        "reward_correct": 0.5, "frac_all_good": 0.5, "grade/wrong": 0.5, "kl": float("nan"),
        "rollout/reward_mean": 0.5 + step / 100, "rollout/truncated_rate": 0.125, "rollout/response_length_mean": 20.5,
        "rollout/dropped/total": 0.0, "timing/generation": 1.5, "timing/policy_train": 0.5, "timing/step_total": 2.0,
    }  # fmt: skip


def save(state: Path, step: int) -> None:
    folder = state / "_actor" / f"global_step{step}"
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "extra_state.pt").write_text("")
    (state / "_actor" / "latest").write_text(folder.name)


def train(flags: dict[str, str]) -> None:
    Path("started.json").write_text(json.dumps({"flags": flags, "environment": dict(os.environ)}))
    state, batch = Path(flags["ckpt.path"]), int(flags["rollout.batch_size"])
    steps = math.ceil(int(flags["data.max_samples"]) / batch) * int(flags["train.num_episodes"])
    latest = state / "_actor" / "latest"
    done = int(latest.read_text().removeprefix("global_step")) if latest.exists() else 0
    every, evaluation = int(flags["ckpt.save_steps"]), int(flags.get("eval.steps", 0))
    actor = subprocess.Popen(["sleep", "600"])  # a process of the job, which must not outlive it
    Path("actor.pid").write_text(str(actor.pid))
    if evaluation and not done:
        report = {
            "eval_word_problems_pass1": 0.25,
            "eval_truncated_rate": 0.5,
            "eval_response_length_mean": 30.0,
        }
        say("TrainingActor", f"INFO 09-01 12:00:00 rl_trainer.py:901] Eval at step 0: {report}")
    samples = Path("samples")
    samples.mkdir(exist_ok=True)
    for step in range(done + 1, steps + 1):
        if PLAN.get("silent_exit"):
            os._exit(PLAN["silent_exit"])
        if step == PLAN.get("fail_at"):
            print("Traceback (most recent call last):\n  File x, line 1, in f", flush=True)
            print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
            actor.kill()
            sys.exit(1)
        for text in PLAN.get("prints", {}).get(str(step), []):
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")
        if step == PLAN.get("killed_at"):
            actor.kill()
            os.kill(os.getpid(), signal.SIGKILL)
        if step == PLAN.get("hang_at"):
            print("Generate samples:  10%|#   |\rGenerate samples:  20%|##  |", end="", flush=True)
            time.sleep(600)
        with (samples / "a.jsonl").open("a") as file:
            file.write(json.dumps(SAMPLE | {"id": f"p{step}"}) + "\n")
        line = f"INFO 09-01 12:00:00 rl_trainer.py:935] Global step {step}: {metrics(step)}"
        say("TrainingActor", line)
        if step == 2:
            say("TrainingActor", line)  # Ray may print a line twice
            say(
                "PolicyModelActor", "WARNING 09-01 12:00:00 rl_trainer.py:452] is_filter_ratio=1.000: dropped"
            )
        if every > 0 and step % every == 0:
            save(state, step)
        if step == PLAN.get("end_at"):
            break
    actor.kill()
    if not PLAN.get("no_export"):
        shutil.copytree(flags["actor.model_name_or_path"], flags["ckpt.output_dir"], dirs_exist_ok=True)


def main() -> None:
    if sys.argv[1].endswith("in_molt.py"):
        json.load(sys.stdin)
        print("a line of a package\ntanka-molt: " + json.dumps(ANSWER | PLAN.get("answer", {})))
    elif sys.argv[1:4] == ["-u", "-m", "molt.cli.train_rl_ray"]:
        train(flags_of(sys.argv[4:]))
    else:
        sys.exit(f"unexpected: {sys.argv}")


if __name__ == "__main__":
    main()
