"""A small server that speaks vLLM's API over real HTTP and samples from a real model; `faults` makes it fail.

`python -m tests.helpers.vllm_fake MODEL --port PORT` takes vLLM's flags. Errors come in vLLM's words.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rl.engines.base import SamplingParams
from rl.engines.local.sampler import sample
from rl.rollouts import Completion

PATHS = (
    "/v1/models", "/server_info", "/inference/v1/generate", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/pause",
    "/resume", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/weight_info", "/health",
)  # fmt: skip


class Answer(Exception):
    """An error to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.body = status, {"error": {"message": message, "type": "x", "code": status}}


class FakeVllm:
    """faults: for each path what happens to its next requests, "ok" for nothing. seen: the requests, as (path, body).

    settings: changes to what /server_info says, by section. missing: paths it does not have. key: that it asks for.
    broken: promises of the client that it broke.
    """

    def __init__(self, model: Path, lora: bool = True, port: int = 0, root: str | None = None) -> None:
        self.folder, self.lora, self.root = model, lora, root or str(model)
        self.port, self.context = port, 1024
        self.faults: dict[str, list[str]] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        self.missing: set[str] = set()
        self.key: str | None = None
        self.seen: list[tuple[str, Any]] = []
        self.broken: list[str] = []
        self.server: ThreadingHTTPServer | None = None
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> FakeVllm:
        """Serves in a thread, with the weights of its checkpoint and no adapters."""
        self.model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        self.adapted: Any = None
        self.adapters: dict[str, str] = {}
        self.flying: Counter[str] = Counter()
        self.version, self.paused, self.dead, self.tokens = "default", False, False, 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.handle(self, None)

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers.get("content-length", 0)))
                fake.handle(self, json.loads(text) if text else None)

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: object) -> None:
                pass  # a client that has gone

        self.server = Quiet(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Nothing listens any more, and what is in flight fails."""
        self.dead = True
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def __enter__(self) -> FakeVllm:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def posts(self, path: str) -> list[Any]:
        """The bodies that were sent to a path."""
        return [body for seen, body in self.seen if seen == path]

    def handle(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        path, _, query = request.path.partition("?")
        self.seen.append((path, body if body is not None else query))
        queued = self.faults.get(path) or ["ok"]
        fault = queued.pop(0) if self.faults.get(path) else "ok"
        if fault == "drop":
            request.close_connection = True
            request.connection.close()
            return
        if fault == "die":
            threading.Thread(target=self.stop).start()
        try:
            sent = request.headers.get("authorization")
            if self.key and path.startswith(("/v1", "/inference")) and sent != f"Bearer {self.key}":
                raise Answer(401, "Unauthorized")
            if path in self.missing:
                raise Answer(404, "Not Found")
            if fault.isdecimal():
                raise Answer(
                    int(fault), "EngineCore encountered an issue. See stack trace (above) for the root cause."
                )
            answer = self.answer(path, query, body, fault)
            if self.dead:
                raise Answer(500, "EngineCore encountered an issue.")
            status, data = 200, json.dumps(answer).encode()
        except Answer as error:
            status, data = error.status, json.dumps(error.body).encode()
        with contextlib.suppress(OSError):
            request.send_response(status)
            request.send_header("content-type", "application/json")
            request.send_header("content-length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)

    def answer(self, path: str, query: str, body: Any, fault: str) -> Any:
        match path:
            case "/health":
                return {}
            case "/metrics":
                return (
                    f'vllm:generation_tokens_total{{engine="0",model_name="served"}} {float(self.tokens)}\n'
                )
            case "/openapi.json":
                return {"paths": {each: {} for each in PATHS if each not in self.missing}}
            case "/v1/models":
                base = {"id": "served", "root": self.root, "parent": None, "max_model_len": self.context}
                return {
                    "data": [
                        base,
                        *({"id": name, "root": f, "parent": "served"} for name, f in self.adapters.items()),
                    ]
                }
            case "/server_info":
                return {"vllm_config": self.described()}
            case "/v1/load_lora_adapter":
                return self.load(body["lora_name"], body["lora_path"], fault)
            case "/v1/unload_lora_adapter":
                return self.unload(body["lora_name"])
            case "/inference/v1/generate":
                return self.generate(body, fault)
            case "/pause" | "/resume":
                self.paused = path == "/pause"
                return {"status": path}
            case "/collective_rpc":
                return self.reload(Path(body["kwargs"]["weights_path"]), fault)
            case "/reset_prefix_cache":
                return {"success": fault != "fails"}
            case "/update_weight_version":
                self.version = body["new_version"]
                return {"success": True}
            case "/weight_info":
                return {"weight_version": self.version}
        raise Answer(404, "Not Found")

    def described(self) -> dict[str, Any]:
        lora = {"max_lora_rank": 16, "max_loras": 3} if self.lora else None
        found: dict[str, Any] = {
            "model_config": {
                "dtype": "torch.float32",
                "logprobs_mode": "processed_logprobs",
                "quantization": None,
            },
            "lora_config": lora,
            "scheduler_config": {"max_num_seqs": 128, "enable_chunked_prefill": False},
            "device_config": {"device": "cpu"},
        }
        for section, changes in self.settings.items():
            found[section] = {**(found[section] or {}), **changes} if changes else None
        return found

    def load(self, name: str, folder: str, fault: str) -> str:
        if name in self.adapters:
            raise Answer(400, f"The lora adapter '{name}' has already been loaded.")
        if not Path(folder).is_dir():
            raise Answer(404, f"Loading lora {name} failed: No adapter found for {folder}")
        with self.lock:
            if fault != "stale" or self.adapted is None:
                if self.adapted is None:
                    self.adapted = PeftModel.from_pretrained(self.model, folder, adapter_name=name).eval()
                else:
                    self.adapted.load_adapter(folder, adapter_name=name)
            self.adapters[name] = folder
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, name: str) -> str:
        if name not in self.adapters:
            raise Answer(404, f"The lora adapter '{name}' cannot be found.")
        if self.flying[name]:
            self.broken.append(f"{name} was unloaded in flight")
        del self.adapters[name]
        return "ok"

    def reload(self, folder: Path, fault: str) -> Any:
        if not self.paused:
            self.broken.append("reloaded without a pause")
        if not folder.is_dir():
            raise Answer(500, "EngineCore encountered an issue.")
        if fault != "stale":
            with self.lock:
                missing, _ = self.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
                assert not missing, missing
        return {"results": [None]}

    def generate(self, body: dict[str, Any], fault: str) -> Any:
        name, asked = body["model"], body["sampling_params"]
        if name != "served" and name not in self.adapters:
            raise Answer(404, f"The model `{name}` does not exist. Valid aliases: served.")
        self.flying[name] += 1
        try:
            if fault == "slow":
                time.sleep(1.0)
            while fault == "hang" and not self.dead:
                time.sleep(0.05)
            with self.lock:
                folder = self.adapters.get(name)
                if folder is not None and not Path(folder).is_dir():
                    self.broken.append(f"the folder of {name} was deleted while it was loaded")
                found = self.draw(body["token_ids"], asked, name)
                self.tokens += sum(len(completion.tokens) for completion in found)
        finally:
            self.flying[name] -= 1
        choices = [self.choice(i, completion, fault) for i, completion in enumerate(found)]
        return {"choices": choices[: -1 if fault == "fewer" else None], "model": name}

    def draw(self, prompt: list[int], asked: dict[str, Any], name: str) -> list[Completion]:
        seed = asked["seed"]
        params = SamplingParams(
            asked["max_tokens"], asked["temperature"], frozenset(asked["stop_token_ids"]), seed
        )
        if self.adapted is not None and name in self.adapted.peft_config:
            self.adapted.set_adapter(name)
        off = (
            self.adapted.disable_adapter()
            if self.adapted is not None and name == "served"
            else contextlib.nullcontext()
        )
        with off:
            return sample(self.model, [prompt], asked["n"], params, 2**28)[0]

    def choice(self, index: int, completion: Completion, fault: str) -> dict[str, Any]:
        tokens, logprobs, finish = completion.tokens, completion.logprobs, completion.stop_reason
        if fault == "short":
            tokens, logprobs, finish = tokens[:2], logprobs[:2], "length"
        if fault == "half":
            logprobs = logprobs[: len(tokens) // 2]
        if fault == "lie":
            logprobs = [value - 0.5 for value in logprobs]
        content = [{"token_id": t, "logprob": value} for t, value in zip(tokens, logprobs, strict=False)]
        return {
            "index": index,
            "finish_reason": "abort" if fault == "abort" else finish,
            "token_ids": tokens,
            "weight_versions": [{"version": self.version, "start": 0, "end": len(tokens)}],
            "logprobs": {"content": content},
        }


def main() -> None:
    """Serves until the process is ended. FAKE_VLLM=fail ends it with an error, as vLLM does for an unknown flag."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int)
    parser.add_argument("--enable-lora", action="store_true")
    flags, others = parser.parse_known_args()
    print("flags:", *others, flush=True)
    if os.environ.get("FAKE_VLLM") == "fail":
        raise SystemExit("api_server.py: error: unrecognized arguments: --nosuch")
    torch.set_num_threads(1)
    with FakeVllm(Path(flags.model), flags.enable_lora, flags.port) as fake:
        print("serving at", fake.url, os.getpid(), flush=True)
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main()
