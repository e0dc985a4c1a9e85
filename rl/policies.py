"""A run's base model and its trained weights, side by side: the same prompts, budget and random numbers for both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from renderers.base import Renderer, require_fingerprint
from rl.blueprint import Blueprint
from rl.engines.base import SamplingParams
from rl.export import is_adapter
from rl.rollouts import Problem, Rollout

SIDES = ("base", "trained")


@dataclass(frozen=True)
class Policies:
    """Both policies of a run. An adapter needs one model in memory, a full fine-tune two."""

    blueprint: Blueprint
    renderer: Renderer
    models: dict[str, Any]  # by side: the model, and what to enter around its use
    contexts: dict[str, Callable[[], Any]]

    def answer(
        self, problems: Sequence[Problem], max_tokens: int, temperature: float, seed: int
    ) -> dict[str, list[Rollout]]:
        """One rollout of each problem for each side."""
        from rl.engines.local import default_kv_gb
        from rl.engines.sampler import sample

        params = SamplingParams(max_tokens, temperature, self.renderer.stop_ids, seed)
        prompts = [self.renderer.prompt(self.blueprint.data.messages(problem)) for problem in problems]
        answers = {}
        for side in SIDES:
            model = self.models[side]
            with self.contexts[side]():
                sampled = sample(model, prompts, 1, params, default_kv_gb(model.device) * 2**30)
            completions = [self.renderer.cut(group[0]) for group in sampled]
            answers[side] = [
                Rollout(problem, i, prompt, completion, self.renderer.parse(completion))
                for i, (problem, prompt, completion) in enumerate(
                    zip(problems, prompts, completions, strict=True)
                )
            ]
        return answers


def load_policies(blueprint: Blueprint, weights: Path, device: str) -> Policies:
    """Base and trained models. Raises UserError for another base, another chat format, or weights that cannot be read."""
    import torch

    from rl.adapters import load_adapter
    from rl.engines.local import LocalEngineConfig, load_model, resolve_device
    from rl.run import open_renderer
    from rl.saving import RENDERER

    _, renderer = open_renderer(blueprint.model, blueprint.renderer)
    if (weights / RENDERER).is_file():
        require_fingerprint(renderer, (weights / RENDERER).read_text(encoding="utf-8"), str(weights))
    where = torch.device(resolve_device(device))
    if is_adapter(weights):
        dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
        adapted = load_adapter(weights, blueprint.model.source, where, dtype)
        model = adapted.get_base_model()
        return Policies(
            blueprint,
            renderer,
            models={"base": model, "trained": model},
            contexts={"base": adapted.disable_adapter, "trained": nullcontext},
        )
    spec = dataclasses.replace(blueprint.model, lora=None)
    specs = {"base": spec, "trained": dataclasses.replace(spec, path=str(weights))}
    models = {side: load_model(s, LocalEngineConfig(), where, seed=0)[0].eval() for side, s in specs.items()}
    return Policies(blueprint, renderer, models, dict.fromkeys(SIDES, nullcontext))
