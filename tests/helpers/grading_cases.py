"""The golden table of grading, and how one row of it is graded; importable by a spawned process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rewards.grading import Grader, Sample, Verdict, parse_text
from rewards.grading.golds import GoldError, canonical_raw_gold

DATA = Path(__file__).parents[1] / "data"
BORDERLINE = {"x-cost-011", "x-cost-026"}  # wrong on a fast machine, the time limit on a slow one
TRIES = 5


def load_cases() -> list[dict[str, Any]]:
    """Every case; `gold` is canonical, or None where the row must be rejected."""
    names = ("grading_cases.jsonl", "grading_cases2.jsonl", "grading_extra.jsonl")
    cases = [
        json.loads(line) for name in names for line in (DATA / name).read_text(encoding="utf-8").splitlines()
    ]
    for case in cases:
        if case["completion"] is None:
            case["completion"] = "".join(text * times for text, times in case["completion_parts"])
        if "expect_gold" in case:
            try:
                case["gold"] = canonical_raw_gold(case["gold"])
            except GoldError:
                case["gold"] = None
    return cases


def grade_all(cases: list[dict[str, Any]], singly: bool = False) -> dict[str, Verdict]:
    """The verdicts by id, in one batch for each format or one by one.

    On a busy machine even a short comparison can reach the time limit: those are graded again.
    """
    verdicts = {}
    with Grader(workers=1) as grader:
        for grader.answer_format in ("boxed", "think_answer"):
            chosen = [c for c in cases if c["format_spec"] == grader.answer_format and c["gold"] is not None]
            samples = [Sample(parse_text(c["completion"], c["prefilled_think"]), c["gold"]) for c in chosen]
            batches = [[sample] for sample in samples] if singly else [samples]
            found = [verdict for batch in batches for verdict in grader.grade(batch)]
            for case, sample, verdict in zip(chosen, samples, found, strict=True):
                for _ in range(TRIES):
                    if case["id"] in BORDERLINE or (verdict.reason != "timeout" and verdict.seconds <= 1.0):
                        break
                    (verdict,) = grader.grade([sample])
                verdicts[case["id"]] = verdict
    return verdicts


def without_times(verdicts: dict[str, Verdict]) -> dict[str, tuple[bool | None, bool, str]]:
    return {
        name: (v.correct, v.format, "" if name in BORDERLINE else v.reason) for name, v in verdicts.items()
    }


def outcomes(cases: list[dict[str, Any]]) -> dict[str, tuple[bool | None, bool, str]]:
    """`grade_all`, without the times."""
    return without_times(grade_all(cases))
