"""Runs in Molt's environment: drives a run's agent.py with molt.agents and a scripted sampler, and prints what came out.

stdin: {"agent": path, "model": folder, "cases": [{"prompt", "label", "turns": [[text, finish_reason], ...],
"max_tokens", "max_length"}]}; stdout, last line: one object a case.
"""

from __future__ import annotations

import asyncio
import json
import sys
from types import SimpleNamespace


class Scripted:
    """Molt's sampling client, with the answers given."""

    def __init__(self, tokenizer, turns):
        self.tokenizer, self.turns, self.asked = tokenizer, list(turns), []

    async def generate(self, tokens, params, multi_modal_data=None, session_id=None):
        text, finish = self.turns.pop(0)
        ids = self.tokenizer.encode(text, add_special_tokens=False)[: params.max_tokens]
        self.asked.append(
            {"prompt": list(tokens), "max_tokens": params.max_tokens, "stops": params.stop_token_ids}
        )
        logprobs = [{token: SimpleNamespace(logprob=-0.5)} for token in ids]
        out = SimpleNamespace(token_ids=ids, text="", finish_reason=finish, logprobs=logprobs)
        return SimpleNamespace(outputs=[out], prompt_routed_experts=None), 0


async def run(request):
    from transformers import AutoTokenizer

    from molt.agents.base import load_agent_runner

    tokenizer = AutoTokenizer.from_pretrained(request["model"])
    runner = load_agent_runner(request["agent"])

    async def one(case):
        engine = Scripted(tokenizer, case["turns"])
        params = SimpleNamespace(max_tokens=case["max_tokens"], logprobs=1, stop_token_ids=None)
        found = await runner.execute(
            prompt=case["prompt"], label=case["label"], sampling_params=params, max_length=case["max_length"],
            hf_tokenizer=tokenizer, llm_engine=engine,
        )  # fmt: skip
        return {
            "reward": found.reward, "truncated": found.truncated, "info": found.extra_logs,
            "tokens": found.observation_tokens, "ranges": found.action_ranges,
            "logprobs": found.rollout_log_probs, "asked": engine.asked,
        }  # fmt: skip

    return await asyncio.gather(*map(one, request["cases"]))  # Molt, too, runs many on one event loop


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.load(sys.stdin)))))
