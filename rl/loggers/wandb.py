"""Metrics, and a finished run's pictures and samples, on Weights & Biases."""

from __future__ import annotations

import logging
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl.errors import UserError, one_line
from rl.loggers.base import Logger, Metrics, RunInfo

log = logging.getLogger("tanka")


@dataclass
class WandB(Logger):
    """Weights & Biases: online when a key is configured, else offline, with a log line that says how to upload.

    mode: `auto` follows WANDB_MODE if set. An online run that cannot start falls back to offline.
    Metrics keep their names and are plotted against our own `step`: W&B drops rows whose internal step does not rise,
    as after a resume.
    """

    project: str = "tanka-rl"
    entity: str | None = None
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    close_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not self.close_seconds > 0:
            raise UserError(
                f"close_seconds={self.close_seconds}: expected seconds above 0, e.g. close_seconds=60"
            )

    def open(self, run: RunInfo) -> None:
        import wandb

        self.run_dir = run.run_dir
        wandb.setup(settings=wandb.Settings(silent=True))
        mode = os.environ.get("WANDB_MODE", "online") if self.mode == "auto" else self.mode
        why = "as requested"
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            mode, why = "offline", "no API key is configured"
        try:
            self.run = self._init(run, mode)
        except wandb.Error as error:
            if mode != "online":
                raise
            mode, why = "offline", f"the server cannot be used: {one_line(error)}"
            wandb.teardown()  # the failed start still occupies the run's id
            self.run = self._init(run, mode)
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")
        if mode == "online":
            log.info("W&B: %s", self.run.url)
        elif mode == "offline":
            parts = sorted({Path(self.run.dir).parent, *run.run_dir.glob("wandb/offline-run-*")})
            log.info(
                "W&B is offline (%s); upload later with: wandb sync %s", why, shlex.join(map(str, parts))
            )

    def _init(self, run: RunInfo, mode: str) -> Any:
        import wandb

        settings = wandb.Settings(
            silent=True, console="off", init_timeout=30, finish_timeout=self.close_seconds
        )
        return wandb.init(
            project=self.project,
            entity=self.entity,
            mode=mode,  # type: ignore[arg-type]  # WANDB_MODE may be any text; wandb checks it
            dir=run.run_dir,
            id=re.sub(r"[^\w.=+@-]", "-", run.run_id),  # W&B allows fewer characters than folder names
            name=run.name,
            config=run.config,
            resume="allow",
            reinit="create_new",  # the jobs of a sweep share one process
            settings=settings,
        )

    def log(self, step: int, metrics: Metrics) -> None:
        self.run.log({**metrics, "step": step})

    def close(self, exit_code: int) -> None:
        """Ends the W&B run; a finished run also uploads its pictures and samples."""
        from rl.loggers.wandb_media import run_media

        try:
            if exit_code == 0 and not self.run.disabled:
                self.run.log(run_media(self.run_dir))
        finally:
            self.run.finish(exit_code=exit_code)
