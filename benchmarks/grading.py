"""Grading throughput compared with math-verify: `python -m benchmarks.grading [rounds]`.

Plain-number answers, one process, one thread; then 2,048 completions, 1 % of them bombs, with the worker pool.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from benchmarks.harness import Contender, Figures, Ratio, compare, rounds_from
from rewards.grading import Grader, Sample, parse_text

SPELLINGS = ("{}", "${}$", "\\${}", "{}円", "{} dollars", "{}\\text{{ apples}}", "{}.00", "{:,}")
BOMBS = (
    "9^{9^{9^9}}",
    "(10^{10})!",
    "\\binom{10^9}{5}",
    "\\sum_{k=1}^{1000000000} \\frac{1}{k^2}",
    "\\frac{x^{900}-1}{x-1}",
)
REASONING = "First 3 * 6 = 18 apples, then the rest is counted and added. " * 4


def main(rounds: int) -> None:
    contenders = [
        Contender("ours", {"answers": 8192}, lambda: per_second(grade_with_ours, plain_answers(8192))),
        Contender(
            "math_verify", {"answers": 256}, lambda: per_second(grade_with_math_verify, plain_answers(256))
        ),
    ]
    compare("grading", contenders, [Ratio("answers_per_second", "ours", "math_verify", 20)], rounds)
    seconds, stopped = batch_with_bombs()
    print(f"2,048 completions, {stopped} bombs: {seconds:.2f} s, every other verdict right")


def plain_answers(count: int) -> list[tuple[str, str]]:
    """(completion, gold): distinct numbers in the usual spellings."""
    numbers = random.Random(0).sample(range(100_000), count)
    return [
        (f"{REASONING}\\boxed{{{SPELLINGS[i % len(SPELLINGS)].format(number)}}}", str(number))
        for i, number in enumerate(numbers)
    ]


def per_second(grade: Callable[[list[tuple[str, str]]], int], answers: list[tuple[str, str]]) -> Figures:
    grade(answers[: len(SPELLINGS)])  # imports and tables
    start = time.perf_counter()
    grade(answers)
    return {"answers_per_second": len(answers) / (time.perf_counter() - start)}


def grade_with_ours(answers: list[tuple[str, str]]) -> int:
    verdicts = Grader().grade([Sample(parse_text(completion), gold) for completion, gold in answers])
    return sum(verdict.correct for verdict in verdicts)


def grade_with_math_verify(answers: list[tuple[str, str]]) -> int:
    from math_verify import parse, verify

    return sum(verify(parse(gold), parse(completion)) for completion, gold in answers)


def batch_with_bombs() -> tuple[float, int]:
    """(seconds, bombs stopped) of a batch in which one completion in 100 is a bomb and one in 10 needs a worker."""
    batch = plain_answers(2048)
    expected = ["correct"] * len(batch)
    for i in range(0, len(batch), 10):
        batch[i] = (f"\\boxed{{\\sqrt{{{2 * (i + 2) ** 2}}}}}", f"{i + 2}\\sqrt{{2}}")
    for i in range(50, len(batch), 100):
        batch[i], expected[i] = (f"\\boxed{{{BOMBS[i // 100 % len(BOMBS)]}}}", "5"), "timeout"
    with Grader() as grader:
        grader.start()
        grader.self_test()
        start = time.perf_counter()
        verdicts = grader.grade([Sample(parse_text(completion), gold) for completion, gold in batch])
        seconds = time.perf_counter() - start
    assert [verdict.reason for verdict in verdicts] == expected
    return seconds, expected.count("timeout")


if __name__ == "__main__":
    main(rounds_from(sys.argv[1:]))
