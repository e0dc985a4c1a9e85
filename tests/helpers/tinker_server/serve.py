"""A SkyRL server with the embedded model, on this machine's CPU: `python tests/tinker_server/serve.py [PORT]`.

The first start makes build/tinker-server (about 6 GB): an environment of Python 3.12 for the server, whose packages do not
fit beside ours, and the SDK 0.25 that it speaks. Needs the standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "build" / "tinker-server"
MODEL = "tiny"  # what the server calls the embedded model: a link in the folder it is started in
VENV = FOLDER / "venv"
SDK = FOLDER / "sdk-0.25"  # goes first on the Python path of a client of this server
PACKAGES = ["uv", "torch==2.13.0", "skyrl[tinker,jax]==0.4.0", "aiohttp"]
BACKEND = {
    "max_lora_adapters": 32,
    "max_lora_rank": 8,
    "train_micro_batch_size": 16,
    "sample_max_num_sequences": 64,
}


def python312() -> str | None:
    """A Python 3.12 of this machine; None when there is none."""
    candidates = [
        shutil.which("python3.12"),
        *map(str, Path.home().glob(".pyenv/versions/3.12.*/bin/python3.12")),
    ]
    for candidate in filter(None, candidates):
        version = subprocess.run([candidate, "--version"], capture_output=True, text=True)
        if version.returncode == 0 and version.stdout.startswith("Python 3.12"):
            return candidate
    return None


def install() -> None:
    """Makes the server's environment and the client's SDK where they are missing. Raises when that fails."""
    if not (VENV / "installed").exists():
        subprocess.run([python312() or "python3.12", "-m", "venv", "--clear", VENV], check=True)
        subprocess.run([VENV / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True)
        (VENV / "installed").touch()
    if not (SDK / "tinker").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", SDK]
        subprocess.run([*pip, "tinker==0.25.0"], check=True)


def start(port: int, seconds: float = 240) -> subprocess.Popen[bytes]:
    """The server, answering at `port`; it and its worker are one process group. Raises TimeoutError."""
    project = FOLDER / "project"  # uv runs inside a project, and SkyRL starts its worker through uv
    project.mkdir(parents=True, exist_ok=True)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "tinker-server"\nversion = "0"\nrequires-python = ">=3.12"\ndependencies = []\n'
        "[project.optional-dependencies]\ntinker = []\njax = []\n"
    )
    (project / MODEL).unlink(missing_ok=True)
    (project / MODEL).symlink_to(ROOT / "assets" / "tiny")
    state = FOLDER / f"state-{port}"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    environment = os.environ | {
        "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "UV_PROJECT_ENVIRONMENT": str(VENV),
        "UV_NO_SYNC": "1",
        "UV_FROZEN": "1",
        "UV_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(FOLDER / "jax-cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
    }
    environment.pop("VIRTUAL_ENV", None)
    environment.pop("PYTHONPATH", None)
    command = [
        VENV / "bin" / "uv", "run", "--extra", "tinker", "--extra", "jax", "-m", "skyrl.tinker.api",
        "--host", "127.0.0.1", "--port", str(port), "--base-model", MODEL, "--backend", "jax",
        "--checkpoints-base", state / "checkpoints", "--database-url", f"sqlite:///{state / 'server.db'}",
        "--backend-config", json.dumps(BACKEND),
    ]  # fmt: skip
    with (state / "log.txt").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=project, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/healthz", timeout=2):
                return server
        except OSError:
            time.sleep(0.5)
    stop(server)
    raise TimeoutError(f"the server did not start in {seconds} s; its log: {state / 'log.txt'}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ends the server and its worker."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


if __name__ == "__main__":
    install()
    running = start(int(sys.argv[1]) if len(sys.argv) > 1 else 8765)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("ready", flush=True)
    try:
        running.wait()
    finally:
        stop(running)
