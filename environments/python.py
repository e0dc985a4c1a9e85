"""A Python tool: each call runs in a separate process with limits (environments/sandbox)."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

from environments.sandbox.process import Limits, protections, run_code
from environments.tool_class import ToolConfig, ToolError
from rl.errors import UserError, require

logger = logging.getLogger("tanka")

_NOTHING_PRINTED = "(nothing printed)"
_LACKS = {
    "processes": "hide other processes",
    "network": "deny the network",
    "files": "deny reading and writing other files",
    "calls": "refuse dangerous system calls",
    "user": "run it as another user",
}


class Python:
    """The tool class, in the contract that environments/tool_class.py describes."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()

    def reset(self, **row: object) -> None:
        """Nothing to prepare: no call sees what an earlier one left."""

    def python(self, code: str) -> str:
        """Runs Python code in a new process and returns what it prints.

        Args:
            code: The code; it must print its results.
        """
        outcome = run_code(code, self._limits)
        if outcome.ended == "ok":
            return outcome.text or _NOTHING_PRINTED
        if outcome.ended == "raised":
            raise ToolError(outcome.text or "error: the code ended with an exit code other than 0", "raised")
        why = {
            "time": f"error: stopped after {self._limits.seconds:g} s",
            "output": "error: stopped, because it printed without end",
            "killed": "error: the process was killed",
        }[outcome.ended]
        # The model must see why, so the output makes room.
        text = outcome.text[: self._limits.characters - len(why) - 1]
        raise ToolError(f"{text}\n{why}" if text else why, "time" if outcome.ended == "time" else "raised")


@dataclass(frozen=True, kw_only=True)
class PythonConfig(ToolConfig):
    """seconds: processor and wall time of a call. memory_gib: address space of each of its processes."""

    seconds: float = 10.0
    memory_gib: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0.125 <= self.memory_gib <= 1024, "environment.memory_gib", self.memory_gib, "GiB from 0.125", 1
        )

    def check(self) -> None:
        """Warns, naming them, of protections that this system does not have. Raises UserError outside Linux."""
        if sys.platform != "linux":
            raise UserError(
                "environment=python: this system cannot isolate the model's code; expected Linux: run it in a container"
                " (docs/environments.md)"
            )
        super().check()
        if lacks := [what for name, what in _LACKS.items() if not protections()[name]]:
            logger.warning(
                "environment=python: this system cannot %s; run untrusted models in a container (docs/environments.md)",
                ", ".join(lacks),
            )

    @property
    def waits_for_calls(self) -> bool:
        return False

    def new_tools(self) -> Python:
        return Python(Limits(self.seconds, int(self.memory_gib * 2**30), self.characters))
