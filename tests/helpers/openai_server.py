"""A scripted OpenAI-compatible server over real HTTP: `python -m tests.helpers.openai_server PORT SECONDS` answers well.

Its good answers are no translations, but texts in the target language with every mark and number word of the source, so
that they pass the checks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rl.data.translate.numbers import _EN_SPOKEN, read

KANA = "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろ"


@dataclass(frozen=True)
class Answer:
    """What the server does with a request. text: the answer; body: sent as it is instead, e.g. broken JSON.

    seconds: waits first. cut: closes the connection in the middle of the body.
    """

    text: str = ""
    status: int = 200
    finish: str | None = "stop"
    seconds: float = 0.0
    body: str | None = None
    cut: bool = False
    headers: tuple[str, ...] = ()
    usage: bool = True


Script = Callable[[dict[str, Any]], Answer]


class Server:
    """Serves on a free port of this machine in a thread. requests: the bodies it got; most: of them at the same time."""

    def __init__(self, script: Script, port: int = 0) -> None:
        self.script = script
        self.port = port
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.most = self._now = 0
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(re.findall(rb"(?m)^([\w-]+): *(.*?)\r$", head))
                names = {name.lower(): value for name, value in fields.items()}
                request = json.loads(await reader.readexactly(int(names[b"content-length"])))
                self.requests.append(request)
                self.keys.add(names.get(b"authorization", b"").decode())
                self._now += 1
                self.most = max(self.most, self._now)
                answer = self.script(request)
                await asyncio.sleep(answer.seconds)
                self._now -= 1
                if not await _send(writer, answer, request):
                    return
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client or the test has ended
        finally:
            writer.close()


async def _send(writer: asyncio.StreamWriter, answer: Answer, request: dict[str, Any]) -> bool:
    body = (answer.body if answer.body is not None else _body(answer, request)).encode()
    head = [f"HTTP/1.1 {answer.status} X", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    writer.write("\r\n".join([*head, *answer.headers, "", ""]).encode())
    writer.write(body[: len(body) // 2] if answer.cut else body)
    await writer.drain()
    return not answer.cut


def _body(answer: Answer, request: dict[str, Any]) -> str:
    if answer.status != 200:
        error = {
            "message": answer.text or "scripted",
            "type": "scripted",
            "param": None,
            "code": answer.status,
        }
        return json.dumps({"error": error})
    message = {"role": "assistant", "content": answer.text}
    asked = sum(len(m["content"]) for m in request["messages"]) // 4
    usage = {
        "prompt_tokens": asked,
        "completion_tokens": len(answer.text),
        "total_tokens": asked + len(answer.text),
    }
    return json.dumps(
        {
            "id": "x", "object": "chat.completion", "created": 0, "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": answer.finish}],
            **({"usage": usage} if answer.usage else {}),
        }
    )  # fmt: skip


def text_of(request: dict[str, Any]) -> str:
    """What the first user message asks to translate."""
    content = request["messages"][1]["content"]
    return content.partition("Solution to translate:\n" if is_solution(request) else ":\n")[2].strip()


def is_solution(request: dict[str, Any]) -> bool:
    return "Solution to translate:" in request["messages"][1]["content"]


def kana(text: str) -> str:
    """A text in hiragana with the marks of an English one, and with its number words in digits."""

    def word(match: re.Match[str]) -> str:
        digest = hashlib.md5(match[0].lower().encode()).digest()
        return "".join(KANA[byte % len(KANA)] for byte in digest[: max(2, len(match[0]) // 2)])

    def spoken(match: re.Match[str]) -> str:
        stated = read(match[0], "en").stated
        return "と".join(f"{next(iter(number.readings[0]))}個" for number in stated) or match[0]

    marked = re.split(r"\[\[(\d+)[^\]]*\]\]", text)  # text, number, text, ...
    parts = [
        f"[[{part}]]" if i % 2 else re.sub(r"[A-Za-z'’]+", word, _EN_SPOKEN.sub(spoken, part))
        for i, part in enumerate(marked)
    ]
    return re.sub(r"\.\s*", "。", "".join(parts)).replace("$", "").replace("%", "パーセント").strip()


def good(request: dict[str, Any]) -> Answer:
    """A good answer to any request of recipes.translate."""
    if len(request["messages"]) == 1:
        return Answer("yes")
    return Answer(kana(text_of(request)))


if __name__ == "__main__":
    delay = float(sys.argv[2])
    with Server(lambda request: Answer(good(request).text, seconds=delay), int(sys.argv[1])) as running:
        print(running.url, flush=True)
        sys.stdin.read()
