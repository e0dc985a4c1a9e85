"""A Tinker server that only repeats what a real one said: exchanges recorded through proxy.py, as small JSON."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.helpers.tinker_server.proxy import Proxy

NOISE = {"", "session_heartbeat", "telemetry", "dynamic_config"}  # "": a look whether the server is there


def save(exchanges: list[tuple[str, bytes, int, str, bytes]], file: Path) -> None:
    """Writes what a proxy recorded, without what only keeps a connection alive."""
    rows = [
        {
            "path": path,
            "key": key_of(path, request),
            "status": status,
            "type": kind,
            "answer": answer.decode() if kind.startswith("application/json") else None,
            "binary": None if kind.startswith("application/json") else base64.b64encode(answer).decode(),
        }
        for path, request, status, kind, answer in exchanges
        if path.rpartition("/")[2] not in NOISE and status not in (302, 408)
    ]
    file.write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")


def key_of(path: str, request: bytes) -> str:
    """What tells a request from others at the same path, whose order may differ; else it is their order that counts."""
    name = path.rpartition("/")[2]
    if name == "retrieve_future":
        return json.loads(request)["request_id"]
    if name == "save_weights_for_sampler":
        return "named" if json.loads(request).get("path") else "unnamed"
    if name == "asample":
        wish = json.loads(request)
        return json.dumps([wish["prompt"], wish["num_samples"], wish["sampling_params"]], sort_keys=True)
    return ""


class Replay(Proxy):
    """Answers from a recording; `unknown` names the requests that it does not hold.

    any_seed: completions of a prompt are answered whatever the request's seed.
    """

    def __init__(self, file: Path, any_seed: bool = False) -> None:
        super().__init__("http://127.0.0.1:1")
        self.any_seed = any_seed
        self.answers: dict[tuple[str, str], list[dict]] = defaultdict(list)
        for row in json.loads(file.read_text(encoding="utf-8")):
            self.answers[name_of(row["path"]), self.key(row["key"])].append(row)
        self.unknown: list[str] = []

    def key(self, key: str) -> str:
        return re.sub(r'"seed": \d+', '"seed": 0', key) if self.any_seed else key

    def forward(
        self, client: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        name = name_of(client.path)
        if name in NOISE:
            answer = {"session_heartbeat": b"{}", "telemetry": b'{"status": "accepted"}'}.get(name)
            return (200 if answer else 404), [("content-type", "application/json")], answer or b"{}"
        with self.lock:
            rows = self.answers.get((name, self.key(key_of(client.path, body))))
            if not rows:
                self.unknown.append(client.path)
                return 404, [("content-type", "application/json")], b'{"detail": "not recorded"}'
            row = rows.pop(0) if len(rows) > 1 else rows[0]
        answer = row["answer"].encode() if row["answer"] is not None else base64.b64decode(row["binary"])
        return row["status"], [("content-type", row["type"])], answer


def name_of(path: str) -> str:
    """The last part of a path, whatever the checkpoint in it is called; an archive is sent without a redirect."""
    return path.rpartition("/")[2].replace("archive", "download")
