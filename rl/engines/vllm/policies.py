"""A base and the weights trained from it on vLLM servers, for evaluation: an adapter by its name, a model by itself."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from renderers.base import Renderer
from rl.engines.base import Sampler
from rl.engines.policies import Policies
from rl.engines.vllm.command import used_gpus
from rl.engines.vllm.options import VllmOptions
from rl.engines.vllm.probe import Needs
from rl.engines.vllm.remote import RemoteSampler
from rl.engines.vllm.replicas import Replicas
from rl.engines.vllm.server import serve
from rl.engines.vllm.weights import Adapters, Served, Version, delete
from rl.errors import UserError
from rl.evaluation.base_and_trained import SIDES, require_renderer
from rl.models.config import LoraConfig, ModelConfig
from rl.models.export import is_adapter
from rl.models.loading import checkpoint_config

BASE = Version("base", None)


def open_policies(
    options: VllmOptions, model: ModelConfig, renderer: Renderer, weights: Path | None
) -> Policies:
    """`base`, and `trained` if there are weights. Raises UserError, also for servers that would need two models."""
    require_renderer(renderer, weights)
    if weights is None:
        return ServedPolicies(options, {"base": dataclasses.replace(model, lora=None)}, {"base": BASE})
    if is_adapter(weights):
        rank = json.loads((weights / "adapter_config.json").read_text(encoding="utf-8"))["r"]
        adapted = dataclasses.replace(model, lora=LoraConfig(rank=rank))
        name = f"tanka-{weights.parent.name}-{os.urandom(3).hex()}"
        versions = {"base": BASE, "trained": Version(name, weights)}
        return ServedPolicies(options, dict.fromkeys(SIDES, adapted), versions)
    if options.servers is not None:
        raise UserError(
            f"engine.servers: {weights} is a whole model, and a server holds one; leave out engine.servers, so that a server is"
            f" started for each, or type model.path={weights} for what the servers serve"
        )
    trained = dataclasses.replace(model, path=str(weights), revision=None, lora=None)
    models = {"base": dataclasses.replace(model, lora=None), "trained": trained}
    return ServedPolicies(options, models, dict.fromkeys(SIDES, BASE))


class ServedPolicies(Policies):
    """models: the checkpoint to serve for each side. versions: what is sampled there: itself, or an adapter on it."""

    def __init__(
        self, options: VllmOptions, models: dict[str, ModelConfig], versions: dict[str, Version]
    ) -> None:
        self.options, self.models, self.versions = options, models, versions
        self.folder: Path | None = None
        self.opened: RemoteSampler | None = None
        self.served: ModelConfig | None = None

    @property
    def sides(self) -> Sequence[str]:
        return list(self.models)

    def sampler(self, side: str) -> Sampler:
        """See `Policies`. Another model than the side's before ends its server and starts one."""
        model = self.models[side]
        if self.opened is None or self.served != model:
            self.close()
            self.opened, self.served = self._open(model), model
        self.opened.version = self.versions[side]
        return self.opened

    def _open(self, model: ModelConfig) -> RemoteSampler:
        rank = model.lora.rank if model.lora else None
        vocabulary = checkpoint_config(model).get_text_config().vocab_size
        needs = Needs(
            model.source, model.id, rank, publishes=False, temperature=0, n=1, vocabulary=vocabulary
        )
        weights = Served() if rank is None else Adapters("")
        server = None
        if self.options.servers is None:
            self.folder = Path(tempfile.mkdtemp(prefix="tanka-vllm-"))
            dtype = "bfloat16" if used_gpus(self.options) or self.options.compute == "bfloat16" else "float32"
            server = serve(self.options, model, model.source, dtype, self.folder)
        urls = [server.url] if server is not None else self.options.servers or []
        return RemoteSampler(Replicas(urls, needs, weights, self.options.patience), BASE, server)

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None
        delete(self.folder)
