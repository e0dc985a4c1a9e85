"""Opening and closing a run: everything heavy is loaded here, cheapest first, and let go whatever happens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import renderers
from renderers.base import Renderer, RendererConfig, require_fingerprint
from rl import checkpoint
from rl.blueprint import Blueprint, ModelConfig
from rl.errors import UserError
from rl.loggers import Loggers, RunInfo
from rl.problems import ProblemSet
from rl.run_directory import RunDirectory, State
from rl.train import RENDERER, Run

log = logging.getLogger("tanka")


@contextmanager
def open_run(
    blueprint: Blueprint, problems: ProblemSet, directory: RunDirectory, config: dict[str, Any]
) -> Iterator[Run]:
    """The opened run, at the newest complete checkpoint.

    When the body ends, by itself or by an error, status.json says how, the loggers are closed with the exit code and
    the weights are freed.
    """
    with _status(directory) as exit_code:
        tokenizer, renderer = open_renderer(blueprint.model, blueprint.renderer)
        if limit := blueprint.data.max_prompt_tokens:
            problems.filter_by_prompt_length(lambda p: len(renderer.prompt(problems.messages(p))), limit)
        engine = blueprint.engine.open(blueprint, tokenizer)
        try:
            blueprint.rewards.start()
            point = directory.resume_point()
            done = checkpoint.step_of(point) if point else 0
            if point:
                require_fingerprint(renderer, (point / RENDERER).read_text(encoding="utf-8"), str(point))
                engine.load(point)
                log.info("resuming %s after step %d", directory.path, done)
            total_steps = blueprint.total_steps(problems.steps_per_epoch(blueprint.batch_size))
            directory.write_status("running", done)
            loggers = Loggers(blueprint.logger)
            loggers.open(RunInfo(directory.path, blueprint.name, config, total_steps, done, directory.run_id))
            try:
                yield Run(blueprint, problems, renderer, engine, loggers, directory, total_steps, done)
                exit_code[0] = 0
            except KeyboardInterrupt:
                exit_code[0] = 130
                raise
            finally:
                loggers.close(exit_code[0])
        finally:
            blueprint.rewards.close()
            engine.close()


def open_renderer(model: ModelConfig, config: RendererConfig) -> tuple[Any, Renderer]:
    """The model's tokenizer and the renderer bound to it."""
    from rl.engines.local import load_tokenizer

    tokenizer = load_tokenizer(model)
    renderer = renderers.load(
        config,
        tokenizer,
        model_renderer=model.renderer,
        stop_tokens=model.stop_tokens,
        eos_ids=end_ids(model),
    )
    return tokenizer, renderer


def end_ids(model: ModelConfig) -> list[int]:
    """The ids that the checkpoint's generation config ends on; [] when it has none."""
    from transformers import GenerationConfig

    from rl.engines.local import checkpoint_errors

    try:
        with checkpoint_errors(model):
            ids = GenerationConfig.from_pretrained(model.source, revision=model.revision or "main").eos_token_id
    except UserError:
        return []
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


@contextmanager
def _status(directory: RunDirectory) -> Iterator[list[int]]:
    """Writes status.json at the end; the list holds the exit code that the body sets."""
    exit_code = [1]
    try:
        directory.write_status("running", directory.read_status().get("step", 0))
        yield exit_code
    except BaseException as error:
        step = directory.read_status().get("step", 0)
        state: State = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        directory.write_status(state, step, f"{type(error).__name__}: {error}".strip(": "))
        raise
    directory.write_status("finished", directory.read_status().get("step", 0))
