"""Sampled tokens per second beside transformers' `model.generate` and vLLM: `python -m benchmarks.sampling [rounds]`.

Three cases: 16 problems x 8 completions of up to 64 tokens by the embedded model, once ending naturally and once forced
to 64 tokens each; 4 prompts x 8 completions of 128 tokens at the shape of a 135M-parameter Llama. generate runs with its
dynamic and its static cache and returns no log-probabilities. vLLM, in float32 and bfloat16, runs in the Python that
VLLM_PYTHON names, by default that of `make build/vllm/installed`, and is left out where there is none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.harness import Contender, Figures, Ratio, compare, now, rounds_from, since
from benchmarks.learner import ON_GPU, SHAPE
from recipes.cli.compose import CONF, register_resolvers, resolved
from rl.blueprint import blueprint_from
from rl.data.problems import load
from rl.engines.base import SamplingParams
from rl.engines.local.memory import default_kv_gb
from rl.engines.local.precision import autocast, compute_dtype, sampling_in
from rl.engines.local.sampler import sample
from rl.models.loading import open_renderer

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PROBLEMS, GROUP = 16, 8
NO_STOP = frozenset({-1})
VLLM = Path(os.environ.get("VLLM_PYTHON", "build/vllm/bin/python"))
VLLM_DTYPES = ("float32", "bfloat16")
VLLM_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
CACHES = {"generate_dynamic": None, "generate_static": "static"}


@dataclass(frozen=True)
class Case:
    """target, vllm_target: how many times faster than generate, with either cache, and than vLLM our sampler must be.

    compiled: whether torch.compile of our sampler is measured too.
    """

    name: str
    model: Any  # a causal language model of transformers
    prompts: Sequence[Sequence[int]]
    max_tokens: int
    stop_ids: frozenset[int]
    target: float
    vllm_target: float | None = None
    compiled: bool = False

    def settings(self) -> dict[str, Any]:
        return {"prompts": len(self.prompts), "completions": GROUP, "max_tokens": self.max_tokens}


def main(rounds: int) -> None:
    for case in (*embedded(), llama_135m()):
        with ExitStack() as stack:
            contenders = [Contender("ours", case.settings(), partial(ours, case))]
            ratios = [Ratio("tokens_per_second", "ours", name, case.target) for name in CACHES]
            if case.compiled:
                contenders.append(
                    Contender("ours_compiled", case.settings(), partial(ours, case, compiled=True))
                )
                ratios.append(Ratio("tokens_per_second", "ours_compiled", "ours"))
            for name, cache in CACHES.items():
                settings = case.settings() | {"cache": cache or "dynamic"}
                contenders.append(Contender(name, settings, partial(generate, case, cache)))
            for dtype in VLLM_DTYPES if VLLM.exists() else ():
                settings = case.settings() | {"dtype": dtype}
                measure = partial(in_vllm, stack.enter_context(vllm(case, dtype)))
                contenders.append(Contender(f"vllm_{dtype}", settings, measure))
                ratios.append(Ratio("tokens_per_second", "ours", f"vllm_{dtype}", case.vllm_target))
            for contender in contenders:
                contender.measure()  # warm-up: the first run also plans its matrix products
            compare(case.name, contenders, ratios, rounds)


def embedded() -> tuple[Case, Case]:
    """The first batch of the main job, rendered by its recipe."""
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        blueprint = blueprint_from(resolved(compose("rl_basic")))
    problems = load(blueprint.data, blueprint.seed)
    _, renderer = open_renderer(blueprint.model, blueprint.renderer)
    batch = problems.batch(0, PROBLEMS, blueprint.seed)
    prompts = [renderer.prompt(problems.messages(problem)) for problem in batch]
    model: Any = AutoModelForCausalLM.from_pretrained(blueprint.model.source)
    model = model.to(DEVICE).eval()
    return (
        Case("sampling_forced", model, prompts, 64, NO_STOP, 1.7, 1.6),
        Case("sampling_natural", model, prompts, 64, renderer.stop_ids, 2.0, 1.6),
    )


def llama_135m() -> Case:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SHAPE)).to(DEVICE).eval()
    prompts = torch.randint(SHAPE["vocab_size"], (4, 64)).tolist()
    return Case("sampling_135m", model, prompts, 128, NO_STOP, 1.4, 1.0, compiled=True)


def ours(case: Case, compiled: bool = False) -> Figures:
    params = SamplingParams(case.max_tokens, 1.0, case.stop_ids, seed=0)
    start = now()
    compute = compute_dtype(case.model, "auto")
    with sampling_in(case.model, compute, compiled):
        groups = sample(
            case.model, case.prompts, GROUP, params, default_kv_gb(DEVICE) * 2**30, compiled=compiled
        )
    return rates(since(start), sum(len(completion.tokens) for group in groups for completion in group))


def generate(case: Case, cache: str | None) -> Figures:
    """`model.generate` on left-padded prompts, at temperature 1 without top-k or top-p."""
    width = max(map(len, case.prompts))
    padding = [[0] * (width - len(prompt)) for prompt in case.prompts]
    ids = torch.tensor([[*zeros, *prompt] for zeros, prompt in zip(padding, case.prompts, strict=True)])
    mask = torch.tensor(
        [[*zeros, *[1] * len(prompt)] for zeros, prompt in zip(padding, case.prompts, strict=True)]
    )
    stops = None if case.stop_ids == NO_STOP else sorted(case.stop_ids)
    start = now()
    with autocast(DEVICE, torch.bfloat16 if ON_GPU else torch.float32):
        sequences = case.model.generate(
            input_ids=ids.to(DEVICE),
            attention_mask=mask.to(DEVICE),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=case.max_tokens,
            num_return_sequences=GROUP,
            eos_token_id=stops,
            pad_token_id=0,
            cache_implementation=cache,
        )
    tokens = sequences[:, width:].cpu()
    figures = since(start)
    ended = torch.isin(tokens, torch.tensor(sorted(case.stop_ids))).int().cumsum(-1)
    lengths = (ended == 0).sum(-1) + (ended[:, -1] > 0).int()
    return rates(figures, int(lengths.sum()))


@contextmanager
def vllm(case: Case, dtype: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has the model in vLLM and waits; see benchmarks/in_vllm.py."""
    with tempfile.TemporaryDirectory() as folder:
        case.model.save_pretrained(f"{folder}/model")
        stops = [] if case.stop_ids == NO_STOP else sorted(case.stop_ids)
        settings = {
            "model": f"{folder}/model", "dtype": dtype, "prompts": [list(prompt) for prompt in case.prompts],
            "n": GROUP, "max_tokens": case.max_tokens, "stop_ids": stops, "on_gpu": ON_GPU,
        }  # fmt: skip
        Path(folder, "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        command = [str(VLLM), f"{Path(__file__).parent}/in_vllm.py", f"{folder}/settings.json"]
        with (
            Path(folder, "log.txt").open("w") as log,
            subprocess.Popen(
                command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **VLLM_ENVIRONMENT},
            ) as process,
        ):
            assert process.stdin and process.stdout
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(Path(folder, "log.txt").read_text()[-3000:])
            try:
                yield process
            finally:
                process.stdin.close()


def in_vllm(process: subprocess.Popen[str]) -> Figures:
    assert process.stdin and process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    figures = json.loads(process.stdout.readline())
    return rates(figures, figures["tokens"])


def rates(figures: Figures, tokens: int) -> Figures:
    return {"tokens_per_second": tokens / figures["seconds"], "tokens": tokens, **figures}


if __name__ == "__main__":
    main(rounds_from(sys.argv[1:]))
