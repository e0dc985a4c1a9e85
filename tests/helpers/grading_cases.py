"""The golden table of grading, and how one row of it is graded; importable by a spawned process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rewards.grading import Grader, Sample, Verdict, parse_text
from rewards.grading.golds import GoldError, canonical_raw_gold

DATA = Path(__file__).parents[1] / "data"


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
    """The verdicts by id, in one batch for each format or one by one."""
    verdicts = {}
    with Grader(workers=1) as grader:
        for grader.answer_format in ("boxed", "think_answer"):
            chosen = [c for c in cases if c["format_spec"] == grader.answer_format and c["gold"] is not None]
            samples = [Sample(parse_text(c["completion"], c["prefilled_think"]), c["gold"]) for c in chosen]
            batches = [[sample] for sample in samples] if singly else [samples]
            found = [verdict for batch in batches for verdict in grader.grade(batch)]
            verdicts |= {case["id"]: verdict for case, verdict in zip(chosen, found, strict=True)}
    return verdicts


def outcomes(cases: list[dict[str, Any]]) -> dict[str, tuple[bool, bool, str]]:
    """`grade_all`, without the times."""
    return {name: (v.correct, v.format, v.reason) for name, v in grade_all(cases).items()}
