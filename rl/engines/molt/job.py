"""Launches Molt, records what it reports, ends it on a signal, and takes over its weights."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rl import signals
from rl.blueprint import Blueprint
from rl.engines.base import Arrived, Job, Record, Sampler, SamplingParams
from rl.engines.molt.agent import write_agent
from rl.engines.molt.checkpoints import checkpoint_step
from rl.engines.molt.command import Command, environment, interpreter
from rl.engines.molt.dataset import require_token_ends, write_problems
from rl.engines.molt.flags import JobFiles, job_flags, passes
from rl.engines.molt.logs import last_error
from rl.engines.molt.model_folder import write_model
from rl.engines.molt.options import MoltOptions
from rl.engines.molt.reader import Reader
from rl.engines.processes import end, start
from rl.errors import UserError
from rl.models.loading import context_of, end_ids
from rl.rollouts import Completion
from rl.storage.disk import disk_errors

log = logging.getLogger("tanka")

POLL_SECONDS = 0.5  # how soon a signal is noticed while Molt prints nothing
GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL: Ray ends its actors when the driver ends
SILENCE_SECONDS = 1800.0  # warn when Molt has printed nothing for so long
LONGEST_LINE = (
    1 << 20
)  # bytes; of a longer line, such as a progress bar that is redrawn for hours, the end is kept


class MoltJob(Sampler, Job):
    """`engine=molt`: Molt samples, trains, evaluates and saves; this process writes its input and reads its output."""

    def __init__(self, options: MoltOptions, blueprint: Blueprint, tokenizer: Any) -> None:
        self.options, self.blueprint, self.tokenizer = options, blueprint, tokenizer

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        raise UserError("engine=molt: Molt samples inside its own job; type engine=local or engine=trl")

    def last_step(self, directory: Path) -> int:
        return checkpoint_step(JobFiles(directory).state)

    def carry_out(self, record: Record) -> None:
        files = JobFiles(record.directory)
        command = self.prepare(record, files)
        (files.folder / "launch.sh").write_text(f"{command.shell()}\n", encoding="utf-8")
        log.info("starting Molt; its command: %s, its output: %s", files.folder / "launch.sh", files.output)
        reader = Reader(record, self.blueprint, files)
        with running(command) as process:
            watch(process, files.output, reader.line)
        if process.returncode:
            words = last_error(list(reader.tail))
            raise UserError(
                f"engine=molt: Molt {ending(process.returncode)} after step {reader.step}: {words}; its output: {files.output}"
            )
        if reader.step < record.total:
            log.warning(
                "Molt ended without an error, but the last step it reported is %d of %d; see %s",
                reader.step, record.total, files.output,
            )  # fmt: skip
        if reader.evaluation:
            log.info("after the last step: %s", reader.evaluation)

    def prepare(self, record: Record, files: JobFiles) -> Command:
        """Writes data, agent and, where needed, the model's folder; returns the command to run."""
        blueprint = self.blueprint
        reading = passes(blueprint, len(record.problems.train))
        files.folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(files.export, ignore_errors=True)  # an earlier start may have left half of it
        with disk_errors("run_dir", str(files.folder)):
            require_token_ends(record.task)
            train = record.problems.train[: reading.problems]
            chat = write_problems(record.task, self.tokenizer, train, files.train, "train")
            test = record.problems.test[: blueprint.eval_problems] if blueprint.eval_every else []
            if test:
                write_problems(record.task, self.tokenizer, test, files.test, "test")
            write_agent(files.agent, record.directory, end_ids(blueprint.model))
            write_model(blueprint.model, files.model)
        flags = job_flags(blueprint, self.options, files, reading, bool(test), chat)
        require_known_context(blueprint, flags["data.max_len"])
        return Command(interpreter(self.options), flags, environment(self.options), files.folder)

    def export(self, path: Path) -> None:
        """Moves the weights that Molt exported. Raises UserError when there are none, or when some files are missing."""
        export = JobFiles(path.parent).export
        missing = missing_weights(export)
        if missing:
            raise UserError(
                f"engine=molt: Molt ended without weights in {export} ({missing[0]} is missing); see"
                f" {JobFiles(path.parent).output}; the same command continues from its last checkpoint"
            )
        for file in export.iterdir():
            shutil.move(file, path / file.name)

    def close(self) -> None:
        """Nothing to free: the job has ended."""


def require_known_context(blueprint: Blueprint, length: int) -> None:
    """Raises UserError when the context that the checkpoint's config allows is smaller than the run needs."""
    context = context_of(blueprint.model)
    if context is not None and length > context:
        raise UserError(
            f"engine.max_len={length}: the model's context holds {context} tokens; type a smaller max_tokens, or"
            f" model.context={length} (positions beyond its training, RoPE unchanged)"
        )


def missing_weights(folder: Path) -> list[str]:
    """Names of the weight files that an exported checkpoint lacks."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        wanted = set(index["weight_map"].values())
    except FileNotFoundError:
        return [] if any(folder.glob("*.safetensors")) else ["*.safetensors"]
    except (ValueError, KeyError):
        return ["a readable model.safetensors.index.json"]
    return sorted(name for name in wanted if not (folder / name).is_file())


def ending(code: int) -> str:
    """How a process ended, from its return code."""
    if code >= 0:
        return f"ended with exit code {code}"
    return (
        "was killed by SIGKILL (out of memory?)"
        if code == -signal.SIGKILL
        else f"was killed by signal {-code}"
    )


@contextlib.contextmanager
def running(command: Command) -> Iterator[subprocess.Popen[bytes]]:
    """The started job, in a process group of its own, which has ended when the context ends."""
    try:
        process = start(command.argv, command.environment, subprocess.PIPE, command.folder)
    except OSError as error:
        raise UserError(f"engine.python={command.python}: cannot be run ({error.strerror})") from None
    try:
        yield process
    finally:
        end(process, GRACE_SECONDS)


def watch(process: subprocess.Popen[bytes], output: Path, line: Callable[[str], None]) -> None:
    """Copies what the job prints to `output` and calls `line` with each line, until it ends. A signal raises Interrupted."""
    assert process.stdout is not None
    rest, silent_since = b"", time.monotonic()
    with output.open("ab") as copy, selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while True:
            signals.check()
            if not ready.select(POLL_SECONDS):
                if time.monotonic() - silent_since > SILENCE_SECONDS:
                    log.warning("Molt has printed nothing for %d minutes", SILENCE_SECONDS / 60)
                    silent_since = time.monotonic()
                if process.poll() is not None:
                    break  # a process that it left behind holds the pipe open
                continue
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                break
            silent_since = time.monotonic()
            copy.write(data)
            copy.flush()
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-LONGEST_LINE:]
            for found in lines:
                line(found.decode(errors="replace"))
    if rest:
        line(rest.decode(errors="replace"))
    while process.poll() is None:  # it closed its output before it ended
        signals.check()
        time.sleep(POLL_SECONDS)
