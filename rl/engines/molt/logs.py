"""Reads Molt's numbers from what it prints."""

from __future__ import annotations

import re

_STEP = re.compile(r"Global step (\d{1,12}): (\{.*\})", re.ASCII)
_EVALUATION = re.compile(r"Eval at step (\d{1,12}): (\{.*\})", re.ASCII)
# A value is printed as Python prints it, perhaps inside tensor(...) or np.float64(...).
_PAIR = re.compile(
    r"'([^']+)': (?:[\w.]+\()?(-?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|inf|nan))(?![\w.])", re.I | re.A
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# Molt's names -> ours (rl/metrics.py). Its policy_loss is another scalar than our `loss`, so it keeps its name.
RENAMED = {
    "rollout/reward_mean": "reward_total",
    "rollout/truncated_rate": "frac_truncated",
    "rollout/response_length_mean": "tokens/mean",
    "actor_grad_norm": "grad_norm",
    "actor_lr": "learning_rate",
    "timing/generation": "time/sample",
    "timing/policy_train": "time/update",
    "timing/step_total": "time/step",
}
# Metrics that our agent measures on each completion; Molt averages them over the batch under the same name.
OURS = ("reward_", "grade/", "env/")
MEASURED = ("frac_all_good", "tokens/thinking", "tokens/context", "thinking_ja_share", "boxed_in_thinking")

ERROR = re.compile(r"(?:^|\s|\.)(\w*(?:Error|Exception|Interrupt): .+)$")


def plain(line: str) -> str:
    """A printed line without colours and without what a carriage return overwrote."""
    return _COLOUR.sub("", line).rstrip("\r").rpartition("\r")[2].rstrip()


def step_metrics(line: str) -> tuple[int, dict[str, float]] | None:
    """(step, metrics under our names) of a line that reports a finished step; None for any other line."""
    found = _STEP.search(line)
    if found is None:
        return None
    values = numbers(found[2])
    metrics = {named(name): value for name, value in values.items()}
    if "is_filter_ratio" in values:
        metrics["trust/admitted"] = 1 - metrics.pop("molt/is_filter_ratio")
    return int(found[1]), metrics


def evaluation_metrics(line: str) -> tuple[int, dict[str, float]] | None:
    """(steps trained before it, `eval/*` metrics) of a line that reports an evaluation; None for any other line.

    Molt reports each data source alone: the mean reward over all of them is the sources' mean.
    """
    found = _EVALUATION.search(line)
    if found is None:
        return None
    values = {name.removeprefix("eval_"): value for name, value in numbers(found[2]).items()}
    rewards = [value for name, value in values.items() if name.endswith("_pass1")]
    metrics = {f"eval/molt/{name}": value for name, value in values.items()}
    if rewards:
        metrics["eval/reward_total"] = sum(rewards) / len(rewards)
    for theirs, ours in (("truncated_rate", "frac_truncated"), ("response_length_mean", "tokens/mean")):
        if theirs in values:
            metrics[f"eval/{ours}"] = metrics.pop(f"eval/molt/{theirs}")
    return int(found[1]), metrics


def named(name: str) -> str:
    """Our name of a metric of Molt's; `molt/NAME` where we have none."""
    if name in RENAMED:
        return RENAMED[name]
    return name if name.startswith(OURS) or name in MEASURED else f"molt/{name}"


def numbers(text: str) -> dict[str, float]:
    """The numbers of a printed dict, by name; other values are left out."""
    return {name: float(value) for name, value in _PAIR.findall(text)}


def last_error(lines: list[str]) -> str:
    """The last line that names an exception, else the last line; "" where nothing was printed."""
    for line in reversed(lines):
        if found := ERROR.search(line):
            return found[1]
    return next((line for line in reversed(lines) if line), "")
