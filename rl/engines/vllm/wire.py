"""HTTP calls of one vLLM server: its answers as Python values, its errors as two kinds."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from rl.errors import first_line

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 20.0
CONTROL_SECONDS = 600.0  # loading weights; a full model from a network disk takes minutes
HEALTH_SECONDS = 20.0
TOKENS = re.compile(r"^vllm:(?:prompt|generation)_tokens_total(?:\{.*\})? (\S+)", re.MULTILINE)


class Failed(Exception):
    """The server could not answer: nothing listens, the connection broke, or a status of 500 or above."""


class Refused(Exception):
    """The server refused the request. status: 400 to 499."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def new_client() -> httpx.AsyncClient:
    """A client for all servers. Each request has a connection of its own: vLLM closes idle ones after 5 s."""
    import httpx

    return httpx.AsyncClient(
        limits=httpx.Limits(max_keepalive_connections=0, max_connections=None),
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
        trust_env=False,  # a proxy would not reach the servers of a cluster
    )


async def get(client: httpx.AsyncClient, url: str) -> Any:
    """The JSON at an address. Raises Failed and Refused."""
    return await _call(client, "GET", url, None, HEALTH_SECONDS)


async def post(client: httpx.AsyncClient, url: str, body: Any = None, seconds: float | None = None) -> Any:
    """The answer to a request: JSON, or text where it is none. Raises Failed and Refused.

    seconds: the most it may take; None for completions, which may take hours.
    """
    return await _call(client, "POST", url, body, seconds)


async def _call(client: httpx.AsyncClient, method: str, url: str, body: Any, seconds: float | None) -> Any:
    import httpx

    try:
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        response = await client.request(method, url, json=body, timeout=timeout)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        kind, said = type(error).__name__, first_line(error)
        raise Failed(kind if said == kind else f"{kind}: {said}") from None
    if response.status_code >= 500:
        raise Failed(f"{response.status_code}: {message_of(response.text)}")
    if response.status_code >= 400:
        raise Refused(message_of(response.text), response.status_code)
    try:
        return response.json()
    except ValueError:
        return response.text


def message_of(text: str) -> str:
    """The message in an error's body: {"error": {"message": ...}} or FastAPI's {"detail": ...}; else the body itself."""
    try:
        body = json.loads(text)
        error = body.get("error", body.get("detail", body))
        message = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        message = text
    return " ".join(str(message).split())[:300]


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
    except (Failed, Refused):
        return None
    counts = TOKENS.findall(text) if isinstance(text, str) else []
    return sum(map(float, counts)) if counts else None
