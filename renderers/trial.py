"""A template of the user's own, rendered first in a process of its own with limits: in this one nothing could stop it.

Jinja's sandbox refuses a long `range`, but not `"x" * 10**9`, `10**10**10` or a loop in a loop. This file is also what
that process runs, so it imports nothing of the project.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any

CPU_SECONDS = 10
WALL_SECONDS = 120  # with a slow disk under the imports
MEMORY = 2 * 2**30  # bytes of address space; the imports take a quarter of it
CHARACTERS = 1_000_000  # of one short conversation
TOO_LARGE = 3


def try_template(template: str, tokens: dict[str, Any], renders: list[dict[str, Any]]) -> str | None:
    """What is wrong when rendering takes too long or too much, or None; errors of any other kind are not its business.

    tokens: the special tokens that a template can name, as `tokenizer.special_tokens_map`. renders: for each render its
    `conversation`, and the options of `apply_chat_template`.
    """
    job = json.dumps({"template": template, "tokens": tokens, "renders": renders})
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        # -P: the names of the files beside this one must not hide those of installed packages.
        done = subprocess.run(
            [sys.executable, "-P", __file__],
            input=job,
            env=environment,
            text=True,
            encoding="utf-8",
            capture_output=True,
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"takes more than {WALL_SECONDS} s for one question"
    if done.returncode == TOO_LARGE:
        return f"makes more than {CHARACTERS:,} characters of one question, or needs more than {MEMORY // 2**30} GiB"
    if done.returncode < 0:
        return f"takes more than {CPU_SECONDS} s for one question"
    if done.returncode:
        return f"cannot be tried: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    return None


def _main() -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]  # a second to import, and not needed
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # it would say that torch is missing
    from transformers.utils.chat_template_utils import render_jinja_template

    job = json.load(sys.stdin)
    used = int(sum(os.times()[:2])) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_SECONDS, used + CPU_SECONDS))
    if sys.platform == "linux":  # elsewhere the address space has no limit to set
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for options in job["renders"]:
        conversation = options.pop("conversation")
        try:
            found: Any = render_jinja_template(
                [conversation], chat_template=job["template"], **job["tokens"], **options
            )
        except MemoryError:
            os._exit(TOO_LARGE)
        except Exception:
            return  # the renderer meets it again, and tells
        if len(found[0][0]) > CHARACTERS:  # the conversations' texts come first
            os._exit(TOO_LARGE)


if __name__ == "__main__":
    _main()
