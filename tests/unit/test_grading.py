"""Grading from outside: the golden table in four calling contexts, properties, and killed workers."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rewards.grading import Grader, Sample, Verdict, parse_text
from rewards.grading import grader as grader_module
from rewards.grading import pool as pool_module
from rl.errors import UserError
from rl.rollouts import Parsed
from tests.helpers.grading_cases import TRIES, grade_all, load_cases, outcomes, without_times

ROOT = Path(__file__).parents[2]
CASES = load_cases()


@pytest.fixture(scope="module")
def grader():
    with Grader() as grader:
        grader.start()
        yield grader


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    return grade_all(CASES, singly=True)


def grade(grader: Grader, answer: str, gold: str) -> Verdict:
    """One verdict; on a busy machine even a short comparison can reach the time limit, and is tried again."""
    for _ in range(TRIES):
        (verdict,) = grader.grade([Sample(parse_text(f"\\boxed{{{answer}}}"), gold)])
        if verdict.reason != "timeout":
            break
    return verdict


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_table_is_whole():
    assert len(CASES) == 298 + 98 + 972
    assert len({case["id"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case, verdicts):
    if "expect_gold" in case:
        assert case["gold"] == case["expect_gold"]
    if case["gold"] is None:
        return
    verdict = verdicts[case["id"]]
    assert verdict.reason != "error"
    assert verdict.seconds <= 1.0
    if case["expect_correct"] is not None:
        assert verdict.correct == bool(case["expect_correct"]), verdict
    if case["expect_format"] is not None:
        assert verdict.format == bool(case["expect_format"]), verdict


def test_same_verdicts_from_every_context(verdicts):
    expected = without_times(verdicts)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(outcomes, CASES).result() == expected

    async def in_event_loop():
        return outcomes(CASES)

    assert asyncio.run(in_event_loop()) == expected
    with multiprocessing.get_context("spawn").Pool(
        1
    ) as processes:  # daemonic: it may have no multiprocessing children
        assert processes.apply(outcomes, (CASES,)) == expected


def test_a_forked_process_does_not_disturb_its_parents_workers(grader):
    assert grade(grader, "\\sqrt{12}", "2\\sqrt{3}").correct
    child = os.fork()
    if child == 0:
        ok = grade(grader, "\\sqrt{18}", "3\\sqrt{2}").correct
        grader.close()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert grade(grader, "\\sqrt{8}", "2\\sqrt{2}").correct


def test_concurrent_threads_share_a_grader(grader):
    pairs = [(f"\\sqrt{{{n * n * 2}}}", f"{n}\\sqrt{{2}}") for n in range(2, 22)]
    with ThreadPoolExecutor(4) as threads:
        assert all(verdict.correct for verdict in threads.map(lambda pair: grade(grader, *pair), pairs))


def test_expected_samples_are_compared_before_they_are_graded(grader, monkeypatch):
    pairs = [(f"\\sqrt{{{n * n * 2}}}", f"{n}\\sqrt{{2}}") for n in range(2, 12)]
    samples = [Sample(parse_text(f"\\boxed{{{answer}}}"), gold) for answer, gold in pairs]
    for sample in samples:
        grader.expect([sample])
    expected = grader._pool._expected
    deadline = time.monotonic() + 60
    while not all(task.reason for task in expected.values()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(expected) == 10

    def give(self, task):
        raise AssertionError("compared once more")

    with monkeypatch.context() as patch:
        patch.setattr(pool_module._Worker, "give", give)
        assert all(verdict.correct for verdict in grader.grade(samples))
    assert grader.grade(samples[:1])[0].correct  # what was expected is no memory


def test_samples_that_never_come_do_not_delay_the_end():
    grader = Grader()
    bomb = Sample(parse_text("\\boxed{\\sqrt{12}}"), "x+1")
    grader.expect([Sample(bomb.parsed, f"x+{n}") for n in range(2000)])
    grader.close()
    assert grader.grade([Sample(bomb.parsed, "x+1999")])[0].reason == "wrong"
    grader.close()


def test_the_callers_signals_are_untouched(grader):
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.alarm(100)
        ours = signal.getsignal(signal.SIGALRM)
        assert grade(grader, "\\sqrt{12}", "2\\sqrt{3}").correct
        assert signal.getsignal(signal.SIGALRM) is ours
        assert 0 < signal.alarm(0) <= 100
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def test_model_text_is_never_run(grader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for attack in (
        "__import__('os').system('touch pwned')",
        "().__class__",
        "\\input{/etc/passwd}",
        "open('pwned','w')",
    ):
        for gold in ("5", "x", "\\sqrt{2}"):
            assert not grade(grader, attack, gold).correct
    assert list(tmp_path.iterdir()) == []


# -- reasons -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "ended", "reason"),
    [
        ("\\boxed{18}", "stop", "correct"),
        ("\\boxed{18}", "length", "correct"),
        ("\\boxed{19}", "stop", "wrong"),
        ("18", "stop", "no_box"),
        ("\\boxed{18", "stop", "unclosed_box"),
        ("\\boxed{18", "length", "truncated"),
        ("let me", "length", "truncated"),
        ("\\boxed{three apples}", "stop", "unparsable"),
        ("\\boxed{9^{9^{9^9}}}", "stop", "timeout"),
    ],
)
def test_reasons(grader, completion, ended, reason):
    parsed = Parsed("", completion, completion, ended)
    assert grader.grade([Sample(parsed, "18")])[0].reason == reason


@pytest.mark.parametrize("answer", ["...", "\\text{,}", "18"])
def test_an_empty_gold_is_never_reached(grader, answer):
    assert not grade(grader, answer, "").correct


def test_our_own_mistake_is_an_error_of_one_sample(grader, monkeypatch):
    monkeypatch.setattr(grader_module, "equal", lambda *_: 1 // 0)
    verdict = grade(grader, "18", "18")
    assert (verdict.correct, verdict.format, verdict.reason) == (False, True, "error")


def test_regions():
    thought = parse_text("<think>so \\boxed{18}, wait")
    assert Grader(answer_region="after_thinking").grade([Sample(thought, "18")])[0].reason == "no_box"
    assert Grader(answer_region="anywhere").grade([Sample(thought, "18")])[0].correct
    both = parse_text("<think>\\boxed{7}</think>\\boxed{18}")
    assert Grader(answer_region="anywhere").grade([Sample(both, "18")])[0].correct


def test_self_test_notices_a_broken_percent(grader, monkeypatch):
    real = grader_module.equal
    monkeypatch.setattr(grader_module, "equal", lambda g, a, leaf: "%" not in a and real(g, a, leaf))
    with pytest.raises(UserError, match=r"self-test failed: 50\\% against 50 is wrong"):
        grader.self_test()


def test_self_test_forgives_a_busy_machine(grader, monkeypatch):
    real, calls = grader._pool.compare, []

    def late_once(pairs):
        calls.append(pairs)
        return [("timeout", 0.8)] * len(pairs) if len(calls) == 1 else real(pairs)

    monkeypatch.setattr(grader._pool, "compare", late_once)
    grader.self_test()
    assert len(calls) == 2


def test_split_thinking():
    parsed = parse_text("<think>\nso\n</think>\n\\boxed{1}<|im_end|>rest")
    assert (parsed.thinking, parsed.text, parsed.raw) == (
        "so",
        "\n\\boxed{1}",
        "<think>\nso\n</think>\n\\boxed{1}",
    )
    assert parse_text("so</think>ok", prefilled_think=True).thinking == "so"
    assert parse_text("so", prefilled_think=True).text == ""


# -- properties --------------------------------------------------------------------------------------------------------

ANY_TEXT = st.text(st.characters(exclude_categories=()))
PIECES = st.lists(
    st.one_of(
        ANY_TEXT,
        st.sampled_from([
            "\\boxed{", "}", "{", "\\frac", "\\sqrt{", "^{", "\\text{", "<think>", "</think>", "<answer>", "</answer>", "18",
            ",", "=", "万", "分の", "½", "²", "\\pm", "%", "(", ")", "\\begin{pmatrix}", "\ud800", "\x00", "!", "x", "\\cup",
        ]),
    )
).map("".join)  # fmt: skip
COMPLETIONS = st.one_of(
    ANY_TEXT,
    PIECES,
    PIECES.map(lambda text: f"\\boxed{{{text}}}"),
    st.tuples(PIECES, st.integers(1, 100_000)).map(lambda p: (p[0] * p[1])[:100_000] + "\\boxed{18}"),
)


@pytest.fixture(scope="module")
def graders(grader):
    with Grader("think_answer", workers=1) as tagged:
        yield grader, tagged


def _never_raises_never_hangs(graders, completion, gold, prefilled):
    for grader in graders:
        (verdict,) = grader.grade([Sample(parse_text(completion, prefilled), gold)])
        assert verdict.seconds <= 1.0
        assert verdict.reason != "error"
        assert verdict.correct == (verdict.reason == "correct")


PROPERTY = {"deadline": None, "suppress_health_check": list(HealthCheck)}
GOLDS = st.sampled_from(
    ["18", "-7", "\\frac{1}{2}", "(1,2)", "x^2+1", "\\text{Monday}", "50\\%", "x=5", "2\\sqrt{3}"]
)


@settings(max_examples=1000, **PROPERTY)
@example("\ud800\\boxed{\udfff}", "18", False)
@given(COMPLETIONS, GOLDS, st.booleans())
def test_any_completion(graders, completion, gold, prefilled):
    _never_raises_never_hangs(graders, completion, gold, prefilled)


@pytest.mark.slow
@settings(max_examples=10_000, **PROPERTY)
@given(COMPLETIONS, GOLDS, st.booleans())
def test_any_completion_at_length(graders, completion, gold, prefilled):
    _never_raises_never_hangs(graders, completion, gold, prefilled)


@settings(max_examples=300, **PROPERTY)
@given(st.integers(-(10**20), 10**20), st.integers(0, 3))
def test_a_number_equals_itself_only(grader, value, places):
    text = str(Fraction(value, 10**places)) if places == 0 else f"{value / 10**places:.{places}f}"
    number = Fraction(text)
    spellings = [
        text,
        f"{number.numerator}/{number.denominator}",
        f"${text}$",
        f"{text} dollars",
        f"{text}円",
    ]
    for spelling in spellings:
        assert grade(grader, spelling, text).correct, spelling
        assert not grade(grader, spelling, str(number + 1)).correct
        assert not grade(grader, spelling, str(number + Fraction(1, 10**30))).correct


# -- workers -----------------------------------------------------------------------------------------------------------


def workers_of(pid: int) -> list[int]:
    """The grading processes below a process, the forked ones included."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, tasks.read_text().split()):
            found += (
                [child] if b"rewards.grading.worker" in Path(f"/proc/{child}/cmdline").read_bytes() else []
            )
            found += workers_of(child)
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")


@needs_proc
def test_killed_workers_lose_no_verdict(grader):
    golds = [f"{n}\\sqrt{{{p}}}" for n in range(2, 42) for p in (2, 3, 5)]
    answers = [f"\\sqrt{{{n * n * p}}}" for n in range(2, 42) for p in (2, 3, 5)]
    samples = [Sample(parse_text(f"\\boxed{{{a}}}"), g) for a, g in zip(answers, golds, strict=True)]
    killed = []

    def killer():
        time.sleep(0.1)
        for _ in range(2):
            for pid in workers_of(os.getpid())[::-1]:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                except ProcessLookupError:
                    pass
            time.sleep(0.3)

    assert grade(grader, "\\sqrt{12}", "2\\sqrt{3}").correct
    thread = threading.Thread(target=killer)
    thread.start()
    found = grader.grade(samples)
    thread.join()
    assert killed
    assert [verdict.reason for verdict in found] == ["correct"] * len(samples)


@needs_proc
def test_workers_end_with_their_parent():
    script = (
        "import time; from rewards.grading import *\n"
        "g = Grader(workers=1); g.grade([Sample(parse_text(r'\\boxed{\\sqrt{12}}'), r'2\\sqrt{3}')])\n"
        "print('up', flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None and parent.stdout.readline() == "up\n"
    workers = workers_of(parent.pid)
    assert workers
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


# Half of these pass the cost guard, so that their worker has to be stopped.
BOMBS = ["9^{9^{9^9}}", "(10^{10})!", "\\binom{10^9}{5}", "x^{10^9}"]
BOMBS += [f"\\frac{{x^{{{n}}}-1}}{{x-1}}" for n in range(900, 904)]


def test_a_batch_with_bombs(grader):
    """2,048 completions, 1 % of them bombs, within 10 s and with every other verdict right."""
    batch: list[tuple[str, str, str]] = []
    for n in range(2048):
        if n % 100 == 50:
            batch.append((BOMBS[n // 100 % len(BOMBS)], "5", "timeout"))
        elif n % 20 == 0:
            batch.append(
                (
                    f"\\sqrt{{{n * n * 2}}}" if n else "\\sqrt{8}",
                    f"{n}\\sqrt{{2}}" if n else "2\\sqrt{2}",
                    "correct",
                )
            )
        else:
            batch.append((f"{n:,}円", str(n + n % 2), "correct" if n % 2 == 0 else "wrong"))
    samples = [Sample(parse_text(f"I think: \\boxed{{{answer}}}"), gold) for answer, gold, _ in batch]
    assert grade(grader, "\\sqrt{12}", "2\\sqrt{3}").correct  # the workers are up
    start = time.monotonic()
    found = grader.grade(samples)
    seconds = time.monotonic() - start
    assert [verdict.reason for verdict in found] == [reason for *_, reason in batch]
    assert seconds <= 10
