"""A Tinker service behind its SDK: learners, samplers, saving, and downloading adapters.

SDK versions differ in how an adapter is downloaded. `tinker` is imported late.
"""

from __future__ import annotations

import io
import json
import logging
import os
import secrets
import tarfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl.engines.tinker.calls import (
    ANSWER_SECONDS,
    OneLine,
    base_url,
    finished,
    is_hosted,
    redacted,
    require_answer,
    retrying,
    service_errors,
    waited,
)
from rl.errors import Stopped, UserError, nearest
from rl.models.adapters import adapted_modules

DOWNLOAD_SECONDS = 600.0
CLOSE_SECONDS = 5.0
SAMPLING_SECONDS = 1800.0  # longest wait without any new completion
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


class Service:
    """A connected service, for adapters of `base_model`. Raises UserError when it cannot be reached.

    base_model: "" where only checkpoints are listed, downloaded or deleted.
    """

    def __init__(self, base_model: str = "") -> None:
        import tinker

        logger = logging.getLogger("tinker")
        logger.handlers, logger.propagate = [OneLine(logging.WARNING)], False
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"rl\.engines\.tinker.*")
        self.base_model = base_model
        require_answer()
        with service_errors(f"connecting to {redacted(base_url())}"):
            self.client = tinker.ServiceClient()
            self.rest = rest_client(self.client)

    def require_model(self) -> None:
        """Raises UserError when the service does not offer `base_model`."""
        capable = self.rest if hasattr(self.rest, "get_server_capabilities") else self.client
        with service_errors(f"connecting to {redacted(base_url())}"):
            capabilities = waited(capable.get_server_capabilities)
        models = sorted(filter(None, (model.model_name for model in capabilities.supported_models)))
        if self.base_model not in models:
            close = nearest(self.base_model, models, count=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(models)}"
            raise UserError(
                f"engine.base_model={self.base_model}: the service does not offer this model; {hint}; type"
                " engine.base_model=NAME"
            )

    def new_learner(self, rank: int, seed: int) -> Any:
        """A new adapter on every linear layer except the head, like PEFT's `all-linear`."""
        create = self.client.create_lora_training_client
        with service_errors("creating an adapter"):
            return waited(lambda: create(self.base_model, rank=rank, seed=seed % 2**31, train_unembed=False))

    def restored_learner(self, state: str) -> Any:
        """An adapter with its optimiser, restored from the path `state` that `save_state` returned."""
        with service_errors(f"restoring {state}"):
            return waited(lambda: self.client.create_training_client_from_state_with_optimizer(state))

    def sampler(self, learner: Any) -> Any:
        """A sampler of the learner's current weights, which the service keeps only while the sampler exists."""
        from tinker.lib.retry_handler import RetryConfig

        patience = RetryConfig(progress_timeout=SAMPLING_SECONDS)
        with service_errors("publishing the weights", Stopped):
            return waited(lambda: learner.save_weights_and_get_sampling_client(retry_config=patience))

    def save_state(self, learner: Any, name: str) -> str:
        """Saves weights and optimiser for `restored_learner`; returns their path."""
        with service_errors("saving"):
            return saved(learner.save_state, name)

    def save_adapter(self, learner: Any, name: str) -> str:
        """Saves the adapter for `download`; returns its path."""
        import tinker

        with service_errors("saving the adapter"):
            if hasattr(learner, "save_weights_external"):
                with suppress(tinker.NotFoundError):  # a server that keeps adapters as sampler weights only
                    return saved(learner.save_weights_external, name)
            elif is_hosted():
                raise UserError(
                    "engine=tinker: this SDK cannot download adapters from the hosted service; pip install --upgrade tinker"
                )
            path = saved(learner.save_weights_for_sampler, name)
        run_id, _, last = path.removeprefix("tinker://").rpartition("/")
        return (
            f"tinker://{run_id.split('/')[0]}/sampler_weights/{last}"  # SkyRL omits the kind but requires it
        )

    def download(self, path: str, folder: Path, base: str | None) -> None:
        """Writes the PEFT files of the adapter at `path`, which `save_adapter` returned, into `folder`.

        base: the Hub id or folder of the base model, for whoever loads the adapter; None: as the service names it.
        """
        with service_errors(f"downloading {path}"):
            if "/external_weights/" in path:
                urls = finished(self.rest.get_external_weights_urls(path)).urls
                named = {Path(name).name: url for name, url in urls.items()}
                files = {name: fetch(named[name]) for name in ADAPTER_FILES}
            else:
                files = adapter_in(fetch(archive_url(path)))
            config, weights = (files[name] for name in ADAPTER_FILES)
        (folder / ADAPTER_FILES[0]).write_bytes(completed(config, weights, base))
        (folder / ADAPTER_FILES[1]).write_bytes(weights)

    def checkpoints(self, run_id: str) -> list[Any]:
        """A training run's checkpoints on the service: objects with `tinker_path`, `checkpoint_type`, `time`."""
        with service_errors(f"listing {run_id}"):
            return finished(self.rest.list_checkpoints(run_id)).checkpoints

    def delete(self, path: str) -> bool:
        """Deletes the checkpoint at `path`; returns whether it existed."""
        import tinker

        with service_errors(f"deleting {path}"):
            try:
                finished(self.rest.delete_checkpoint_from_tinker_path(path))
            except tinker.NotFoundError:
                return False
        return True

    def close(self) -> None:
        """Ends the session so that the service can free its resources; failures are ignored."""
        with suppress(Exception):
            if hasattr(self.client, "close"):
                self.client.close("success").result(timeout=CLOSE_SECONDS)
            else:
                self.client.holder.close()


def saved(save: Callable[[str], Any], name: str) -> str:
    """Calls `save` with `name` and a random suffix, and returns the saved path.

    Retries once with another suffix on a name conflict (409): then the first save worked, but its response was lost.
    """
    for attempt in retrying(2, lambda error: getattr(error, "status_code", None) == 409):
        with attempt:
            path = finished(save(f"{name}-{secrets.token_hex(3)}")).path
    return path


def rest_client(client: Any) -> Any:
    """The part of the SDK that manages checkpoints."""
    import tinker

    return tinker.RestClient() if hasattr(tinker, "RestClient") else client.create_rest_client()


def archive_url(path: str) -> str:
    """The URL of sampler weights as a tar archive of PEFT files; newer SDKs have no call for it."""
    run_id, _, name = path.removeprefix("tinker://").split("/")
    return f"{base_url()}/api/v1/training_runs/{run_id}/checkpoints/{name}/archive"


def fetch(url: str) -> bytes:
    """Downloads `url`, with retries on network and server errors; sends the key to the service only."""
    import httpx

    own = url.startswith(f"{base_url()}/")
    headers = {"X-API-Key": os.environ.get("TINKER_API_KEY", "")} if own else {}
    limit = httpx.Timeout(DOWNLOAD_SECONDS, connect=ANSWER_SECONDS)
    for attempt in retrying(5, passes):
        with attempt, httpx.Client(timeout=limit) as http:
            response = http.get(url, headers=headers)
            if response.next_request:  # a redirect to signed storage, which must not get the key
                response = http.get(response.next_request.url, follow_redirects=True)
            response.raise_for_status()
    return response.content


def passes(error: BaseException) -> bool:
    """Whether an HTTP error is transient."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (408, 409, 429) or error.response.status_code >= 500
    return isinstance(error, httpx.TransportError)


def adapter_in(archive: bytes) -> dict[str, bytes]:
    """The PEFT files of a tar archive, by name; other members are not read."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = {Path(member.name).name: member for member in tar if member.isfile()}
        return {name: tar.extractfile(members[name]).read() for name in ADAPTER_FILES}  # type: ignore[union-attr]


def completed(config: bytes, weights: bytes, base: str | None) -> bytes:
    """An adapter_config.json that PEFT reads right.

    SkyRL omits target_modules; PEFT would then silently use its default and drop most of the tensors.
    """
    from safetensors.torch import load

    facts = json.loads(config)
    facts["base_model_name_or_path"] = base or facts.get("base_model_name_or_path")
    facts["target_modules"] = facts.get("target_modules") or adapted_modules(load(weights))
    facts["task_type"] = facts.get("task_type") or "CAUSAL_LM"
    return (json.dumps(facts, indent=1) + "\n").encode()
