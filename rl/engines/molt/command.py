"""The command that starts Molt: for the process that launches it, and as text that can be pasted into a shell."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.engines.molt.flags import arguments
from rl.engines.molt.options import MoltOptions

MODULE = "molt.cli.train_rl_ray"


@dataclass(frozen=True)
class Command:
    """python: Molt's interpreter. flags: as `job_flags` returns them. environment: variables added to the caller's."""

    python: str
    flags: Mapping[str, Any]
    environment: Mapping[str, str]
    folder: Path

    @property
    def argv(self) -> list[str]:
        return [self.python, "-u", "-m", MODULE, *arguments(self.flags)]

    def shell(self) -> str:
        """The command for a POSIX shell, one flag a line."""
        lines = [f"cd {shlex.quote(str(self.folder))} && env"]
        lines += [f"  {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        lines.append(f"  {shlex.quote(self.python)} -u -m {MODULE}")
        for name, value in self.flags.items():
            lines.append("  " + shlex.join(arguments({name: value})))
        return " \\\n".join(lines)


def interpreter(options: MoltOptions) -> str:
    """The Python that runs Molt: a path, or a name on PATH."""
    if options.python is None:
        return sys.executable
    # absolute, not resolved: a virtual environment's Python is a link, and only the link knows its packages
    path = Path(options.python).expanduser()
    return str(path.absolute()) if os.sep in options.python else options.python


def environment(options: MoltOptions) -> dict[str, str]:
    """The variables that Molt is started with. `ray=start` makes Ray start a cluster that ends with the job."""
    address = "local" if options.ray == "start" else os.environ.get("RAY_ADDRESS") or "auto"
    return {
        "RAY_ADDRESS": address,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray drops lines that several processes print; these are the ones that metrics are read from.
        "RAY_DEDUP_LOGS_ALLOW_REGEX": "Global step|Eval at step",
        "TOKENIZERS_PARALLELISM": "true",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
