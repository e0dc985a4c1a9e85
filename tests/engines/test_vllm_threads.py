"""engine=vllm's sampler from many threads at once while the learner trains, as trajectories in flight use it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rl.data.problems import load
from rl.engines.base import SamplingParams
from rl.losses.grpo import GRPO
from rl.models.loading import open_renderer
from rl.rollouts import TrainingRow
from tests.engines.test_vllm import TINY
from tests.helpers.blueprints import composed
from tests.helpers.vllm_fake import FakeVllm

LORA = ["++model.lora.rank=8", "++model.lora.alpha=16"]


@pytest.mark.parametrize("weights", [LORA, []], ids=["lora", "full"])
def test_threads_sample_while_the_learner_trains(tmp_path, weights):
    """Weights are published between updates only: each version's log-probabilities are the learner's."""
    with FakeVllm(TINY) as first, FakeVllm(TINY) as second:
        blueprint = composed(
            "engine=vllm", f"engine.servers=[{first.url},{second.url}]", f"engine.weights_dir={tmp_path}", "engine.max_lag=2", *weights
        )  # fmt: skip
        tokenizer, renderer = open_renderer(blueprint.model, blueprint.renderer)
        problems = load(blueprint.data, 0).train[:12]
        prompts = [renderer.prompt(blueprint.data.messages(problem)) for problem in problems]
        engine = blueprint.engine.open(blueprint, tokenizer)
        sampler, learner = engine.sampler, engine.learner
        assert sampler.concurrent and sampler.max_lag == 2

        def sample(p: int) -> list:
            params = SamplingParams(6, 1.0, renderer.stop_ids, seed=100 * p)
            return [sampler.sample([prompts[p]], 2, params)[0] for _ in range(3)]

        try:
            with ThreadPoolExecutor(len(prompts)) as threads:
                asked = [threads.submit(sample, p) for p in range(len(prompts))]
                found = [completion for group in sample(0) for completion in group]
                data = [
                    TrainingRow(
                        prompts[0], c.tokens, [True] * len(c.tokens), c.logprobs, [0.1] * len(c.tokens)
                    )
                    for c in found
                ]
                for _ in range(4):
                    learner.update(data, GRPO(), 1e-3)
                    sampler.publish()
                answers = [each.result() for each in asked]
            sample(0)
            metrics = sampler.metrics()
        finally:
            engine.close()
        assert all(len(group) == 2 for groups in answers for group in groups)
        assert metrics["publish/mismatch_max"] < 1e-4 and metrics["servers/live"] == 2
        assert not first.broken and not second.broken and not first.adapters
        assert list(tmp_path.iterdir()) == []
