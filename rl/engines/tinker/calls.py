"""Calls to a Tinker service through its SDK: access checks, interruptible waits, one-line errors without secrets.

SDK 0.25 (self-hosted servers such as SkyRL 0.4) and 0.38 (the hosted service) differ in which calls block.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rl import progress, signals
from rl.errors import UserError
from rl.models.hub import is_address

if TYPE_CHECKING:
    from tenacity import Retrying

log = logging.getLogger("tanka")

HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
POLL_SECONDS = 0.2  # signal-check interval
LOOK_SECONDS = 10.0  # health-check interval
SILENT_SECONDS = 300.0  # the service counts as gone after failing health checks for this long
ANSWER_SECONDS = 20.0  # timeout of a health check or a connection


def require_access() -> None:
    """Raises UserError when the SDK or the key is missing or malformed; sends nothing."""
    if importlib.util.find_spec("tinker") is None:
        raise UserError("engine=tinker: the package tinker is not installed; pip install 'tanka-rl[tinker]'")
    key = os.environ.get("TINKER_API_KEY", "")
    if not key and not os.environ.get("TINKER_CREDENTIAL_CMD"):
        raise UserError(
            "engine=tinker: no key; export TINKER_API_KEY=tml-... (for a self-hosted server, any text that starts with"
            " tml-, and TINKER_BASE_URL with its address)"
        )
    if not key.isascii() or any(character.isspace() for character in key):
        raise UserError(
            "TINKER_API_KEY: contains whitespace or non-ASCII characters; export the key without them"
        )
    if key and not key.startswith(("tml-", "eyJ")):
        raise UserError(
            "TINKER_API_KEY: not a Tinker key; expected one that starts with tml- (for a self-hosted server, any such text)"
        )
    if not is_address(base_url()):
        raise UserError(
            f"TINKER_BASE_URL={redacted(base_url())}: expected http://HOST:PORT, e.g. http://127.0.0.1:8000"
        )


def require_answer() -> None:
    """Raises UserError when nothing answers at TINKER_BASE_URL, where the SDK would retry for minutes."""
    import httpx

    if os.environ.get("TINKER_BASE_URL"):
        try:
            httpx.get(base_url(), timeout=ANSWER_SECONDS)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise UserError(
                f"TINKER_BASE_URL={redacted(base_url())}: nothing answers there ({reason(error)}); start the server or"
                " correct the address, then type the same command again"
            ) from None


def base_url() -> str:
    """The service's address: TINKER_BASE_URL, or the hosted service."""
    return (os.environ.get("TINKER_BASE_URL") or HOSTED).rstrip("/")


def is_hosted() -> bool:
    """Whether it is the hosted service, whose prices are in rl/engines/prices.yaml."""
    return base_url() == HOSTED


def answers() -> bool:
    """Whether the service responds to a health check with a status below 500."""
    import httpx

    try:
        return httpx.get(f"{base_url()}/api/v1/healthz", timeout=ANSWER_SECONDS).status_code < 500
    except httpx.HTTPError:
        return False


def finished(call: Any) -> Any:
    """Waits for the value of an SDK call; a signal can interrupt the wait.

    Raises UserError when the service has not responded for SILENT_SECONDS, where the SDK would wait forever.
    """
    if not hasattr(call, "result"):
        return call
    future = future_of(call)
    heard = looked = time.monotonic()
    warned = False
    while not wait([future], timeout=POLL_SECONDS).done:
        signals.check()
        if time.monotonic() - looked < LOOK_SECONDS:
            continue
        looked = time.monotonic()
        if answers():
            heard, warned = looked, False
        elif not warned:
            warned = True
            log.warning("%s does not answer; waiting for it", redacted(base_url()))
        elif looked - heard >= SILENT_SECONDS:
            future.cancel()
            raise UserError(
                f"engine=tinker: {redacted(base_url())} has not answered for {looked - heard:.0f} s; type the same command"
                " again once it does, to resume from the last checkpoint"
            )
    return future.result()


def future_of(call: Any) -> Any:
    """The future behind an SDK call that has a `result`."""
    return call.future() if hasattr(call, "future") else call


def is_done(call: Any) -> bool:
    return not hasattr(call, "result") or future_of(call).done()


def waited(call: Callable[[], Any]) -> Any:
    """`finished(call())` in a thread, for calls that block in older SDKs and could not be interrupted."""
    begun: Future[Any] = Future()

    def begin() -> None:
        try:
            begun.set_result(call())
        except BaseException as error:
            begun.set_exception(error)

    threading.Thread(target=begin, daemon=True).start()
    return finished(finished(begun))


@contextmanager
def service_errors(doing: str, kind: type[UserError] = UserError) -> Iterator[None]:
    """Raises any SDK error as `kind`, with a one-line message that never contains a key."""
    try:
        with progress.task(doing.partition(";")[0]):
            yield
    except UserError:
        raise
    except Exception as error:  # the SDK, its HTTP clients and its futures raise many kinds
        raise kind(f"engine=tinker: {doing}: {reason(error)}{advice(error)}") from error


def reason(error: BaseException) -> str:
    """The error as one line without secrets, at most 300 characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).partition(" For more information check:")[0]
    return redacted(text)[:300]


def redacted(text: str) -> str:
    """The text without keys, passwords in addresses, and query strings, which may hold signatures."""
    if key := os.environ.get("TINKER_API_KEY"):
        text = text.replace(key, "***")
    text = re.sub(r"\b(tml-|eyJ)[\w.-]{8,}", "***", text)
    text = re.sub(r"//[^/@\s]+@", "//***@", text)
    return re.sub(r"(https?://[^\s'\"?]+)\?[^\s'\"]+", r"\1?***", text)


def advice(error: BaseException) -> str:
    """The fix to append to an error message; "" when none is known."""
    import httpx
    import tinker

    # SkyRL 0.4 lacks a field of samples that newer SDKs expect, and rejects their restore requests with 422.
    refused = getattr(error, "status_code", None) == 422 and not is_hosted()
    if "sample_sequence_ids" in str(error) or refused:
        return "; this server may speak an older API: pip install tinker==0.25.0"
    status = getattr(error, "status_code", None)
    if status in (401, 403):
        return "; does TINKER_API_KEY belong to this service?"
    if isinstance(error, (httpx.TransportError, tinker.APIConnectionError)) or (status or 0) >= 500:
        return "; type the same command again once the service answers"
    return ""


class OneLine(logging.Handler):
    """Forwards the SDK's warnings to our log, without tracebacks and secrets."""

    def emit(self, record: logging.LogRecord) -> None:
        log.log(record.levelno, "tinker: %s", redacted(record.getMessage().split("\n")[0]))


def retrying(attempts: int, passes: Any) -> Retrying:
    """Retries while `passes(error)`, with growing pauses that a signal can interrupt; re-raises the last error."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

    return Retrying(
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(max=30),
        retry=retry_if_exception(passes),
        sleep=_sleep,
        reraise=True,
    )


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        signals.check()
        time.sleep(min(POLL_SECONDS, left))
