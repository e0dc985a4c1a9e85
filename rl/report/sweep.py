"""The contents of a sweep's folder: its jobs, how each ended, and its results before and after training."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from rl.evaluation.statistics import Estimate, estimate_over_seeds
from rl.report.summary import Rows, by_set, last_mean, measured, series
from rl.storage.jsonl import read_jsonl
from rl.storage.run_directory import RunDirectory

# The measures that a sweep compares: name in evaluations.jsonl -> name in metrics.jsonl.
MEASURES = {
    "accuracy": "reward_correct",
    "tokens": "tokens/mean",
    "truncated": "frac_truncated",
    "tokens_per_correct": "tokens_per_correct",
    "thinking_ja_share": "thinking_ja_share",
}
SHARES = ("accuracy", "truncated", "thinking_ja_share")
BUDGET = "max_tokens"
SEED = "seed"

Measured = dict[str, Estimate]  # by names of MEASURES, without those that could not be measured


@dataclass(frozen=True)
class Job:
    """One run of a sweep. settings: its overrides as typed. budget: its max_tokens; None if it never began."""

    folder: Path
    state: str
    step: int
    reason: str
    settings: Mapping[str, str]
    budget: int | None
    metrics: Rows
    evaluations: Rows

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def tested(self) -> bool:
        """Whether test problems were evaluated both before its first step and after its last."""
        steps = {row["step"] for row in self.evaluations}
        return {1, self.step + 1} <= steps

    def before(self) -> Measured:
        """The policy before training: on test problems, else from the first step's metrics, without intervals."""
        if self.tested:
            return self._at(1)
        firsts = {name: series(self.metrics[:1], metric)[1] for name, metric in MEASURES.items()}
        return {name: Estimate(values[0], math.nan, math.nan) for name, values in firsts.items() if values}

    def after(self) -> Measured:
        """The trained policy: on test problems, else the mean of the last five steps, without intervals."""
        if self.tested:
            return self._at(self.step + 1)
        means = {name: last_mean(self.metrics, metric) for name, metric in MEASURES.items()}
        return {name: Estimate(mean, math.nan, math.nan) for name, mean in means.items() if mean is not None}

    @property
    def sampled_tokens(self) -> int | None:
        """Completion tokens that its training steps sampled."""
        return self.metrics[-1].get("sampled_tokens") if self.metrics else None

    def on(self, data: str) -> Job:
        """The same job with the evaluations on one data set only."""
        return replace(self, evaluations=by_set(self.evaluations).get(data, []))

    def _at(self, step: int) -> Measured:
        row = next(row for row in reversed(self.evaluations) if row["step"] == step)
        found = {name: measured(row, name) for name in MEASURES}
        return {name: estimate for name, estimate in found.items() if estimate is not None}


@dataclass(frozen=True)
class Setting:
    """Finished jobs that differ only in their seed. label: the settings that tell it from the others, as typed."""

    label: str
    jobs: list[Job]

    def before(self) -> Measured:
        """The policies before training; see `estimate_over_seeds`."""
        return _over_seeds([job.before() for job in self.jobs])

    def after(self) -> Measured:
        """The trained policies."""
        return _over_seeds([job.after() for job in self.jobs])

    @property
    def sampled_tokens(self) -> float | None:
        """The mean over its jobs; None where one did not log it."""
        counts = [job.sampled_tokens for job in self.jobs]
        return None if None in counts else fmean(count for count in counts if count is not None)


def _over_seeds(measured: Sequence[Measured]) -> Measured:
    """Each measure that all of them have."""
    found = {}
    for name in MEASURES:
        if all(name in each for each in measured):
            found[name] = within(estimate_over_seeds([each[name] for each in measured]), name in SHARES)
    return found


def within(estimate: Estimate, share: bool) -> Estimate:
    """The estimate with an interval that has no impossible values: none below 0, of a share none above 1."""
    if math.isnan(estimate.low):
        return estimate
    return estimate._replace(low=max(0.0, estimate.low), high=min(1.0 if share else math.inf, estimate.high))


def settings(jobs: Sequence[Job]) -> list[Setting]:
    """The finished jobs, those that differ only in their seed as one; in the order of the first job of each."""
    done = [job for job in jobs if job.finished]
    keys = [key for key in varied(done) if key != SEED]
    found: dict[str, list[Job]] = {}
    for job in done:
        chosen = {key: _short(job.settings[key]) for key in keys if key in job.settings}
        alone = len(keys) == 1  # then the value says enough
        label = ", ".join(value if alone else f"{key}={value}" for key, value in chosen.items())
        found.setdefault(label, []).append(job)
    return [Setting(label, same) for label, same in found.items()]


def ranked(compared: Sequence[Setting]) -> list[Setting]:
    """The settings from the highest accuracy after training to the lowest; cheaper correct answers first among equals."""

    def rank(setting: Setting) -> tuple[float, float]:
        after = setting.after()
        accuracy, cost = after.get("accuracy"), after.get("tokens_per_correct")
        return (-accuracy.value if accuracy else math.inf, cost.value if cost else math.inf)

    return sorted(compared, key=rank)


def data_sets(jobs: Sequence[Job]) -> list[str]:
    """The data sets that the finished jobs were evaluated on; [""] without any evaluation."""
    found = dict.fromkeys(data for job in jobs if job.finished for data in by_set(job.evaluations))
    return list(found) or [""]


def is_sweep(folder: Path) -> bool:
    return not (folder / "metrics.jsonl").exists() and any(folder.glob("*/status.json"))


def read_sweep(folder: Path) -> list[Job]:
    """The jobs that have begun, sorted by name with numbers in numeric order."""
    files = folder.glob("*/status.json")
    return [read_job(file.parent) for file in sorted(files, key=lambda file: natural(file.parent.name))]


def read_job(folder: Path) -> Job:
    status = {"state": "unreadable", "step": 0, "reason": "", **RunDirectory(folder).read_status()}
    config = _read_yaml(folder / "config.yaml")
    overrides = _read_yaml(folder / "overrides.yaml")
    return Job(
        folder=folder,
        state=str(status["state"]),
        step=RunDirectory(folder).step,
        reason=str(status["reason"]),
        settings=settings_of(overrides if isinstance(overrides, list) else []),
        budget=config.get(BUDGET) if isinstance(config, Mapping) else None,
        metrics=read_jsonl(folder / "metrics.jsonl"),
        evaluations=read_jsonl(folder / "evaluations.jsonl"),
    )


def settings_of(overrides: Iterable[str]) -> dict[str, str]:
    """{key: value} of overrides as typed, without + and ~ marks."""
    pairs = (str(override).partition("=") for override in overrides)
    return {key.lstrip("+~"): value for key, _, value in pairs}


def varied(jobs: Sequence[Job]) -> list[str]:
    """The keys whose values differ among the jobs that began."""
    begun = [job.settings for job in jobs if job.budget is not None]
    keys = dict.fromkeys(key for settings in begun for key in settings)
    return [key for key in keys if len({settings.get(key) for settings in begun}) > 1]


def lines(jobs: Sequence[Job]) -> tuple[str, dict[str, list[tuple[float, Setting]]]]:
    """The key on the horizontal axis, and one line of (x, setting) for each combination of the other keys.

    The axis is the budget, or the first swept number, other than the seed, where all jobs have one budget.
    """
    keys = [key for key in varied(jobs) if key != SEED]
    numbers = [key for key in keys if all(_number(job.settings.get(key)) is not None for job in jobs)]
    axis = numbers[0] if numbers and len({job.budget for job in jobs}) == 1 else BUDGET
    found: dict[str, dict[float, list[Job]]] = {}
    for job in jobs:
        x = job.budget if axis == BUDGET else _number(job.settings[axis])
        label = ", ".join(
            f"{key}={_short(job.settings[key])}" for key in keys if key != axis and key in job.settings
        )
        if x is not None:
            found.setdefault(label, {}).setdefault(x, []).append(job)
    return axis, {
        label: [(x, Setting(label, same)) for x, same in sorted(line.items())]
        for label, line in found.items()
    }


def natural(name: str) -> list[Any]:
    """A sort key that puts max_tokens=64 before max_tokens=128."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [float(part) if i % 2 else part for i, part in enumerate(parts)]


def _short(value: str) -> str:
    """The value; long numbers are rounded to three digits."""
    number = _number(value)
    return value if number is None or len(value) <= 6 else f"{number:.3g}"


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _read_yaml(path: Path) -> Any:
    """The file's content; None if it is missing or not YAML."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
