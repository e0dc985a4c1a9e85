"""Calls of a Tinker service through its SDK: who may call, waits that end, errors as one line without secrets.

SDK 0.25 (self-hosted servers such as SkyRL 0.4) and 0.38 (the hosted service) differ in which calls wait by themselves.
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

from rl import signals
from rl.errors import UserError
from rl.models.hub import is_address

if TYPE_CHECKING:
    from tenacity import Retrying

log = logging.getLogger("tanka")

HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
POLL_SECONDS = 0.2  # between two looks at whether a signal has arrived
LOOK_SECONDS = 10.0  # between two looks at whether the service is still there
SILENT_SECONDS = 300.0  # without an answer to such a look, and it counts as gone
ANSWER_SECONDS = 20.0


def require_access() -> None:
    """Raises UserError when the SDK or the key is missing; asks nobody."""
    if importlib.util.find_spec("tinker") is None:
        raise UserError("engine=tinker: the package tinker is not installed; pip install 'tanka-rl[tinker]'")
    key = os.environ.get("TINKER_API_KEY", "")
    if not key and not os.environ.get("TINKER_CREDENTIAL_CMD"):
        raise UserError(
            "engine=tinker: no key; export TINKER_API_KEY=tml-... (a self-hosted server takes any text that begins with"
            " tml-, and TINKER_BASE_URL says where it is)"
        )
    if not key.isascii() or any(character.isspace() for character in key):
        raise UserError(
            "TINKER_API_KEY: holds white space or letters that no key has; export it without them"
        )
    if key and not key.startswith(("tml-", "eyJ")):
        raise UserError(
            "TINKER_API_KEY: this is not a Tinker key; expected one that begins with tml- (any such for a server of your own)"
        )
    if not is_address(base_url()):
        raise UserError(
            f"TINKER_BASE_URL={redacted(base_url())}: expected http://HOST:PORT, e.g. http://127.0.0.1:8000"
        )


def require_answer() -> None:
    """Raises UserError when nothing answers at TINKER_BASE_URL: the SDK would try for minutes."""
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
    """Where the service is: TINKER_BASE_URL, else the hosted one."""
    return (os.environ.get("TINKER_BASE_URL") or HOSTED).rstrip("/")


def is_hosted() -> bool:
    """Whether the service is the one that rl/engines/prices.yaml has the prices of."""
    return base_url() == HOSTED


def answers() -> bool:
    """Whether the service can be heard; an error of its own is no sound."""
    import httpx

    try:
        return httpx.get(f"{base_url()}/api/v1/healthz", timeout=ANSWER_SECONDS).status_code < 500
    except httpx.HTTPError:
        return False


def finished(call: Any) -> Any:
    """The value of an SDK call, waited for in a way that a signal can end.

    Raises UserError when the service has not been heard for SILENT_SECONDS: the SDK would wait for it without an end.
    """
    if not hasattr(call, "result"):
        return call
    future = call.future() if hasattr(call, "future") else call
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
                f"engine=tinker: {redacted(base_url())} has not answered for {looked - heard:.0f} s; once it does, the same"
                " command goes on from the last checkpoint"
            )
    return future.result()


def waited(call: Callable[[], Any]) -> Any:
    """`finished(call())`, for calls in which an older SDK waits by itself, where no signal could end it."""
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
    """Turns whatever the SDK raises into one line, raised as `kind`; a key never gets into it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the SDK, its HTTP clients and its futures raise many kinds
        raise kind(f"engine=tinker: {doing}: {reason(error)}{advice(error)}") from error


def reason(error: BaseException) -> str:
    """One line for a log, without secrets."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).partition(" For more information check:")[0]
    return redacted(text)[:300]


def redacted(text: str) -> str:
    """The text without keys, passwords in addresses and what signs an address."""
    if key := os.environ.get("TINKER_API_KEY"):
        text = text.replace(key, "***")
    text = re.sub(r"\b(tml-|eyJ)[\w.-]{8,}", "***", text)
    text = re.sub(r"//[^/@\s]+@", "//***@", text)
    return re.sub(r"(https?://[^\s'\"?]+)\?[^\s'\"]+", r"\1?***", text)


def advice(error: BaseException) -> str:
    """What to type against an error that has a known cure; "" for others."""
    import httpx
    import tinker

    # SkyRL 0.4 lacks a field of samples that newer SDKs ask for, and refuses one of theirs when it is to restore (422).
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
    """The SDK's own warnings in our log, without its tracebacks and secrets."""

    def emit(self, record: logging.LogRecord) -> None:
        log.log(record.levelno, "tinker: %s", redacted(record.getMessage().split("\n")[0]))


def retrying(attempts: int, passes: Any) -> Retrying:
    """Tries with growing pauses, which a signal can end, while `passes(error)`; the last error is raised."""
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
