"""`engine=molt`: the same blueprint on Molt, which samples with vLLM and trains with FSDP2 on a Ray cluster.

This module imports nothing heavy: options, checks and the plan. rl/engines/molt/job.py runs the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rl.blueprint import Blueprint, EngineConfig
from rl.data.counting import count_test_rows
from rl.data.problems import peek
from rl.engines.base import Engine
from rl.engines.launch import require_one_process
from rl.engines.molt.checkpoints import checkpoint_step
from rl.engines.molt.checks import ask, require_ready, verdict
from rl.engines.molt.command import Command, environment, interpreter
from rl.engines.molt.expressible import require_expressible
from rl.engines.molt.flags import JobFiles, job_flags, passes
from rl.engines.molt.options import MoltOptions
from rl.errors import UserError
from rl.storage.run_directory import default_folder


@dataclass(frozen=True, kw_only=True)
class MoltEngineConfig(MoltOptions, EngineConfig):
    """See MoltOptions for the options."""

    resumable: ClassVar[frozenset[str]] = frozenset(
        ("python", "ray", "runners", "rollout_gpus", "rollout_tensor_parallel", "rollout_expert_parallel",
         "gpu_memory", "gradient_checkpointing", "microbatch_rows")
    )  # fmt: skip
    samples_alone: ClassVar[bool] = False
    needs_full_support: ClassVar[str] = "Molt's importance weights need the whole distribution"
    trains_remainder: ClassVar[bool] = True

    def check(self, blueprint: Blueprint) -> None:
        require_one_process("engine=molt", "start it with python -m: Molt starts its own processes")
        require_expressible(blueprint, self)
        command = self.command(blueprint, Path("run"))
        answer = ask(command, command.environment["RAY_ADDRESS"])
        require_ready(answer, command.python, self)

    def open(self, blueprint: Blueprint, tokenizer: Any) -> Engine:
        from rl.engines.molt.job import MoltJob

        job = MoltJob(self, blueprint, tokenizer)
        return Engine(job, job)

    def started(self, run_dir: Path) -> bool:
        return checkpoint_step(JobFiles(run_dir).state) > 0

    def commands(self, blueprint: Blueprint, overrides: str) -> dict[str, str]:
        """GPUs by role, the command with its folder and variables, and what Molt's own parser says about it."""
        require_expressible(blueprint, self)
        wanted = Path(blueprint.run_dir or default_folder("rl_basic", blueprint.name)).expanduser().absolute()
        command = self.command(blueprint, wanted)
        try:
            said = verdict(ask(command, address=None), command.python)
        except UserError as error:
            said = f"nothing was checked: {error}"
        actors = f"{self.actor_world} train ({self.actor_nodes} x {self.actor_gpus})"
        samplers = f"{self.rollout_gpus} sample ({self.engines} x {self.rollout_tensor_parallel})"
        return {
            "GPUs": f"{actors}, {samplers}",
            "Molt": said,
            "command, once the run has written the files that it names": f"\n{command.shell()}",
        }

    def command(self, blueprint: Blueprint, run_dir: Path) -> Command:
        """The command of a run in `run_dir`, as far as it is known before the data is read."""
        files = JobFiles(run_dir)
        data = blueprint.data
        # A generator may need files that only the machine with the GPUs has.
        rows = data.planned_problems(data.train_size or 0) if data.generator else peek(data).rows
        reading = passes(blueprint, rows)
        has_tests = data.test_split is not None or data.test_path is not None
        evaluates = has_tests and count_test_rows(data) != 0
        flags = job_flags(blueprint, self, files, reading, evaluates, chat=True)
        return Command(interpreter(self), flags, environment(self), files.folder)
