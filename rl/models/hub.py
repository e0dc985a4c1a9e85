"""The Hugging Face Hub. One request decides whether it is reachable: offline, the local cache is used without retries."""

from __future__ import annotations

import functools
import logging
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from rl import progress
from rl.errors import UserError, first_line

SECONDS = 10.0
# A checkpoint of transformers has one of them.
WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip


@contextmanager
def hub(kind: Literal["model", "dataset"], repo_id: str) -> Iterator[None]:
    """A context in which the Hub's libraries work offline if the Hub did not answer for `repo_id`."""
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = offline or not _answers(kind, repo_id)
    logger = logging.getLogger("datasets")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        logger.setLevel(level)


@functools.cache
def _answers(kind: str, repo_id: str) -> bool:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().repo_info(repo_id, repo_type=kind, timeout=SECONDS)
    except HfHubHTTPError:
        return True  # reachable; fetching the files reports what is wrong
    except Exception:  # HTTP libraries raise many kinds without a connection
        return False
    return True


def require_model(repo_id: str, revision: str | None) -> None:
    """Raises UserError, without importing torch, when a model is neither on the Hub nor in the local cache."""
    from huggingface_hub import hf_hub_download

    with hub("model", repo_id), model_errors(repo_id):
        hf_hub_download(repo_id, "config.json", revision=revision)


@contextmanager
def loading_weights(source: str, revision: str | None = None) -> Iterator[None]:
    """A task around loading a folder's or a Hub model's weights. While they are downloaded, the Hub's library shows a bar."""
    from huggingface_hub import try_to_load_from_cache

    here = Path(source).exists() or any(
        isinstance(try_to_load_from_cache(source, name, revision=revision), str) for name in WEIGHTS
    )
    with progress.task("loading weights", own_bar=not here):
        yield


@contextmanager
def model_errors(repo_id: str) -> Iterator[None]:
    """Turns a failure to fetch a model into one line with its name and what to type."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.id={repo_id}: cannot be loaded from the Hub ({first_line(error)}); connect to the network, or type"
            " model.path=FOLDER of a local checkpoint"
        ) from None


def is_address(text: str) -> bool:
    """Whether the text is http(s)://HOST, optionally with a port and a path."""
    try:
        parts = urllib.parse.urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port
        return False
