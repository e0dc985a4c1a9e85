"""Turns a function into a command: Hydra composes the config, and bad input ends in one line and exit code 2."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from recipes.cli.arguments import HYDRA, checked_arguments, run_once
from recipes.cli.compose import CONF, Composed, composed, register_resolvers
from recipes.cli.sweep import jobs_of, run_job, run_sweep
from rl import progress_view, threads
from rl.engines.launch import rank
from rl.errors import UserError
from rl.terminal import escape_controls, escape_shared_console


def recipe(name: str, schema: type) -> Callable[[Callable[[Composed], Any]], Callable[[], None]]:
    """Makes `run(composed)` the command `python -m recipes.<name>` with conf/<name>.yaml, checked against `schema`.

    A UserError becomes one line on stderr and exit code 2. In a multirun, the other jobs run on when one fails.
    """

    def decorate(run: Callable[[Composed], Any]) -> Callable[[], None]:
        def task(config: DictConfig) -> Any:
            gc.enable()
            with progress_view.shown():
                return run(composed(config))

        def main() -> None:
            gc.disable()  # composing makes many long-lived objects; collecting takes a tenth of its time
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal without UTF-8
            escape_shared_console()
            register_resolvers()
            if "" not in sys.path:
                sys.path.insert(0, "")  # otherwise a console script cannot import the user's own modules
            try:
                checked = checked_arguments(name, schema, sys.argv[1:])
                sys.argv[1:] = checked.arguments
                threads.configure(jobs=jobs_of(checked.arguments))  # torch is not loaded yet
                if checked.config is not None:
                    run_once(name, checked.config, _guarded(task))
                    return
                start = hydra.main(str(CONF), name, HYDRA)(_guarded(task))
                start() if checked.sweep is None else run_sweep(start, checked.sweep)
            except UserError as error:
                fail(str(error))

        main.__doc__ = run.__doc__
        return main

    return decorate


def fail(message: str) -> None:
    """Prints one line on stderr, in rank 0 only, and exits with code 2."""
    if rank() == 0:
        print(escape_controls(f"error: {message}"), file=sys.stderr)
    raise SystemExit(2)


def _guarded(task: Callable[[DictConfig], Any]) -> Callable[[DictConfig], Any]:
    """`task` with its errors handled here: Hydra would print its own frames and end a sweep at the first error."""

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
