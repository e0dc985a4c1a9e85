"""Opens `engine=vllm`: the learner here, and a sampler that asks servers."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from rl.blueprint import Blueprint
from rl.engines.base import Engine
from rl.engines.local.engine import open_learner
from rl.engines.vllm.command import used_gpus
from rl.engines.vllm.learner import VllmLearner
from rl.engines.vllm.options import VllmOptions
from rl.engines.vllm.probe import Needs
from rl.engines.vllm.replicas import Replicas
from rl.engines.vllm.sampler import UNTIED, VllmSampler
from rl.engines.vllm.server import StartedServer, serve
from rl.engines.vllm.weights import Adapters, Reloaded, Weights, delete
from rl.storage.disk import disk_errors

log = logging.getLogger("tanka")


def open_engine(options: VllmOptions, blueprint: Blueprint, tokenizer: Any) -> Engine:
    """The learner's weights, loaded here, and the servers, ready to answer."""
    folder, prefix = handover(options, blueprint)
    learner = open_learner(VllmLearner, options, blueprint, tokenizer)
    server = None
    try:
        start = f"{prefix}{os.urandom(3).hex()}-"
        if options.servers is None:
            server = start_server(options, blueprint, learner, folder, start)
        model = blueprint.model
        embedding: Any = learner.model.get_input_embeddings()
        needs = Needs(
            source=model.source,
            hub_id=model.id,
            rank=model.lora.rank if model.lora else None,
            publishes=True,
            temperature=blueprint.temperature,
            n=blueprint.group_size,
            versions=options.max_lag + 1,
            vocabulary=embedding.num_embeddings,
        )
        weights: Weights = (
            Adapters(prefix) if model.lora else Reloaded(start, "keep" if options.max_lag else "wait")
        )
        urls = [server.url] if server is not None else options.servers or []
        temporary = blueprint.run_dir is None and options.weights_dir is None
        replicas = Replicas(urls, needs, weights, options.patience)
        sampler = VllmSampler(options, learner, replicas, server, folder, start, temporary)
    except BaseException:
        if server is not None:
            server.close()
        learner.close()
        raise
    return Engine(sampler, learner)


def handover(options: VllmOptions, blueprint: Blueprint) -> tuple[Path, str]:
    """The folder of published weights, and what the names of this run's begin with; none of them is left there.

    Without a run directory (`recipes.preflight`) and `weights_dir` it is a temporary folder.
    """
    if blueprint.run_dir is not None:
        own = Path(blueprint.run_dir).expanduser().absolute()
        run = hashlib.sha256(str(own).encode()).hexdigest()[:8]
        folder = own / "vllm"
    else:
        run = os.urandom(4).hex()
        folder = Path(tempfile.gettempdir()) / f"tanka-vllm-{run}"
    if options.weights_dir:
        folder = Path(os.path.expanduser(options.weights_dir)).absolute()  # noqa: PTH111  # keeps ~nobody
    prefix = f"tanka-{run}-"
    with disk_errors("engine.weights_dir", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # before anything heavy is loaded
            pass
    for left in [*folder.glob(f"{prefix}*"), *folder.glob(f".{prefix}*")]:
        delete(left)  # by a start that was killed
    return folder, prefix


def start_server(
    options: VllmOptions, blueprint: Blueprint, learner: VllmLearner, folder: Path, start: str
) -> StartedServer:
    """A server of the run's model, which answers. Its log is server.log in `folder`. start: prefix of this start's names."""
    model, on_cpu = blueprint.model, not used_gpus(options)
    served = model.source
    # On a CPU vLLM packs a tied head once, and it keeps the old weights when new ones are loaded.
    if on_cpu and model.lora is None and learner.model.config.get_text_config().tie_word_embeddings:
        untied = folder / f"{start}{UNTIED}-{Path(served).name}"  # the name by which is_model knows it
        with disk_errors("engine.weights_dir", folder):
            learner.write_untied(untied)
        served = str(untied)
    dtype = str(learner.precision.compute).removeprefix("torch.")
    return serve(options, model, served, dtype, folder)
