"""Watches a run's metrics: logs outliers, and stops the run after several steps with NaN or infinity in a row."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import median

from rl.engines.base import UpdateStats
from rl.errors import UserError
from rl.rollouts import Rollout, TrainingRow
from rl.storage.jsonl import continue_jsonl, read_jsonl, write_row

log = logging.getLogger("tanka")

WATCHED = ("reward_total", "loss", "grad_norm")
OUTLIER = 10.0  # warn above this multiple of the median gradient norm, or this learner-to-sampler ratio
MEMORY = 50  # number of past gradient norms in the median
ENOUGH = 10  # gradient norms needed before the median is used

CUT = 0.9  # share of truncated completions above which a step has little to learn from
CUT_STEPS = 20  # warn every this many such steps in a row

ADMITTED = 0.5  # share of rollouts inside the trust region below which most of the sampling is wasted
ADMITTED_STEPS = 5  # warn every this many such steps in a row


class Watchdog:
    """Watches the run in `run_dir`. done: steps already trained, whose metrics restore the counts."""

    def __init__(self, run_dir: Path, done: int, max_nonfinite_steps: int) -> None:
        self.file = run_dir / "nonfinite.jsonl"
        self.limit = max_nonfinite_steps
        rows = read_jsonl(run_dir / "metrics.jsonl", done)
        self.in_a_row = len(list(takewhile(lambda row: row.get("nonfinite"), reversed(rows))))
        self.grad_norms = deque((row["grad_norm"] for row in rows if row.get("grad_norm")), maxlen=MEMORY)
        self.cut_in_a_row = len(
            list(takewhile(lambda row: row.get("frac_truncated", 0.0) > CUT, reversed(rows)))
        )
        self.rejected_in_a_row = len(
            list(takewhile(lambda row: row.get("trust/admitted", 1.0) < ADMITTED, reversed(rows)))
        )

    def metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """`nonfinite`: 1 when the step's reward, loss or gradient was not a finite number, else 0."""
        return {"nonfinite": float(not all(math.isfinite(metrics[name]) for name in WATCHED))}

    def check(
        self,
        step: int,
        metrics: Mapping[str, float],
        rollouts: Sequence[Rollout],
        rows: Sequence[TrainingRow],
        stats: UpdateStats,
    ) -> None:
        """Logs outliers in a step's metrics; writes the rows of a step that was not finite to nonfinite.jsonl.

        Raises UserError after `max_nonfinite_steps` non-finite steps in a row.
        """
        self._log_truncation(step, metrics)
        self._log_rejection(step, metrics)
        if not metrics["nonfinite"]:
            self.in_a_row = 0
            self._log_outliers(step, metrics)
            return
        self.in_a_row += 1
        values = ", ".join(f"{name} {metrics[name]:g}" for name in WATCHED)
        log.warning("step %d moved no weights (%s); its rows are in %s", step, values, self.file.name)
        with continue_jsonl(self.file, step - 1) as file:
            for i in offending(rows, stats):
                write_row(file, {"step": step, **_facts(rollouts[i], rows[i], stats.sequence_kl[i])})
        if self.in_a_row >= self.limit:
            cause = (
                "a smaller learning_rate"
                if math.isfinite(metrics["reward_total"])
                else "fixing or replacing the reward"
            )
            raise UserError(
                f"max_nonfinite_steps={self.limit}: {self.in_a_row} steps in a row were not finite ({values}); the rows are"
                f" in {self.file}; the weights are those of the last good step; try {cause}"
            )

    def _log_truncation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Warns every CUT_STEPS steps in a row in which nearly every completion was cut."""
        self.cut_in_a_row = self.cut_in_a_row + 1 if metrics["frac_truncated"] > CUT else 0
        if self.cut_in_a_row and self.cut_in_a_row % CUT_STEPS == 0:
            log.warning(
                "step %d: %d steps in a row had more than %.0f %% of their completions cut (now %.0f %% at %d tokens,"
                " reward_total %.3f); try a larger max_tokens, or one of the remedies in preflight.json",
                step, self.cut_in_a_row, 100 * CUT, 100 * metrics["frac_truncated"], metrics["budget"],
                metrics["reward_total"],
            )  # fmt: skip

    def _log_rejection(self, step: int, metrics: Mapping[str, float]) -> None:
        """Warns every ADMITTED_STEPS steps in a row in which the trust region rejected most rollouts."""
        rejected = metrics.get("trust/admitted", 1.0) < ADMITTED
        self.rejected_in_a_row = self.rejected_in_a_row + 1 if rejected else 0
        if self.rejected_in_a_row and self.rejected_in_a_row % ADMITTED_STEPS == 0:
            log.warning(
                "step %d: %d steps in a row trained on fewer than %.0f %% of their rollouts (now %.0f %%): the others are outside"
                " the trust region (trust/kl_mean %.2g, learning_rate %.2g, lag/mean %.2g); try a smaller learning_rate, a"
                " smaller engine.max_lag, or a larger loss.delta",
                step, self.rejected_in_a_row, 100 * ADMITTED, 100 * metrics["trust/admitted"], metrics["trust/kl_mean"],
                metrics["learning_rate"], metrics.get("lag/mean", 0.0),
            )  # fmt: skip

    def _log_outliers(self, step: int, metrics: Mapping[str, float]) -> None:
        usual = median(self.grad_norms) if len(self.grad_norms) >= ENOUGH else math.inf
        if metrics["grad_norm"] > OUTLIER * usual:
            log.warning("step %d: gradient norm %.3g, usually %.3g", step, metrics["grad_norm"], usual)
        if metrics["grad_norm"]:
            self.grad_norms.append(metrics["grad_norm"])
        low, high = metrics["ratio/min"], metrics["ratio/max"]
        if high > OUTLIER or low < 1 / OUTLIER:
            log.warning("step %d: the learner's probability of a token is %.3g to %.3g times the sampler's", step, low, high)  # fmt: skip


def offending(rows: Sequence[TrainingRow], stats: UpdateStats) -> list[int]:
    """Indices of the rows with NaN or infinity; all rows when only their sum is not finite."""
    found = [
        i
        for i, (row, kl) in enumerate(zip(rows, stats.sequence_kl, strict=True))
        if not all(map(math.isfinite, [kl, *row.coefficients, *row.behavior_logprobs]))
    ]
    return found or list(range(len(rows)))


def _facts(rollout: Rollout, row: TrainingRow, sequence_kl: float) -> dict[str, object]:
    return {
        "id": rollout.problem.id,
        "question": rollout.problem.question,
        "raw": rollout.parsed.raw,
        "prompt_tokens": list(row.prompt_tokens),
        "response_tokens": list(row.response_tokens),
        "mask": list(row.mask),
        "behavior_logprobs": list(row.behavior_logprobs),
        "coefficients": list(row.coefficients),
        "rewards": rollout.rewards,
        "reward": rollout.reward,
        "sequence_kl": sequence_kl,
    }
