"""The Tinker SDK, in one place: both of its generations, waits that a signal can end, adapters brought home.

SDK 0.25 (self-hosted servers such as SkyRL 0.4) and 0.38 (the hosted service) differ in which calls wait by themselves
and in how an adapter leaves the service. `tinker` is imported late.
"""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import os
import tarfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl import signals
from rl.errors import UserError, nearest

if TYPE_CHECKING:
    from tenacity import Retrying

log = logging.getLogger("tanka")

POLL_SECONDS = 0.2  # between two looks at whether a signal has arrived
ANSWER_SECONDS = 20.0
DOWNLOAD_SECONDS = 600.0
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


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
    if key and not key.startswith(("tml-", "eyJ")):
        raise UserError(
            "TINKER_API_KEY: this is not a Tinker key; expected one that begins with tml- (any such for a server of your own)"
        )


def require_answer() -> None:
    """Raises UserError when nothing answers at TINKER_BASE_URL: the SDK would try for minutes."""
    import httpx

    if base := os.environ.get("TINKER_BASE_URL"):
        try:
            httpx.get(base, timeout=ANSWER_SECONDS)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise UserError(
                f"TINKER_BASE_URL={base}: nothing answers there ({reason(error)}); start the server, or mend the address"
            ) from None


def finished(call: Any) -> Any:
    """The value of an SDK call, waited for in a way that a signal can end; older SDKs have waited already."""
    if not hasattr(call, "result"):
        return call
    future = call.future() if hasattr(call, "future") else call
    while not wait([future], timeout=POLL_SECONDS).done:
        signals.check()
    return future.result()


@contextmanager
def service_errors(doing: str) -> Iterator[None]:
    """Turns whatever the SDK raises into one line; a key never gets into it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the SDK, its HTTP clients and its futures raise many kinds
        raise UserError(f"engine=tinker: {doing}: {reason(error)}{_advice(error)}") from error


def reason(error: BaseException) -> str:
    """One line for a log, without the key."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    key = os.environ.get("TINKER_API_KEY")
    return text.replace(key, "***") if key else text


def _advice(error: Exception) -> str:
    if "sample_sequence_ids" in str(error):
        return "; this server speaks an older API: pip install tinker==0.25.0"
    return ""


class OneLine(logging.Handler):
    """The SDK's own warnings in our log, without its tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        log.log(record.levelno, "tinker: %s", record.getMessage().split("\n")[0])


class Service:
    """A connected service. Raises UserError when it cannot be reached or does not offer `base_model`."""

    def __init__(self, base_model: str) -> None:
        import tinker

        logger = logging.getLogger("tinker")
        logger.handlers, logger.propagate = [OneLine(logging.WARNING)], False
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"rl\.engines\.tinker.*")
        self.base_model = base_model
        require_answer()
        with service_errors("connecting"):
            self.client = tinker.ServiceClient()
            self.rest = rest_client(self.client)
            ask = getattr(self.rest, "get_server_capabilities", self.client.get_server_capabilities)
            models = [model.model_name for model in finished(ask()).supported_models]
        if base_model not in models:
            close = nearest(base_model, filter(None, models), count=3)
            hint = (
                f"did you mean {' or '.join(close)}?"
                if close
                else f"it has {', '.join(sorted(filter(None, models)))}"
            )
            raise UserError(
                f"engine.base_model={base_model}: the service does not offer this model; {hint}; type engine.base_model=NAME"
            )

    def new_learner(self, rank: int, seed: int) -> Any:
        """A fresh adapter on every linear layer but the head, as PEFT's `all-linear` has it."""
        with service_errors("creating an adapter"):
            return finished(
                self.client.create_lora_training_client(
                    self.base_model, rank=rank, seed=seed % 2**31, train_unembed=False
                )
            )

    def restored_learner(self, state: str) -> Any:
        """An adapter with its optimiser, as `save_state` left them at path `state`."""
        with service_errors(f"restoring {state}"):
            return finished(self.client.create_training_client_from_state_with_optimizer(state))

    def sampler(self, learner: Any) -> Any:
        """A sampler of the learner's weights as they are now; the service keeps them no longer than it lives."""
        with service_errors("publishing the weights"):
            return finished(learner.save_weights_and_get_sampling_client())

    def save_adapter(self, learner: Any, name: str) -> str:
        """Saves the adapter where `download` can fetch it; the path of it."""
        import tinker

        with service_errors("saving the adapter"):
            if hasattr(learner, "save_weights_external"):
                try:
                    return finished(learner.save_weights_external(name)).path
                except tinker.NotFoundError:
                    pass  # a server that keeps adapters as sampler weights only
            saved = finished(learner.save_weights_for_sampler(name)).path
        run_id, _, last = saved.removeprefix("tinker://").rpartition("/")
        return f"tinker://{run_id.split('/')[0]}/sampler_weights/{last}"  # SkyRL leaves the kind out, and asks for it

    def download(self, path: str, folder: Path, base: str) -> None:
        """Writes the PEFT files of the adapter at `path`, which `save_adapter` returned, into `folder`.

        base: the Hub id or folder of the base model, for whoever loads the adapter.
        """
        with service_errors(f"downloading {path}"):
            if "/external_weights/" in path:
                urls = finished(self.rest.get_external_weights_urls(path)).urls
                files = {name: fetch(url) for name, url in urls.items() if Path(name).name in ADAPTER_FILES}
            else:
                files = adapter_in(fetch(archive_url(path)))
            config, weights = (files[name] for name in ADAPTER_FILES)
        (folder / ADAPTER_FILES[0]).write_bytes(completed(config, weights, base))
        (folder / ADAPTER_FILES[1]).write_bytes(weights)

    def checkpoints(self, run_id: str) -> list[Any]:
        """What the service keeps of one training run: objects with `tinker_path`, `checkpoint_type`, `time`."""
        with service_errors(f"listing {run_id}"):
            return finished(self.rest.list_checkpoints(run_id)).checkpoints

    def delete(self, path: str) -> None:
        with service_errors(f"deleting {path}"):
            finished(self.rest.delete_checkpoint_from_tinker_path(path))


def rest_client(client: Any) -> Any:
    """The part of the SDK that manages checkpoints."""
    import tinker

    return tinker.RestClient() if hasattr(tinker, "RestClient") else client.create_rest_client()


def archive_url(path: str) -> str:
    """Where a server keeps sampler weights as a tar archive of PEFT files; newer SDKs have no call for it."""
    run_id, _, name = path.removeprefix("tinker://").split("/")
    base = os.environ.get("TINKER_BASE_URL", "").rstrip("/")
    return f"{base}/api/v1/training_runs/{run_id}/checkpoints/{name}/archive"


def fetch(url: str) -> bytes:
    """What lies at `url`, asked for again while the network or the server fails; the key goes to the service only."""
    import httpx

    base = os.environ.get("TINKER_BASE_URL")
    headers = {"X-API-Key": os.environ.get("TINKER_API_KEY", "")} if base and url.startswith(base) else {}
    for attempt in retrying(5, passes):
        with attempt, httpx.Client(timeout=DOWNLOAD_SECONDS) as http:
            response = http.get(url, headers=headers)
            if (
                response.has_redirect_location
            ):  # to a signed address of some storage, which must not see the key
                response = http.get(response.headers["location"], follow_redirects=True)
            response.raise_for_status()
    return response.content


def passes(error: BaseException) -> bool:
    """Whether an HTTP error may be gone at the next try."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (408, 409, 429) or error.response.status_code >= 500
    return isinstance(error, httpx.TransportError)


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


def adapter_in(archive: bytes) -> dict[str, bytes]:
    """The PEFT files of a tar archive, by name; nothing else of it is read."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = {Path(member.name).name: member for member in tar if member.isfile()}
        return {name: tar.extractfile(members[name]).read() for name in ADAPTER_FILES}  # type: ignore[union-attr]


def completed(config: bytes, weights: bytes, base: str) -> bytes:
    """An adapter_config.json that PEFT reads right.

    SkyRL leaves the adapted modules out, and PEFT would then silently take its own default and drop most of the tensors.
    """
    from safetensors.torch import load

    facts = json.loads(config)
    modules = {name.partition(".lora_")[0].rpartition(".")[2] for name in load(weights)}
    facts["base_model_name_or_path"] = base
    facts["target_modules"] = facts.get("target_modules") or sorted(modules)
    facts["task_type"] = facts.get("task_type") or "CAUSAL_LM"
    return (json.dumps(facts, indent=1) + "\n").encode()
