"""Measured pass rates of train problems: the shares of their completions that were right, for `curriculum=pass_rate`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rl.errors import UserError
from rl.rollouts import Rollout
from rl.storage.jsonl import continue_jsonl, read_jsonl, write_row


class PassRates:
    """A run's pass_rates.jsonl: the rates measured in each step; step 0 holds those of a file of `recipes.preflight`.

    done: steps already trained; later lines are removed. The file is read at the start of a run only, so it may move.
    """

    def __init__(self, path: Path, done: int, start: str | None) -> None:
        self.file = continue_jsonl(path, done)
        self.rows: dict[int, dict[str, float]] = {row["step"]: row["rates"] for row in read_jsonl(path)}
        if 0 not in self.rows:
            self._write(0, {} if start is None else read_pass_rates(start))

    def record(self, step: int, rollouts: Iterable[Rollout]) -> None:
        """Appends the rates of a step's graded rollouts."""
        self._write(step, pass_rates_of(rollouts))

    def _write(self, step: int, rates: dict[str, float]) -> None:
        self.rows[step] = rates
        write_row(self.file, {"step": step, "rates": rates})
        self.file.flush()

    def until(self, step: int) -> dict[str, float]:
        """The last measured rate of each problem, by id, from steps up to `step`."""
        return {
            name: rate
            for number in sorted(self.rows)
            if number <= step
            for name, rate in self.rows[number].items()
        }

    def close(self) -> None:
        self.file.close()


def pass_rates_of(rollouts: Iterable[Rollout]) -> dict[str, float]:
    """The share of right completions of each problem, by id; {} for rollouts that were not graded."""
    found: dict[str, list[bool]] = {}
    for rollout in rollouts:
        if rollout.verdict.correct is not None:
            found.setdefault(rollout.problem.id, []).append(rollout.verdict.correct)
    return {name: sum(right) / len(right) for name, right in found.items()}


def write_pass_rates(path: Path, rates: Mapping[str, float]) -> None:
    """Writes what `read_pass_rates` reads: {"id": ..., "pass_rate": ...} on each line."""
    lines = (
        json.dumps({"id": name, "pass_rate": rate}, ensure_ascii=False) + "\n" for name, rate in rates.items()
    )
    path.write_text("".join(lines), encoding="utf-8", errors="backslashreplace")


def read_pass_rates(path: str) -> dict[str, float]:
    """The rates by problem id. Raises UserError for a missing file or a line that is no rate."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(
            f"pass_rates={path}: no such file; expected the pass_rates.jsonl that python -m recipes.preflight wrote"
        )
    return dict(
        _rate(path, number, line) for number, line in enumerate(_lines(path, file), 1) if line.strip()
    )


def _lines(path: str, file: Path) -> Sequence[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"pass_rates={path}: is not UTF-8; save it as UTF-8") from None


def _rate(path: str, number: int, line: str) -> tuple[str, float]:
    try:
        row = json.loads(line)
        name, rate = row["id"], row["pass_rate"]
        if isinstance(name, str) and not isinstance(rate, bool) and 0 <= rate <= 1:
            return name, float(rate)
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(
        f'pass_rates={path}: line {number} is no pass rate; expected {{"id": "...", "pass_rate": 0.25}}'
    )
