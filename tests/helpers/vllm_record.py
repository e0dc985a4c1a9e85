"""Records exchanges with a real vLLM server into tests/data/vllm.json: `python -m tests.helpers.vllm_record`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import httpx

from rl.engines.base import SamplingParams
from rl.engines.vllm.completions import PATH, request_of
from tests.helpers import vllm_server
from tests.helpers.recipes import ROOT, free_port

FILE = ROOT / "tests" / "data" / "vllm.json"


def main() -> None:
    """One answer to our request, and the errors of the faults that a client can provoke."""
    vllm_server.install()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        running = vllm_server.start(
            port,
            Path(folder) / "log.txt",
            options=[*vllm_server.OPTIONS, *vllm_server.TRAINING],
            variables=vllm_server.TRAINING_VARIABLES,
        )
        try:
            recorded = record(url)
        finally:
            vllm_server.stop(running)
    FILE.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def record(url: str) -> dict[str, Any]:
    request = request_of([10, 11, 12, 13], 2, SamplingParams(4, 1.0, frozenset({1}), seed=3), 0)
    body = {"model": vllm_server.MODEL, **request}
    long = {**body, "token_ids": [10] * 5000}
    many = {**body, "sampling_params": {**request["sampling_params"], "n": 500}}
    missing = {"lora_name": "x", "lora_path": "/no/such"}
    wrong = {
        "an unknown model": (PATH, {**body, "model": "nobody"}),
        "a prompt beyond the context": (PATH, long),
        "more completions than --max-num-seqs": (PATH, many),
        "a token beyond the vocabulary": (PATH, {**body, "token_ids": [60000]}),
        "an adapter without a folder": ("/v1/load_lora_adapter", missing),
        "an adapter that is not loaded": ("/v1/unload_lora_adapter", {"lora_name": "x"}),
        "no such path": ("/v1/nothing", {}),
    }
    errors = {}
    for name, (path, sent) in wrong.items():
        answer = httpx.post(f"{url}{path}", json=sent, timeout=120)
        errors[name] = {"status": answer.status_code, "text": answer.text}
    answer = httpx.post(f"{url}{PATH}", json=body, timeout=120)
    return {"generate": {"request": request, "answer": answer.json()}, "errors": errors}


if __name__ == "__main__":
    main()
