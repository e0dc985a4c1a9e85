"""Launches Molt, records what it reports, ends it on a signal, and takes over its weights."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rl import signals
from rl.blueprint import Blueprint
from rl.engines.base import Arrived, Job, Record, Sampler, SamplingParams
from rl.engines.molt.agent import write_agent
from rl.engines.molt.command import Command, environment, interpreter
from rl.engines.molt.dataset import require_token_ends, write_problems
from rl.engines.molt.flags import JobFiles, job_flags, passes
from rl.engines.molt.logs import evaluation_metrics, last_error, plain, step_metrics
from rl.engines.molt.model_folder import write_model
from rl.engines.molt.options import MoltOptions
from rl.engines.processes import end, start
from rl.errors import UserError
from rl.models.loading import context_of, end_ids
from rl.rollouts import Completion
from rl.storage.disk import disk_errors

log = logging.getLogger("tanka")

POLL_SECONDS = 0.5  # how soon a signal is noticed while Molt prints nothing
GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL: Ray ends its actors when the driver ends
SILENCE_SECONDS = 1800.0  # warn when Molt has printed nothing for so long
TAIL = 200  # last lines in which an error is looked for


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
                f"engine=molt: Molt ended with exit code {process.returncode} after step {reader.step}: {words}; its output:"
                f" {files.output}"
            )
        if reader.evaluation:
            log.info("after the last step: %s", reader.evaluation)

    def prepare(self, record: Record, files: JobFiles) -> Command:
        """Writes data, agent and, where needed, the model's folder; returns the command to run."""
        blueprint = self.blueprint
        reading = passes(blueprint, len(record.problems.train))
        files.folder.mkdir(parents=True, exist_ok=True)
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
        """Moves the weights that Molt exported. Raises UserError when there are none."""
        export = JobFiles(path.parent).export
        if not any(export.glob("*.safetensors")):
            raise UserError(
                f"engine=molt: Molt ended without weights in {export}; see {JobFiles(path.parent).output}; the same command"
                " continues from its last checkpoint"
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


def checkpoint_step(state: Path) -> int:
    """The step of the checkpoint that Molt would resume from; 0: none."""
    folder = state / "_actor"
    try:
        tag = (folder / "latest").read_text(encoding="utf-8").strip()
    except OSError:
        return 0
    whole = (folder / tag / "model").is_dir() and (folder / tag / "extra_state.pt").is_file()
    step = tag.removeprefix("global_step")
    return int(step) if whole and step.isdigit() else 0


class Reader:
    """Turns Molt's lines into the run's record. tail: its last lines. step: the last finished one."""

    def __init__(self, record: Record, blueprint: Blueprint, files: JobFiles) -> None:
        self.record, self.blueprint = record, blueprint
        self.step = record.done
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.evaluation: dict[str, float] = {}
        self.samples = SampleFiles(files.samples)

    def line(self, printed: str) -> None:
        """Records a step or an evaluation; shows warnings and errors."""
        text = plain(printed)
        self.tail.append(text)
        if found := step_metrics(text):
            step, metrics = found
            if step > self.step:  # a line may be printed twice
                self.step = step
                metrics["budget"] = self.blueprint.max_tokens
                self.record.log(step, metrics | self.evaluation)
                self.evaluation = {}
                self.record.samples(step, self.some_samples())
        elif evaluated := evaluation_metrics(text):
            self.evaluation = evaluated[1]
        elif any(word in text for word in ("WARNING", "[Warning]", "ERROR")) or "Error:" in text:
            log.warning("Molt: %s", text)

    def some_samples(self) -> list[dict[str, Any]]:
        """`samples_per_step` new samples of each split."""
        new, most = self.samples.new(), self.blueprint.samples_per_step
        return [row for split in ("train", "test") for row in [r for r in new if r["split"] == split][:most]]


class SampleFiles:
    """The scored completions that Molt's runner processes append to their files. An earlier start's are skipped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read = {file: file.stat().st_size for file in folder.glob("*.jsonl")}

    def new(self) -> list[dict[str, Any]]:
        """The rows that were written since the last call."""
        rows = []
        for file in sorted(self.folder.glob("*.jsonl")):
            with file.open("rb") as data:
                data.seek(self.read.get(file, 0))
                whole = data.read().rpartition(b"\n")[0]
            if whole:
                self.read[file] = self.read.get(file, 0) + len(whole) + 1
                rows += [json.loads(line) for line in whole.splitlines()]
        return rows


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
            for found in lines:
                line(found.decode(errors="replace"))
    if rest:
        line(rest.decode(errors="replace"))
    while process.poll() is None:  # it closed its output before it ended
        signals.check()
        time.sleep(POLL_SECONDS)
