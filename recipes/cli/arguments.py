"""Checks the command line before Hydra runs it, and suggests the nearest known name for an unknown key or option.

Hydra itself accepts `++lrr=1` silently and rejects `max_token=256` without a hint.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, version
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipes.cli import eval_data
from recipes.cli.compose import CONF
from recipes.cli.overrides import first_value, grid_size, parse_override, values_of, with_quotes
from recipes.cli.sweep import installable, jobs_at_once, missing_plugin
from rl.engines.launch import require_one_process
from rl.errors import UserError, nearest
from rl.schema import known_keys, takes_any, target_parameters

DEFAULT_MODEL = "tiny"  # in every recipe that has a model
HYDRA = "1.3"  # whose defaults apply


@dataclass(frozen=True)
class Checked:
    """A checked command line. sweep: the folder of the sweep that it starts. config: that of a single run, composed.

    Neither: it only shows something, e.g. `--help`.
    """

    arguments: list[str]
    sweep: Path | None = None
    config: DictConfig | None = None


def checked_arguments(name: str, schema: type, arguments: list[str]) -> Checked:
    """Checks the command line. A key that the schema knows but no YAML lists is passed on with Hydra's `++`.

    Raises UserError for a broken override, an unknown option or key, or a value of the wrong type.
    """
    version.setbase(HYDRA)
    args = get_args_parser().parse_intermixed_args(arguments)
    if args.help or args.hydra_help or args.shell_completion or args.info or args.experimental_rerun:
        return Checked(arguments)
    typed, args.overrides = args.overrides, [with_quotes(text) for text in args.overrides]
    overrides = [parse_override(text) for text in args.overrides]
    keys = {override.key_or_group for override in overrides}
    with _hydra(name, args.config_dir) as hydra:
        loader = hydra.config_loader
        if eval_data.KEY in target_parameters(schema):
            args.overrides = [each for o in overrides for each in _with_eval_data(o, loader)]
            overrides = [parse_override(text) for text in args.overrides]
        groups = {text: _group(o, loader) for text, o in zip(args.overrides, overrides, strict=True)}
        chosen = [override for override in overrides if groups[str(override.input_line)]]
        config = _compose(args.config_name or name, [first_value(o) for o in chosen])
        # A run brings its own model; model.path then only says where that model is now.
        of_run = any(o.key_or_group == "run" and o.value() is not None for o in overrides)
        if not of_run and _needs_custom_model(args.config_name or name, chosen, keys, config):
            args.overrides.append("model=custom")
            overrides.append(parse_override("model=custom"))
            groups["model=custom"] = True
            config = _compose(args.config_name or name, [first_value(o) for o in [*chosen, overrides[-1]]])
        tree: dict[str, Any] = OmegaConf.to_container(config, resolve=False)  # type: ignore[assignment]
        known = known_keys(schema, tree)
        rewritten = []
        for text, override in zip(args.overrides, overrides, strict=True):
            if not groups[text] and not override.is_hydra_override():
                text = _checked_key(override, text, tree, known)
            rewritten.append(text)
        first = [first_value(parse_override(text)) for text in rewritten]
        # A choice may be deleted, or be found in a folder that is typed.
        if "hydra.searchpath" in keys or any(override.is_delete() for override in overrides):
            config = _compose(args.config_name or name, first)
        else:
            _apply(config, [parse_override(text) for text in first], [not groups.get(t) for t in rewritten])
    multirun = args.multirun or config.hydra.mode == RunMode.MULTIRUN
    if multirun:
        require_one_process("-m", "start it with python -m: a sweep runs its jobs one after another")
    swept = next((o for o in overrides if o.is_sweep_override()), None)
    if multirun and "run_dir" in keys:
        raise UserError(
            "run_dir: one folder cannot hold all jobs of a sweep; type hydra.sweep.dir=FOLDER instead"
        )
    if swept is not None and not multirun:
        raise UserError(
            f"{swept.input_line}: several values need several runs: add -m; or type one value, or a list in brackets"
        )
    checked = [a for a in arguments if a not in typed] + rewritten
    if args.cfg is not None:
        return Checked(checked)
    if not multirun:
        return Checked(checked, config=config)
    # The name of a job's folder shows only what the sweep varies.
    varied = {o.key_or_group for o in overrides if o.is_sweep_override()}
    shared = [o.key_or_group for o in overrides if o.key_or_group not in varied and not o.is_hydra_override()]
    checked.append(f"hydra.job.config.override_dirname.exclude_keys=[{','.join(shared)}]")
    if config.hydra.runtime.choices["hydra/launcher"] == "joblib" and "hydra.launcher.n_jobs" not in keys:
        checked.append(f"hydra.launcher.n_jobs={jobs_at_once(grid_size(config.hydra.sweeper, overrides))}")
    return Checked(checked, sweep=Path(config.hydra.sweep.dir))


def run_once(name: str, config: DictConfig, task: TaskFunction) -> None:
    """Calls `task` as `hydra.main` would, which composes the config twice more. Raises UserError as composing does."""
    with _hydra(name, None) as hydra, _one_line():
        hydra.compose_config = lambda *_, **__: config  # type: ignore[method-assign]
        hydra.run(name, task, [])


@contextmanager
def _hydra(name: str, config_dir: str | None) -> Iterator[Hydra]:
    """Hydra with the search path that `hydra.main` will use."""
    search_path = create_config_search_path(str(CONF))
    if config_dir is not None:
        folder = Path(config_dir).absolute()
        if not folder.is_dir():
            raise UserError(f"--config-dir={config_dir}: no such folder: {folder}")
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # a user's YAML may name code in the same folder
        search_path.prepend("command-line", f"file://{folder}", anchor=SearchPathQuery(provider="schema"))
    try:
        yield Hydra.create_main_hydra2(name, search_path)
    finally:
        GlobalHydra.instance().clear()


def _with_eval_data(override: Override, loader: ConfigLoader) -> list[str]:
    if override.key_or_group != eval_data.KEY or override.is_delete():
        return [str(override.input_line)]
    return eval_data.overrides_of(override, loader.get_group_options("data"))


def _needs_custom_model(name: str, overrides: list[Override], keys: set[str], config: DictConfig) -> bool:
    """Whether a model path or id, typed or in a file, would wrongly get the default model's format and stop tokens.

    If an experiment or another file chooses the model, a path only says where its weights are. overrides: the typed
    group choices. keys: all typed keys. config: the first job's config.

    Raises UserError for a sweep in which some jobs choose a model and others do not.
    """
    keys = keys | set(config.hydra.sweeper.get("params") or {})
    if "model" in keys or config.hydra.runtime.choices.get("model") is None:
        return False
    typed = bool(keys & {"model.path", "model.id"})
    default = OmegaConf.load(CONF / "model" / f"{DEFAULT_MODEL}.yaml")

    def needs(config: DictConfig) -> bool:
        own = typed or (config.model.path, config.model.id) != (default.path, default.id)
        return own and config.hydra.runtime.choices.model == DEFAULT_MODEL

    found = {needs(config)}
    first = [first_value(o) for o in overrides]
    for i, override in enumerate(overrides):
        for value in values_of(override) if override.is_sweep_override() else ():
            job = [*first[:i], f"{override.get_key_element()}={value}", *first[i + 1 :]]
            found.add(needs(_compose(name, job)))
    if len(found) > 1:
        raise UserError(
            "model.path, model.id: only some jobs of this sweep choose a model; type model=NAME, or model=custom for a"
            " checkpoint with its own chat template"
        )
    return found == {True}


def _group(override: Override, loader: ConfigLoader) -> bool:
    """Whether the override chooses an option of a group. Raises UserError, listing the options, for an unknown one."""
    key = override.key_or_group
    if override.is_delete():
        return False
    parent, _, last = key.rpartition("/")
    if last not in loader.list_groups(parent):
        return False
    options = loader.get_group_options(key)
    for value in values_of(override):
        if isinstance(value, list) and key != "logger":
            raise UserError(
                f"{override.input_line}: expected one option; type -m {key}=a,b for one run of each"
            )
        for option in value if isinstance(value, list) else [value]:
            if str(option) not in options:
                known = ", ".join(sorted(options))
                close = nearest(str(option), options)
                hint = f"; did you mean {key}={close[0]}?" if close else ";"
                adds = installable(str(option), options) if key.startswith("hydra/") else ""
                raise UserError(f"{override.input_line}: no such option{hint} options: {known}{adds}")
    return True


def _checked_key(override: Override, text: str, tree: Mapping[str, Any], known: set[str]) -> str:
    key = override.key_or_group
    adds = override.is_add() or override.is_force_add()
    if override.is_delete() or (adds and takes_any(known, key)):
        return text
    if key in known:
        return text if adds or _contains(tree, key) else f"++{text}"
    if takes_any(known, key):
        close = nearest(key, {name for name in known if takes_any(known, name) and not name.endswith("*")})
        hint = f"did you mean {close[0]}? for a new key, " if close else ""
        raise UserError(f"{text}: no such key: {key}; {hint}type +{text}")
    last = key.rpartition(".")[2]
    close = (
        nearest(key, known)
        or nearest(last, {k for k in known if "." not in k})
        or [k for k in sorted(known) if k.rpartition(".")[2] == last]
    )
    hint = f"did you mean {close[0]}?" if close else "type --cfg job to see every key"
    raise UserError(f"{text}: no such key: {key}; {hint}")


def _contains(tree: Mapping[str, Any], key: str) -> bool:
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def _compose(name: str, overrides: list[str]) -> DictConfig:
    """The composed config with its `hydra` node. Raises UserError with Hydra's message on one line."""
    with _one_line():
        return compose(name, overrides, return_hydra_config=True)


def _apply(config: DictConfig, overrides: list[Override], sets_value: list[bool]) -> None:
    """Makes a config that was composed with the choices of groups only what composing with all overrides would make it.

    Saves a third of a command's start. Raises UserError.
    """
    values = [override for override, sets in zip(overrides, sets_value, strict=True) if sets]
    with _one_line():
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
    of_task = [override for override in overrides if not override.is_hydra_override()]
    config.hydra.overrides.task = [override.input_line for override in of_task]
    config.hydra.overrides.hydra = [o.input_line for o in overrides if o.is_hydra_override()]
    job = config.hydra.job
    job.override_dirname = get_overrides_dirname(overrides=of_task, **job.config.override_dirname)


@contextmanager
def _one_line() -> Iterator[None]:
    """Turns an error of Hydra or of a file that it reads into a UserError with its message on one line."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(f"a config file is not UTF-8 text ({error}); save it as UTF-8") from None
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, ValueError) as error:
        raise UserError(missing_plugin(str(error)) or " ".join(str(error).split())) from None
