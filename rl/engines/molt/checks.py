"""What Molt's own environment says about a command, before a GPU is paid for."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl import progress
from rl.engines.molt.command import Command
from rl.engines.molt.flags import SINCE
from rl.engines.molt.in_molt import MARK
from rl.engines.molt.options import MoltOptions
from rl.errors import UserError

INSTALL = "docs/molt.md says how to install it"
SECONDS = 300.0  # importing torch and Ray on a cold disk may take minutes
LONGEST = 300  # characters of a stranger's last line, to quote
TRAINING = ("vllm", "nemo_automodel")  # packages that training needs and the parser does not


@dataclass(frozen=True)
class Answer:
    """What Molt's environment answered. packages: versions, None where one is not installed.

    accepted: by Molt's own parser and validation. words: its message. missing: a package without which it cannot parse.
    gpus: of the cluster, or of this machine. cluster: why the Ray cluster was not reached.
    """

    packages: dict[str, str | None]
    accepted: bool = False
    words: str = ""
    missing: str = ""
    gpus: int = 0
    cluster: str = ""

    @property
    def release(self) -> str:
        return f"molt-rl {self.packages.get('molt')}"


def ask(command: Command, address: str | None) -> Answer:
    """Asks the environment of `command` in a subprocess; with an address, also about Ray and GPUs.

    Raises UserError when the interpreter cannot be run, or does not answer.
    """
    request = json.dumps({"arguments": command.argv[4:], "address": address})
    script = Path(__file__).with_name("in_molt.py")
    with progress.task("asking Molt"):
        stdout, stderr = _answered([command.python, str(script)], request, command.environment)
    found = re.search(f"^{MARK}(.*)$", stdout, re.MULTILINE)
    if not found:
        last = (stderr.strip() or "no output").splitlines()[-1][-LONGEST:]
        raise UserError(
            f"engine.python={command.python}: did not answer ({last}); expected the Python of an environment with molt-rl;"
            f" {INSTALL}"
        )
    answer: dict[str, Any] = json.loads(found[1])
    return Answer(**answer)


def _answered(command: list[str], request: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """What the command prints on stdout and stderr; afterwards it and all processes that it started have ended."""
    python = command[0]
    if Path(python).is_dir():
        raise UserError(
            f"engine.python={python}: is a folder; expected the Python of an environment with molt-rl; e.g."
            f" engine.python={Path(python) / 'bin/python'}"
        )
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            env={**os.environ, **environment}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise UserError(
            f"engine.python={python}: cannot be run ({error.strerror}); expected the Python of an environment with molt-rl;"
            f" {INSTALL}"
        ) from None
    try:
        return process.communicate(request, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"engine.python={python}: did not answer in {SECONDS:g} seconds; try {python} -m molt.cli.train_rl_ray --help, and"
            " whether the Ray cluster answers (ray status)"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(
                process.pid, signal.SIGKILL
            )  # a wrapper script may have left a process that holds the pipes
        process.wait()


def verdict(answer: Answer, python: str) -> str:
    """One line for a plan: accepted, refused with Molt's words, or that nothing was checked."""
    if why := unchecked(answer):
        return f"nothing was checked: {why} in {python}; {INSTALL}"
    if answer.accepted:
        return f"accepted by {answer.release}"
    return f"REFUSED by {answer.release}: {explained(answer)}"


def unchecked(answer: Answer) -> str:
    """Why Molt's parser could not be asked; "" if it was."""
    absent = [name for name in ("molt", "ray") if answer.packages.get(name) is None]
    if absent:
        return f"the package {'molt-rl' if absent[0] == 'molt' else absent[0]} is not installed"
    return f"the package {answer.missing} is not installed" if answer.missing else ""


def explained(answer: Answer) -> str:
    """Molt's words; for flags that its release lacks, also the release that has them."""
    unknown = re.findall(r"--([\w.]+)", answer.words) if "unrecognized arguments" in answer.words else []
    known = [f"--{name} came with molt-rl {SINCE[name]}" for name in unknown if name in SINCE]
    return "; ".join([answer.words, *known])


def require_ready(answer: Answer, python: str, options: MoltOptions) -> None:
    """Raises UserError, naming what is missing and how to get it, unless a job can start now."""
    if why := unchecked(answer):
        raise UserError(
            f"engine=molt: {why} in {python}; type engine.python=PATH of an environment that has it; {INSTALL}"
        )
    if not answer.accepted:
        raise UserError(f"engine=molt: {answer.release} refuses the command: {explained(answer)}")
    for name in TRAINING:
        if answer.packages.get(name) is None:
            raise UserError(
                f"engine=molt: the package {name} is not installed in {python}, and Molt trains with it; {INSTALL}"
            )
    if answer.cluster:
        raise UserError(
            f"engine.ray={options.ray}: no Ray cluster was reached ({answer.cluster}); start one (ray start --head), set"
            " RAY_ADDRESS, or type engine.ray=start for one that ends with the job"
        )
    needed = options.actor_world + options.rollout_gpus
    if answer.gpus < needed:
        where = "this machine" if options.ray == "start" else "the Ray cluster"
        raise UserError(
            f"engine.actor_gpus={options.actor_gpus}, engine.rollout_gpus={options.rollout_gpus}: these need {needed} GPUs, and"
            f" {where} has {answer.gpus}; type smaller numbers, or start on more GPUs"
        )
