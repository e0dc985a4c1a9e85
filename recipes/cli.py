"""What every recipe shares: compose with Hydra, answer bad input in one line, hand a plain tree to the recipe.

Hydra accepts `++lrr=1` silently and answers `max_token=256` without a hint, so overrides are checked before it runs.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra import compose
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from recipes.overrides import first_value, grid_size, parse_override, values_of, with_quotes
from recipes.sweep import installable, jobs_at_once, missing_plugin, run_job, run_sweep
from rl.engines.launch import rank, require_one_process
from rl.errors import UserError, nearest
from rl.schema import known_keys, takes_any
from rl.storage.run_directory import folder_name
from rl.terminal import escape_controls, escape_shared_console

CONF = Path(__file__).resolve().parents[1] / "conf"
DEFAULT_MODEL = "tiny"  # of every recipe that has a model
JOB_NAME_BYTES = 200  # of a sweep job's folder; file systems allow 255
START = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 10**9 // 1000:06d}"


@dataclass(frozen=True)
class Composed:
    """One composed config. tree: resolved, plain containers. raw: with its interpolations, for `plan=true`.

    overrides: as typed. choices: the option taken in each group. job_dir: the folder of a multirun's job, else None.
    """

    tree: dict[str, Any]
    raw: DictConfig
    overrides: list[str]
    choices: dict[str, str]
    job_dir: Path | None


def recipe(name: str, schema: type) -> Callable[[Callable[[Composed], Any]], Callable[[], None]]:
    """Makes `run(composed)` the command `python -m recipes.<name>` with conf/<name>.yaml; `schema` types its tree.

    A UserError is one line on stderr and exit code 2. In a multirun a failing job leaves the others running.
    """

    def decorate(run: Callable[[Composed], Any]) -> Callable[[], None]:
        def task(config: DictConfig) -> Any:
            gc.enable()
            return run(_composed(config))

        def main() -> None:
            gc.disable()  # composing makes many objects that stay: looking through them again and again takes a tenth of it
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal without UTF-8
            escape_shared_console()
            register_resolvers()
            if "" not in sys.path:
                sys.path.insert(0, "")  # a console script does not see the user's own modules otherwise
            try:
                sys.argv[1:], sweep = checked_arguments(name, schema, sys.argv[1:])
                start = hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(
                    _guarded(task)
                )
                start() if sweep is None else run_sweep(start, sweep)
            except UserError as error:
                fail(str(error))

        main.__doc__ = run.__doc__
        return main

    return decorate


def fail(message: str) -> None:
    """One line on stderr, exit code 2; of several processes of a launch the first one speaks."""
    if rank() == 0:
        print(escape_controls(f"error: {message}"), file=sys.stderr)
    raise SystemExit(2)


def _guarded(task: Callable[[DictConfig], Any]) -> Callable[[DictConfig], Any]:
    """`task` with its errors answered here: Hydra would print its own frames, and stop at a sweep's first one."""

    def run(config: DictConfig) -> Any:
        job = HydraConfig.get()
        try:
            if job.mode == RunMode.MULTIRUN:
                return run_job(lambda: task(config), job)
            return task(config)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except Exception as error:
            if isinstance(error, UserError):
                fail(str(error))
            print(escape_controls(traceback.format_exc()), end="", file=sys.stderr)
            raise SystemExit(1) from None

    return run


NAMED_GROUPS = ("model", "data", "rewards", "loss")


def _composed(config: DictConfig) -> Composed:
    job = HydraConfig.get()
    multirun = job.mode == RunMode.MULTIRUN
    choices = {str(k): str(v) for k, v in job.runtime.choices.items() if "hydra/" not in str(k)}
    # An option that does not name itself is called by its file: a run's name, messages and the model card use it.
    with open_dict(config):
        for group in NAMED_GROUPS:
            if group in choices and isinstance(config[group], DictConfig):
                config[group].setdefault("name", choices[group])
    return Composed(
        tree=resolved(config),
        raw=config,
        overrides=list(job.overrides.task),
        choices=choices,
        job_dir=Path(job.runtime.output_dir) if multirun else None,
    )


def resolved(config: DictConfig) -> dict[str, Any]:
    """Plain containers, every interpolation resolved. Raises UserError naming the key that dangles or is missing."""
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


def checked_arguments(name: str, schema: type, arguments: list[str]) -> tuple[list[str], Path | None]:
    """The command line, checked, and the folder of the sweep it asks for (None: a single run).

    A key that the schema knows but no YAML lists is passed on with Hydra's `++`.

    Raises UserError for a broken override, an unknown group option, an unknown key or a value of the wrong type.
    """
    args = get_args_parser().parse_intermixed_args(arguments)
    if args.help or args.hydra_help or args.shell_completion or args.info or args.experimental_rerun:
        return arguments, None
    typed, args.overrides = args.overrides, [with_quotes(text) for text in args.overrides]
    overrides = [parse_override(text) for text in args.overrides]
    keys = {override.key_or_group for override in overrides}
    with _hydra(name, args.config_dir) as loader:
        groups = {text: _group(o, loader) for text, o in zip(args.overrides, overrides, strict=True)}
        chosen = [override for override in overrides if groups[str(override.input_line)]]
        config = _compose(args.config_name or name, [first_value(o) for o in chosen])
        # A run knows its own model: a path says where that lies now.
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
        config = _compose(args.config_name or name, [first_value(parse_override(text)) for text in rewritten])
    multirun = args.multirun or config.hydra.mode == RunMode.MULTIRUN
    if multirun:
        require_one_process("-m", "start it with python -m: its runs come one after another")
    swept = next((o for o in overrides if o.is_sweep_override()), None)
    if multirun and "run_dir" in keys:
        raise UserError(
            "run_dir: one folder cannot hold a sweep's jobs; type hydra.sweep.dir=FOLDER for all of them"
        )
    if swept is not None and not multirun:
        raise UserError(
            f"{swept.input_line}: several values make several runs: add -m; or give one value, or a list in brackets"
        )
    checked = [a for a in arguments if a not in typed] + rewritten
    if not multirun or args.cfg is not None:
        return checked, None
    # A job's folder is named by what the sweep varies, not by what all jobs share.
    shared = [o.key_or_group for o in overrides if not o.is_sweep_override() and not o.is_hydra_override()]
    checked.append(f"hydra.job.config.override_dirname.exclude_keys=[{','.join(shared)}]")
    if config.hydra.runtime.choices["hydra/launcher"] == "joblib" and "hydra.launcher.n_jobs" not in keys:
        checked.append(f"hydra.launcher.n_jobs={jobs_at_once(grid_size(config.hydra.sweeper, overrides))}")
    return checked, Path(config.hydra.sweep.dir)


@contextmanager
def _hydra(name: str, config_dir: str | None) -> Iterator[ConfigLoader]:
    """Hydra's own loader with the search path that `hydra.main` will use."""
    search_path = create_config_search_path(str(CONF))
    if config_dir is not None:
        folder = Path(config_dir).absolute()
        if not folder.is_dir():
            raise UserError(f"--config-dir={config_dir}: no such folder: {folder}")
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # a YAML of one's own may name code that lies beside it
        search_path.prepend("command-line", f"file://{folder}", anchor=SearchPathQuery(provider="schema"))
    try:
        yield Hydra.create_main_hydra2(name, search_path).config_loader
    finally:
        GlobalHydra.instance().clear()


def _needs_custom_model(name: str, overrides: list[Override], keys: set[str], config: DictConfig) -> bool:
    """Whether a path or an id, typed or in a file, would get the default model's format and end tokens.

    A model that an experiment or another file chooses stays: a path then says only where its weights lie. `overrides`
    are those of groups, `keys` all that are typed, `config` is the first job's.

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
            "model.path, model.id: some jobs of this sweep choose a model and others do not; type model=NAME, or model=custom for a"
            " checkpoint with its own chat template"
        )
    return found == {True}


def _group(override: Override, loader: ConfigLoader) -> bool:
    """Whether the override chooses a group's option; an unknown option is answered with the known ones."""
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
                f"{override.input_line}: expected one option; with -m, {key}=a,b makes a run of each"
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
    last = key.rpartition(".")[2]
    close = (
        nearest(key, known)
        or nearest(last, {k for k in known if "." not in k})
        or [k for k in sorted(known) if k.rpartition(".")[2] == last]
    )
    hint = f"did you mean {close[0]}?" if close else "--cfg job shows every key"
    raise UserError(f"{text}: no such key: {key}; {hint}")


def _contains(tree: Mapping[str, Any], key: str) -> bool:
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def _compose(name: str, overrides: list[str]) -> DictConfig:
    """The composed config with its `hydra` node. Raises UserError in Hydra's words, on one line."""
    try:
        return compose(name, overrides, return_hydra_config=True)
    except UnicodeDecodeError as error:
        raise UserError(f"a config file is not UTF-8 text ({error}); save it as UTF-8") from None
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, ValueError) as error:
        raise UserError(missing_plugin(str(error)) or " ".join(str(error).split())) from None
