"""Compares one training step on a service with the same step here, to verify what the service computes."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rl.blueprint import Blueprint
from rl.collecting import require_any, rollouts_from
from rl.data.problems import ProblemSet
from rl.engines.base import SamplingParams
from rl.engines.conformance import Conformance
from rl.engines.tinker.learner import TinkerLearner
from rl.engines.tinker.pending import PendingGroups
from rl.engines.tinker.sampler import TinkerSampler
from rl.losses.base import weigh
from rl.models.loading import open_renderer
from rl.optimizer import OptimizerConfig
from rl.rollouts import TrainingRow

if TYPE_CHECKING:
    from torch import Tensor

# With an epsilon far above every gradient, Adam's first step is proportional to the gradient, so the adapter's change
# shows the gradient that the service computed.
LINEAR = OptimizerConfig(eps=1.0, max_grad_norm=math.inf)
SAME = 1e-5  # nats: largest difference when the same weights score the same tokens twice
ATTEMPTS = 3
DRIFT = 0.3  # nats added to some behaviour log-probabilities, to exercise clipping and the trust region


def compare(blueprint: Blueprint, problems: ProblemSet) -> Conformance:
    """Samples a small batch on the service, then takes one step on it and one here in float32, from the same adapter."""
    tokenizer, renderer = open_renderer(blueprint.model, blueprint.renderer)
    with closing(
        blueprint.engine.open(dataclasses.replace(blueprint, optimizer=LINEAR), tokenizer)
    ) as engine:
        sampler, learner = cast(TinkerSampler, engine.sampler), cast(TinkerLearner, engine.learner)
        chosen = problems.batch(0, blueprint.batch_size, blueprint.seed)
        prompts = [renderer.prompt(problems.messages(problem)) for problem in chosen]
        params = SamplingParams(blueprint.max_tokens, 1.0, renderer.stop_ids, seed=blueprint.seed)
        sampled = require_any(sampler.sample(prompts, blueprint.group_size, params))
        rollouts = rollouts_from(chosen, prompts, sampled, renderer)
        for n, rollout in enumerate(rollouts):
            rollout.reward = float(n % 2)  # any rewards work; these give every group a signal
        rows = weigh(rollouts, blueprint.loss, blueprint.max_tokens)
        sampler_drift = largest_difference([row.behavior_logprobs for row in rows], learner.logprobs(rows))
        rows = [drifted(row) if n % 4 == 3 else row for n, row in enumerate(rows)]
        with tempfile.TemporaryDirectory() as folder:
            return compare_steps(sampler, learner, blueprint, rows, sampler_drift, Path(folder))


def compare_steps(
    sampler: TinkerSampler,
    learner: TinkerLearner,
    blueprint: Blueprint,
    rows: Sequence[TrainingRow],
    sampler_drift: float,
    folder: Path,
) -> Conformance:
    """The second half of `compare`. folder: receives the service's adapter before and after its step."""
    import peft
    import torch

    from rl.engines.local.learner import LocalLearner
    from rl.models.adapters import load_adapter
    from rl.models.device import resolve_device

    there_logprobs = learner.logprobs(rows)
    before = download(learner, folder / "before")
    sampler.publish()
    older = sampler.published
    first = one_completion(learner, older, rows[0])
    there = learner.update(rows, blueprint.loss, learning_rate=1.0)
    change_there = flat(download(learner, folder / "after")) - flat(before)
    stepped = learner.logprobs(rows[:1])
    again = one_completion(learner, older, rows[0])
    overlaps = (
        largest_difference([again], [first]) < SAME
        and largest_difference(learner.logprobs(rows[:1]), stepped) < SAME
    )

    device = torch.device(resolve_device(blueprint.device))
    adapted = load_adapter(folder / "before", blueprint.model.source, device)
    for name, parameter in adapted.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    local = LocalLearner(adapted.get_base_model(), LINEAR, temperature=1.0, microbatch_tokens=4096)  # type: ignore[arg-type]
    here_logprobs = local.logprobs(rows)
    here = local.update(rows, blueprint.loss, learning_rate=1.0)
    change_here = flat(peft.get_peft_model_state_dict(adapted)) - flat(before)
    return Conformance(
        cosine=torch.nn.functional.cosine_similarity(change_there, change_here, dim=0).item(),
        norm_ratio=(change_there.norm() / change_here.norm()).item(),
        sampler_drift=sampler_drift,
        learner_drift=largest_difference(there_logprobs, here_logprobs),
        rows=len(rows),
        admitted=(sum(there.admitted), sum(here.admitted)),
        overlaps=overlaps,
    )


def one_completion(learner: TinkerLearner, published: Any, row: TrainingRow) -> list[float]:
    """Log-probabilities of a few tokens; identical on each call while `published` is the same policy."""
    params = SamplingParams(max_tokens=4, temperature=1.0, stop_ids=frozenset(), seed=0)
    pending = PendingGroups(published, [row.prompt_tokens], 1, params, ATTEMPTS, learner.ledger)
    return require_any(pending.result())[0][0].logprobs


def drifted(row: TrainingRow) -> TrainingRow:
    """The row as if an older policy had sampled it: log-probabilities shifted by -DRIFT, 0, +DRIFT in turn."""
    moved = [value + DRIFT * (t % 3 - 1) for t, value in enumerate(row.behavior_logprobs)]
    return dataclasses.replace(row, behavior_logprobs=moved)


def download(learner: TinkerLearner, folder: Path) -> dict[str, Tensor]:
    """Downloads the service's current adapter into `folder`, deletes it there, and returns its tensors by name."""
    import peft

    folder.mkdir()
    learner.export(folder)
    learner.discard()
    return peft.load_peft_weights(str(folder), device="cpu")


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    """All values in one vector, ordered by name."""
    import torch

    return torch.cat([tensors[name].detach().cpu().double().flatten() for name in sorted(tensors)])


def largest_difference(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Largest absolute difference over the tokens of all rows, up to the shorter length; NaN if any is NaN."""
    differences = [abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=False)]
    return math.nan if any(map(math.isnan, differences)) else max(differences)
