"""What may lie between a client and a Tinker server: faults, and a recorder. Needs the standard library only.

Through it the newest SDK speaks to SkyRL 0.4 too: it adds the sequence ids that SkyRL leaves out of a sampling answer.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SLOW_SECONDS = 4.0
HOP_HEADERS = {
    "connection",
    "transfer-encoding",
    "content-length",
    "date",
    "server",
    "host",
    "accept-encoding",
}


class Proxy:
    """A proxy in front of `upstream` (http://127.0.0.1:PORT), running while the context is open.

    faults: by the last part of a path (asample, optim_step, ...), what happens to its first requests, in order:
    `drop` closes the connection before the server hears of the request, `lose` after it has answered, `429` and `500`
    answer in its place, `slow` waits, `fewer` asks for one completion less, `pass` does nothing; after `die` every request
    is dropped, as by a server that is gone.
    seen: requests by the last part of their path. exchanges: (path, request, status, content type, answer) of each.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream)
        self.faults: dict[str, list[str]] = defaultdict(list)
        self.seen: Counter[str] = Counter()
        self.exchanges: list[tuple[str, bytes, int, str, bytes]] = []
        self.lock = threading.Lock()
        self.dead = False
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                proxy.handle(self)

            do_GET = do_DELETE = do_POST  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def handle(self, client: BaseHTTPRequestHandler) -> None:
        body = client.rfile.read(int(client.headers.get("Content-Length") or 0))
        name = urlsplit(client.path).path.rpartition("/")[2]
        with self.lock:
            self.seen[name] += 1
            fault = self.faults[name].pop(0) if self.faults[name] else "pass"
        self.dead |= fault == "die"
        if fault == "drop" or self.dead:
            self.hang_up(client)
        elif fault in ("429", "500"):
            self.answer(client, int(fault), [], b'{"detail": "made by a test"}')
        else:
            self.pass_on(client, body, name, fault)

    def pass_on(self, client: BaseHTTPRequestHandler, body: bytes, name: str, fault: str) -> None:
        """Asks the server and answers, or not, with what it said."""
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        if fault == "fewer":
            wish = json.loads(body)
            body = json.dumps({**wish, "num_samples": wish["num_samples"] - 1}).encode()
        status, headers, answer = self.forward(client, body)
        if name == "asample" and status == 200:
            facts = json.loads(answer)
            count = json.loads(body)["num_samples"]
            facts["sample_sequence_ids"] = [f"{facts['request_id']}-{n}" for n in range(count)]
            answer = json.dumps(facts).encode()
        if fault == "lose":
            self.hang_up(client)
            return
        kind = dict(headers).get("content-type", "")
        with self.lock:
            self.exchanges.append((client.path, body, status, kind, answer))
        self.answer(client, status, headers, answer)

    def forward(
        self, client: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        headers = {k: v for k, v in client.headers.items() if k.lower() not in HOP_HEADERS}
        headers["Host"] = self.server_name  # redirects lead back through the proxy
        assert self.upstream.hostname and self.upstream.port
        connection = http.client.HTTPConnection(self.upstream.hostname, self.upstream.port, timeout=600)
        connection.request(client.command, client.path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        return response.status, [(k.lower(), v) for k, v in response.getheaders()], answer

    @property
    def server_name(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def answer(
        self, client: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], body: bytes
    ) -> None:
        client.send_response(status)
        for name, value in headers:
            if name not in HOP_HEADERS:
                client.send_header(name, value)
        client.send_header("Content-Length", str(len(body)))
        client.end_headers()
        client.wfile.write(body)

    def hang_up(self, client: BaseHTTPRequestHandler) -> None:
        client.close_connection = True
        client.connection.close()
