"""A vLLM server that this process starts, waits for and ends."""

from __future__ import annotations

import logging
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from rl import progress, signals
from rl.engines.processes import end, start
from rl.engines.vllm.command import Command, server_command
from rl.engines.vllm.options import VllmOptions
from rl.errors import UserError
from rl.models.config import ModelConfig
from rl.storage.disk import disk_errors
from rl.terminal import escape_controls

log = logging.getLogger("tanka")

POLL_SECONDS = 0.2
SHOW_SECONDS = 10.0  # between two of the server's lines while it starts
GRACE_SECONDS = 20.0  # between SIGTERM and SIGKILL
LOGGED = re.compile(r"(?:INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[\S+\] *(\w.+)")  # a message of vLLM's own log
ERROR = re.compile(r"\b[\w.]*(?:Error|Exception)\b: .+|error: .+")


class StartedServer:
    """The server's process, which has ended when `close` returns. output: the file that holds what it prints."""

    def __init__(self, command: Command, port: int, output: Path) -> None:
        self.url, self.output = f"http://127.0.0.1:{port}", output
        self.read = output.stat().st_size if output.exists() else 0  # an earlier start's lines are skipped
        log.info("starting a vLLM server at %s; its log: %s", self.url, output)
        with disk_errors("engine.weights_dir", output.parent):
            file = output.open("ab")
        self.temporary = tempfile.mkdtemp(prefix="vllm-")  # vLLM leaves sockets and a file in its TMPDIR
        with file:
            self.process = self._start(command, file)

    def _start(self, command: Command, file: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            return start(command.argv, {**command.environment, "TMPDIR": self.temporary}, file)
        except OSError as error:
            shutil.rmtree(self.temporary, ignore_errors=True)
            raise UserError(
                f"engine.{'command' if command.program[1:2] != ['-m'] else 'python'}={command.program[0]}: cannot be run"
                f" ({error.strerror})"
            ) from None

    def wait(self) -> None:
        """Waits until it answers, and shows its newest log message. Raises UserError when it ends first."""
        lines: list[str] = []
        shown = time.monotonic()
        with progress.task("starting the vLLM server"):
            while not self._answers():
                signals.check()
                if reason := self.ended():
                    raise UserError(reason)
                lines += self._new_lines()
                if lines and time.monotonic() - shown > SHOW_SECONDS:
                    log.info("vLLM: %s", escape_controls(newest_message(lines)))
                    lines, shown = [], time.monotonic()
                time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        import httpx

        try:
            return httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def _new_lines(self) -> list[str]:
        whole = self._printed(self.read).rpartition(b"\n")[0]
        self.read += len(whole) + bool(whole)
        return [line for line in whole.decode(errors="replace").splitlines() if line.strip()]

    def _printed(self, start: int = 0) -> bytes:
        """The log from byte `start`; empty if it was deleted."""
        try:
            with self.output.open("rb") as file:
                file.seek(start)
                return file.read()
        except OSError:
            return b""

    def ended(self) -> str:
        """Why it has ended, in one line; "" while it runs."""
        if self.process.poll() is None:
            return ""
        lines = self._printed().decode(errors="replace").splitlines()[-300:]
        errors = [found[0] for line in lines if (found := ERROR.search(line))]
        said = (errors or [line for line in lines if line.strip()] or ["it printed nothing"])[-1]
        return (
            f"engine=vllm: the server has ended with exit code {self.process.returncode}: {escape_controls(said)[:300]}; its"
            f" log: {self.output}"
        )

    def close(self) -> None:
        end(self.process, GRACE_SECONDS)
        shutil.rmtree(self.temporary, ignore_errors=True)


def newest_message(lines: list[str]) -> str:
    """The newest message of vLLM's log without its prefix; the last line if vLLM has logged none of them."""
    logged = [found[1] for line in lines if (found := LOGGED.search(line))]
    return (logged or lines)[-1]


def serve(options: VllmOptions, model: ModelConfig, served: str, dtype: str, folder: Path) -> StartedServer:
    """A server of `model` at a free port, which answers. served: the checkpoint. Its log is server.log in `folder`."""
    port = free_port()
    command = server_command(options, model, served, dtype, port)
    server = StartedServer(command, port, folder / "server.log")
    try:
        server.wait()
    except BaseException:
        server.close()
        raise
    return server


def free_port() -> int:
    """A port of this machine that nothing uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
