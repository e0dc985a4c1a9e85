"""HTTP calls of one vLLM server: its answers as Python values, its errors as two kinds."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from typing import TYPE_CHECKING, Any

from rl.errors import first_line

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 20.0
CONTROL_SECONDS = 600.0  # loading weights; a full model from a network disk takes minutes
HEALTH_SECONDS = 20.0
MOST_BYTES = 2**26  # of an answer without completions
KEY = "VLLM_API_KEY"  # vLLM's own variable for the key that its servers ask for
AGAIN = (408, 425, 429)  # a gateway asks to try again later
TOKENS = re.compile(r"^vllm:(?:prompt|generation)_tokens_total(?:\{.*\})? (\S+)", re.MULTILINE)


class Failed(Exception):
    """The server could not answer: nothing listens, the connection broke, or a status that is no refusal.

    after: seconds that the server asks to wait before the next try; 0: it does not say.
    """

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


class Refused(Exception):
    """The server refused the request. status: 400 to 499."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def new_client() -> httpx.AsyncClient:
    """A client for all servers, which sends VLLM_API_KEY where it is set.

    Each request has a connection of its own: vLLM closes idle ones after 5 s.
    """
    import httpx

    key = os.environ.get(KEY, "").encode(errors="surrogateescape")
    return httpx.AsyncClient(
        headers={b"Authorization": b"Bearer " + key} if key else None,
        limits=httpx.Limits(max_keepalive_connections=0, max_connections=None),
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
        trust_env=False,  # a proxy would not reach the servers of a cluster
    )


async def get(client: httpx.AsyncClient, url: str) -> Any:
    """The answer at an address: JSON, or text where it is none. Raises Failed and Refused."""
    return await _call(client, "GET", url, None, HEALTH_SECONDS, MOST_BYTES)


async def post(
    client: httpx.AsyncClient,
    url: str,
    body: Any = None,
    seconds: float | None = None,
    most_bytes: int = MOST_BYTES,
) -> Any:
    """The answer to a request: JSON, or text where it is none. Raises Failed and Refused.

    seconds: the most it may take; None for completions, which may take hours. most_bytes: the largest answer to read.
    """
    return await _call(client, "POST", url, body, seconds, most_bytes)


async def _call(
    client: httpx.AsyncClient, method: str, url: str, body: Any, seconds: float | None, most_bytes: int
) -> Any:
    import httpx

    content = bytearray()
    try:
        # httpx limits each read; a server that sends a byte now and then would never exceed that.
        async with (
            asyncio.timeout(seconds),
            client.stream(
                method, url, json=body, timeout=httpx.Timeout(None, connect=CONNECT_SECONDS)
            ) as response,
        ):
            async for part in response.aiter_bytes():
                content += part
                if len(content) > most_bytes:
                    raise Failed(f"its answer is larger than {most_bytes:,} bytes")
    except TimeoutError:
        raise Failed(f"no whole answer in {seconds} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        kind, said = type(error).__name__, first_line(error)
        raise Failed(kind if said == kind else f"{kind}: {said}") from None
    text = content.decode(errors="replace")
    status = response.status_code
    if status in AGAIN or status >= 500:
        raise Failed(f"{status}: {message_of(text)}", seconds_of(response.headers.get("retry-after", "")))
    if status >= 400:
        raise Refused(message_of(text), status)
    if status >= 300:
        raise Failed(f"{status}: it redirects to {brief(response.headers.get('location', 'nowhere'))}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def message_of(text: str) -> str:
    """The message in an error's body: {"error": {"message": ...}} or FastAPI's {"detail": ...}; else the body itself."""
    try:
        body = json.loads(text)
        error = body.get("error", body.get("detail", body))
        message = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError, RecursionError):
        message = text
    return brief(message)


def brief(said: Any) -> str:
    """What a server said, on one line of at most 300 characters."""
    return " ".join(str(said).split())[:300]


def seconds_of(text: str) -> float:
    """The seconds of a Retry-After header; 0 for a date or anything else."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


async def is_healthy(client: httpx.AsyncClient, url: str) -> bool:
    try:
        await get(client, f"{url}/health")
    except (Failed, Refused):
        return False
    return True


async def tokens_of(client: httpx.AsyncClient, url: str) -> float | None:
    """How many tokens the server has processed since its start, by its Prometheus metrics; None where it does not say."""
    try:
        text = await get(client, f"{url}/metrics")
        counts = [float(count) for count in TOKENS.findall(text if isinstance(text, str) else "")]
    except (Failed, Refused, ValueError):
        return None
    total = sum(counts)
    return total if counts and math.isfinite(total) else None
