"""A base and the model trained from it, sampled on the same prompts with the same random numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from renderers.base import Renderer, require_fingerprint
from rl.engines.base import Arrived, Sampler, SamplingParams
from rl.engines.policies import Policies
from rl.errors import UserError, first_line
from rl.models.card import run_of
from rl.models.config import ModelConfig
from rl.models.export import is_adapter
from rl.rollouts import Completion

SIDES = ("base", "trained")


@dataclass(frozen=True)
class BaseAndTrained(Policies):
    """`base`, and `trained` if there are trained weights. With an adapter both share one model in memory."""

    models: dict[str, Any]  # by side: the model, and the context to enter around its use
    contexts: dict[str, Callable[[], Any]]

    @property
    def sides(self) -> Sequence[str]:
        return list(self.models)

    def sampler(self, side: str) -> Sampler:
        return Side(self.models[side], self.contexts[side])


@dataclass(frozen=True)
class Side(Sampler):
    """Samples from a model inside a context."""

    model: Any
    context: Callable[[], Any]

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        from rl.engines.local.memory import default_kv_gb
        from rl.engines.local.sampler import sample

        with self.context():
            return sample(self.model, prompts, n, params, default_kv_gb(self.model.device) * 2**30)


def load_base_and_trained(
    model: ModelConfig, renderer: Renderer, weights: Path | None, device: str
) -> BaseAndTrained:
    """The base `model`, and the weights trained from it: an adapter or a full model in the folder `weights`.

    Raises UserError for a different base, a different chat format, or unreadable weights.
    """
    import torch

    from rl.models.adapters import BASE, base_fingerprint, load_adapter, require_base
    from rl.models.device import resolve_device
    from rl.models.loading import read_model

    require_renderer(renderer, weights)
    where = torch.device(resolve_device(device))
    if weights is not None and is_adapter(weights):
        dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
        adapted = load_adapter(weights, model.source, where, dtype, model.quantization is not None)
        base = adapted.get_base_model()
        return BaseAndTrained(
            models=dict.fromkeys(SIDES, base),
            contexts={"base": adapted.disable_adapter, "trained": nullcontext},
        )
    on_gpu = where.type == "cuda"
    # Nothing is trained here, so a GPU needs no float32 master weights.
    spec = dataclasses.replace(model, dtype="bfloat16" if on_gpu and model.dtype == "auto" else model.dtype)
    specs = {"base": spec}
    if weights is not None:
        specs["trained"] = dataclasses.replace(spec, path=str(weights), revision=None)
    models: dict[str, Any] = {side: read_model(each, "sdpa", on_gpu) for side, each in specs.items()}
    if weights is not None and (weights / BASE).is_file():
        facts = {"base": model.source, "fingerprint": base_fingerprint(models["base"])}
        require_base(weights, facts, "give the base that it was trained from, model.path=FOLDER")
    models = {side: each.to(where).eval() for side, each in models.items()}
    return BaseAndTrained(models, dict.fromkeys(models, nullcontext))


def require_renderer(renderer: Renderer, weights: Path | None) -> None:
    """Raises UserError for weights that were trained with another chat format."""
    from rl.saving import RENDERER

    if weights is not None and (weights / RENDERER).is_file():
        require_fingerprint(renderer, (weights / RENDERER).read_text(encoding="utf-8"), str(weights))


def read_config(weights: Path) -> dict[str, Any]:
    """config.yaml of the run that contains `weights`. Raises UserError, naming the key `run`, if there is none."""
    run = run_of(weights)
    if run is None:
        raise UserError(
            f"run={weights}: not in a run directory; expected one with config.yaml, such as runs/rl_basic/..."
        )
    path = run / "config.yaml"
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)}); give another run, run=PATH") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: not the config.yaml of a run; give another run, run=PATH")
    return tree
