"""Sampling by vLLM, run with the Python that has vLLM: `python benchmarks/in_vllm.py SETTINGS.json`, for benchmarks/sampling.py.

Loads the model, prints a line, then samples once for each line of input and prints the seconds and the tokens.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main(path: str) -> None:
    settings = json.loads(Path(path).read_text(encoding="utf-8"))
    out = os.fdopen(os.dup(1), "w")  # vLLM prints to stdout as well
    os.dup2(2, 1)
    llm, prompts, params = opened(settings)
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        figures = {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "tokens": sum(len(each.token_ids) for output in outputs for each in output.outputs),
        }
        print(json.dumps(figures), file=out, flush=True)


def opened(settings: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The engine, in this process, the prompts and how to sample them: log-probabilities are returned, as ours are."""
    from vllm import LLM, SamplingParams

    longest = max(map(len, settings["prompts"])) + settings["max_tokens"]
    llm = LLM(
        settings["model"],
        skip_tokenizer_init=True,
        dtype=settings["dtype"],
        max_model_len=longest,
        max_num_seqs=len(settings["prompts"]) * settings["n"],
        enable_prefix_caching=False,  # the same prompts come again in every round
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        # Two of them share a GPU with our own model. On a CPU, VLLM_CPU_KVCACHE_SPACE counts.
        **({"gpu_memory_utilization": 0.3} if settings["on_gpu"] else {}),
    )
    params = SamplingParams(
        n=settings["n"],
        max_tokens=settings["max_tokens"],
        temperature=1.0,
        ignore_eos=True,
        stop_token_ids=settings["stop_ids"],
        logprobs=0,
        detokenize=False,
    )
    return llm, [{"prompt_token_ids": prompt} for prompt in settings["prompts"]], params


if __name__ == "__main__":
    main(sys.argv[1])
