"""Checkpoints on a Tinker service: `python -m recipes.checkpoints run=runs/rl_basic/... action=list`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.table import Table

from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from rl.errors import UserError
from rl.schema import build
from rl.storage import checkpoint
from rl.storage.disk import disk_errors
from rl.terminal import EscapingConsole

if TYPE_CHECKING:
    from rl.engines.tinker.service import Service


@dataclass(frozen=True, kw_only=True)
class CheckpointsConfig:
    """See conf/checkpoints.yaml."""

    run: str | None
    action: Literal["list", "download", "delete"]
    step: int | None
    path: str | None
    out: str | None

    def __post_init__(self) -> None:
        if self.path is not None:
            self._check_path(self.path)
        elif self.run is None:
            raise UserError(
                "run=null: expected a run of engine=tinker; type run=FOLDER, or path=tinker://... with download or delete"
            )
        elif self.action != "list" and self.step is None:
            raise UserError(
                f"step=null: action={self.action} needs a step or a path; action=list shows them; e.g. step=20"
            )

    def _check_path(self, path: str) -> None:
        if not re.fullmatch(r"tinker://[^/]+/[^/]+/.+", path):
            raise UserError(f"path={path}: expected tinker://RUN/KIND/NAME, as action=list shows it")
        if self.action == "list" or self.step is not None:
            raise UserError(f"path={path}: expected with action=download or action=delete, in place of step=")
        if self.action == "download" and not re.match(r"tinker://[^/]+/(sampler|external)_weights/", path):
            raise UserError(
                f"path={path}: not an adapter; type tinker://RUN/sampler_weights/NAME or tinker://RUN/external_weights/NAME"
            )
        if self.action == "download" and self.out is None:
            raise UserError(
                "out=null: action=download of a path needs a folder to write to; e.g. out=adapter"
            )


@recipe("checkpoints", CheckpointsConfig)
def main(composed: Composed) -> None:
    """Lists the run's checkpoints with what the service keeps of each; downloads an adapter; deletes a checkpoint there."""
    config: CheckpointsConfig = build(CheckpointsConfig, composed.tree)
    if config.path is not None:
        work_on_path(config, config.path)
        return
    run = Path(str(config.run)).expanduser().absolute()
    found = {checkpoint.step_of(path): path for path in checkpoint.steps(run / "checkpoints")}
    if not found:
        raise UserError(f"run={run}: has no checkpoint; expected a run of engine=tinker")
    if config.step is not None and config.step not in found:
        raise UserError(f"step={config.step}: no such checkpoint; there are {', '.join(map(str, found))}")

    from rl.engines.tinker.calls import require_access
    from rl.engines.tinker.learner import saved_state
    from rl.engines.tinker.service import Service

    states = {step: saved_state(path) for step, path in found.items()}
    require_access()
    service = Service()
    if config.step is None:
        kept = {run_id(state): service.checkpoints(run_id(state)) for state in states.values()}
        EscapingConsole(width=120).print(
            table_of(states, {c.tinker_path for group in kept.values() for c in group})
        )
        return
    state = states[config.step]
    if config.action == "delete":
        for path in (state["state"], state["adapter"]):
            delete(service, path)
        print(f"{found[config.step]} can no longer be resumed")
        return
    out = Path(config.out).expanduser() if config.out else found[config.step] / "adapter"
    download(service, state["adapter"], out, state["base"])


def work_on_path(config: CheckpointsConfig, path: str) -> None:
    """Downloads or deletes one path on the service; needs no run here."""
    from rl.engines.tinker.calls import require_access
    from rl.engines.tinker.service import Service

    require_access()
    service = Service()
    if config.action == "delete":
        delete(service, path)
    else:
        download(service, path, Path(str(config.out)).expanduser(), None)


def download(service: Service, path: str, out: Path, base: str | None) -> None:
    """Writes the adapter at `path` into the folder `out` as PEFT files; base: see Service.download."""
    with disk_errors(f"out={out}", out.parent):
        out.mkdir(parents=True, exist_ok=True)
        service.download(path, out, base)
    print(f"adapter: {out}")


def delete(service: Service, path: str) -> None:
    """Deletes a path on the service and prints the outcome."""
    print(f"deleted: {path}" if service.delete(path) else f"already gone: {path}")


def run_id(state: dict[str, str]) -> str:
    """The id of the checkpoint's training run on the service; a resumed run has several."""
    return state["state"].removeprefix("tinker://").split("/")[0]


def table_of(states: dict[int, dict[str, str]], kept: set[str]) -> Table:
    """One row per path of each checkpoint, then the other paths that the service keeps, since they cost storage too."""
    table = Table("step", "what", "path", "on the service")
    known = {state[what]: (step, what) for step, state in states.items() for what in ("state", "adapter")}
    for path, (step, what) in known.items():
        table.add_row(str(step), what, path, "kept" if path in kept else "gone")
    for path in sorted(kept - known.keys()):
        table.add_row("", "no checkpoint here", path, "kept")
    return table


if __name__ == "__main__":
    main()
