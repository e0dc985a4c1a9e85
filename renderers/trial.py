"""Renders a user's template in a separate process with limits first, because nothing could stop it in this one.

Jinja's sandbox refuses a long `range`, but not `"x" * 10**9`, `10**10**10` or nested loops. The separate process runs
this file, so it imports nothing from the project.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any

CPU_SECONDS = 10
WALL_SECONDS = 120  # imports may come from a slow disk
MEMORY = 2 * 2**30  # bytes of address space; the imports take a quarter of it
CHARACTERS = 1_000_000  # of one short conversation
TOO_LARGE = 3


def try_template(template: str, tokens: dict[str, Any], renders: list[dict[str, Any]]) -> str | None:
    """What is wrong when rendering takes too much time or memory, or None. The caller finds all other errors.

    tokens: the special tokens that a template can name, as `tokenizer.special_tokens_map`. renders: one dict a render,
    with its `conversation` and the options of `apply_chat_template`.
    """
    job = json.dumps({"template": template, "tokens": tokens, "renders": renders})
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        # -P: files in this folder must not hide installed packages of the same name.
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
        return f"turns one question into more than {CHARACTERS:,} characters, or needs more than {MEMORY // 2**30} GiB"
    if done.returncode < 0:
        return f"takes more than {CPU_SECONDS} s for one question"
    if done.returncode:
        return f"cannot be tried: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    return None


def _main() -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]  # a second to import, and not needed
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # silences the warning about missing torch
    from transformers.utils.chat_template_utils import render_jinja_template

    job = json.load(sys.stdin)
    used = int(sum(os.times()[:2])) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_SECONDS, used + CPU_SECONDS))
    if sys.platform == "linux":  # other systems cannot limit the address space
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
            return  # the renderer will meet the same error and report it
        if len(found[0][0]) > CHARACTERS:  # found[0]: the texts, one a conversation
            os._exit(TOO_LARGE)


if __name__ == "__main__":
    _main()
