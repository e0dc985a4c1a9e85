"""The options of `engine=vllm`."""

from __future__ import annotations

import os
import shlex
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rl.engines.asynchrony import AsyncOptions
from rl.engines.local.options import LearnerOptions
from rl.errors import UserError, require
from rl.models.hub import is_address

# Keys of a started server, which say nothing about servers that run already.
STARTED: dict[str, Any] = {"python": None, "command": None, "server_device": "auto", "flags": {}}
ADDRESS = ("port", "uds")  # flags that a started server gets from the run


@dataclass(frozen=True, kw_only=True)
class VllmOptions(AsyncOptions, LearnerOptions):
    """Those of LearnerOptions and AsyncOptions, and more. servers: addresses of servers that run; None: one is started.

    python: the interpreter of the environment that has vLLM; None: this one. command: or the command that starts a
    server, to which model and flags are appended. server_device: of the started server: `cpu`, a GPU's number, several
    of them, or `auto`, all GPUs but the first. flags: more of vLLM's flags, with _ for -; true for one without a value,
    false for its --no- form, None to leave it out. weights_dir: where weights are handed over; None: `vllm` in the run
    directory. patience: seconds without any server after which the run saves and ends; also how long a server with
    requests may process no token. max_mismatch: the mean |log rho| that a published version may have; None: what the
    number formats explain.
    """

    servers: list[str] | None = None
    python: str | None = None
    command: str | None = None
    server_device: str | int | list[int] = "auto"
    flags: dict[str, Any] = field(default_factory=dict)
    weights_dir: str | None = None
    patience: float = 300.0
    max_mismatch: float | None = None

    def __post_init__(self) -> None:
        AsyncOptions.__post_init__(self)
        LearnerOptions.__post_init__(self)
        require(
            self.patience > 0, "engine.patience", self.patience, "a positive number of seconds", 300,
        )  # fmt: skip
        require(
            self.max_mismatch is None or self.max_mismatch > 0,
            "engine.max_mismatch", self.max_mismatch, "a positive number, or null", 0.1,
        )  # fmt: skip
        device = self.server_device
        named = isinstance(device, str) and device not in ("auto", "cpu") and not device.isdecimal()
        numbers = [device] if isinstance(device, int) else device if isinstance(device, list) else []
        if named or device == [] or any(number < 0 for number in numbers):
            raise UserError(
                f"engine.server_device={device}: expected auto, cpu, or numbers of GPUs; e.g. 1, or [2,3]"
            )
        if self.servers is not None:
            self._check_servers(self.servers)
        for name in self.more_flags:
            if name in ADDRESS or name.startswith("ssl-"):
                raise UserError(
                    f"engine.flags.{name.replace('-', '_')}: the run chooses where its server listens; leave it out, or start the"
                    " server yourself and type engine.servers=[http://HOST:PORT]"
                )
            if name == "api-key":
                raise UserError(
                    "engine.flags.api_key: it would be written to config.yaml and the logs; set the environment variable"
                    " VLLM_API_KEY instead"
                )
        if self.python is not None and self.command is not None:
            raise UserError(
                "engine.python, engine.command: expected only one of them; a command already names its Python"
            )
        if self.command is not None and not _words(self.command):
            raise UserError(
                f"engine.command={self.command}: expected a command, its quotes closed; e.g."
                " 'engine.command=\"apptainer exec --nv vllm.sif vllm serve\"'"
            )

    def _check_servers(self, servers: list[str]) -> None:
        if not servers:
            raise UserError(
                "engine.servers=[]: expected addresses; e.g. engine.servers=[http://a:8000], or null to start one"
            )
        for url in servers:
            if not is_address(url) or "?" in url or "#" in url:
                raise UserError(
                    f"engine.servers: {url} is no address; expected http://HOST:PORT; e.g. engine.servers=[http://a:8000]"
                )
            if urllib.parse.urlsplit(url).username is not None:
                raise UserError(
                    "engine.servers: an address holds a user name or a password, which config.yaml and the logs would show;"
                    " leave them out, and set the environment variable VLLM_API_KEY to the servers' key"
                )
        if len({_place(url) for url in servers}) < len(servers):
            raise UserError(f"engine.servers={servers}: names an address twice; expected each server once")
        for name, default in STARTED.items():
            if getattr(self, name) != default:
                raise UserError(
                    f"engine.{name}={getattr(self, name)}: of a server that the run starts, but engine.servers names"
                    f" running ones; leave out one of the two"
                )

    @property
    def gpus(self) -> list[int] | None:
        """The GPUs named by `server_device`; None for `auto` and `cpu`."""
        device = self.server_device
        if device in ("auto", "cpu"):
            return None
        return device if isinstance(device, list) else [int(device)]

    @property
    def program(self) -> list[str] | None:
        """The words of `command`; None without one."""
        return None if self.command is None else _words(self.command)

    @property
    def more_flags(self) -> dict[str, Any]:
        """`flags` as vLLM writes them, without the dashes in front."""
        return dict(_flat(self.flags, ""))


def _place(url: str) -> tuple[str | None, int, str]:
    """What an address names, however it is written."""
    parts = urllib.parse.urlsplit(url)
    return parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme], parts.path.rstrip("/")


def _words(command: str) -> list[str]:
    try:
        return [os.path.expanduser(word) for word in shlex.split(command)]  # noqa: PTH111
    except ValueError:  # an open quote
        return []


def _flat(node: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        key = f"{prefix}{name}".replace("_", "-")
        if isinstance(value, dict):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value
