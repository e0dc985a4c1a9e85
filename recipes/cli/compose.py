"""A composed config as plain containers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from recipes.cli.eval_data import as_typed
from rl.errors import UserError
from rl.storage.run_directory import folder_name

CONF = Path(__file__).resolve().parents[2] / "conf"
JOB_NAME_BYTES = 200  # the longest name of a sweep job's folder; file systems allow 255
START = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 10**9 // 1000:06d}"
NAMED_GROUPS = ("model", "data", "rewards", "loss")  # groups whose options have a `name`


@dataclass(frozen=True)
class Composed:
    """One composed config. tree: plain containers, resolved. raw: with interpolations, for `plan=true`.

    overrides: as typed. choices: the chosen option of each group. job_dir: the folder of a multirun's job, else None.
    """

    tree: dict[str, Any]
    raw: DictConfig
    overrides: list[str]
    choices: dict[str, str]
    job_dir: Path | None


def composed(config: DictConfig) -> Composed:
    """The config that Hydra hands to a recipe, resolved. Raises UserError as `resolved` does."""
    job = HydraConfig.get()
    multirun = job.mode == RunMode.MULTIRUN
    choices = {str(k): str(v) for k, v in job.runtime.choices.items() if "hydra/" not in str(k)}
    # An option without a name gets its file's name, for the run's name, messages and the model card.
    with open_dict(config):
        for group in NAMED_GROUPS:
            if group in choices and isinstance(config[group], DictConfig):
                config[group].setdefault("name", choices[group])
        for name, data in (config.get("eval_data") or {}).items():
            data.name = name
    return Composed(
        tree=resolved(config),
        raw=config,
        overrides=as_typed(job.overrides.task),
        choices=choices,
        job_dir=Path(job.runtime.output_dir) if multirun else None,
    )


def resolved(config: DictConfig) -> dict[str, Any]:
    """Plain containers with every interpolation resolved. Raises UserError naming the unresolved or missing key."""
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except MissingMandatoryValue as error:
        raise UserError(
            f"{error.full_key}: missing; type {error.full_key}=VALUE (--help shows examples)"
        ) from None
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}") from None


def register_resolvers() -> None:
    OmegaConf.register_new_resolver(
        "product", lambda a, b: None if a is None or b is None else a * b, replace=True
    )
    OmegaConf.register_new_resolver("start_time", lambda: START, replace=True)
    OmegaConf.register_new_resolver(
        "folder_name", lambda overrides: folder_name(overrides, JOB_NAME_BYTES) or "defaults", replace=True
    )
