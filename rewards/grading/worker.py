"""The process that compares expressions for `rewards.grading.pool`: `python -m rewards.grading.worker`."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import IO

from rewards.grading.compare import Unparsable, equal
from rewards.grading.exact import TooCostly
from rewards.grading.pool import LIMIT_SECONDS
from rewards.grading.symbolic import same

_MEMORY_BYTES = 4 << 30

# The parser and sympy build tables on first use, which takes ten times as long as a comparison.
_WARM_UP = (
    (r"2\sqrt{3}+x", r"x+\sqrt{12}"),
    (r"(x+1)^2", r"x^2+2x+1"),
    (r"\frac{\sqrt{3}}{2}\pi", r"\pi\frac{\sqrt{3}}{3}"),
    (r"\sin x+\log_2{3}", r"\cos x+\ln 3"),
    (r"2x+3y=1", r"4x+6y=2"),
    (r"e^{2}+\sqrt[3]{2}", r"e^{3}+n!"),
    (r"\sqrt{\sqrt{11}-\sqrt{1/n}}", r"\frac{1}{\sqrt{n}}+2i"),
)


def compare(gold: str, answer: str) -> str:
    """The verdict's reason: correct, wrong, unparsable, timeout or error."""
    try:
        return "correct" if equal(gold, answer, same) else "wrong"
    except Unparsable:
        return "unparsable"
    except TooCostly:
        return "timeout"
    except Exception:  # math-verify and sympy may raise anything; the other answers must still be graded
        return "error"


def serve() -> None:
    """Answers each line ``[gold, answer]`` on standard input with one line, until the input ends.

    A forked child does the comparisons. When one exceeds its time limit, the alarm kills the child, and this process
    forks a new one at once, because it has already imported everything.
    """
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keeps what libraries print out of the replies
    for gold, answer in _WARM_UP:
        compare(gold, answer)
    print("ready", file=replies)
    while True:
        child = os.fork()
        if child == 0:
            _answer_lines(replies)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return
        timed_out = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        print("timeout" if timed_out else "died", file=replies)


def _answer_lines(replies: IO[str]) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
        verdict = compare(gold, answer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(verdict, file=replies)


if __name__ == "__main__":
    serve()
