"""What a running server is and can do, read once when it is first used, and what it lacks for a run."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.engines.vllm.command import lora_rank
from rl.engines.vllm.completions import PATH
from rl.engines.vllm.wire import Refused, get
from rl.errors import UserError

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("tanka")

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
RELOAD = ("/pause", "/resume", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version")
SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
)  # of a checkpoint, in its config.json


@dataclass(frozen=True)
class Facts:
    """name: of the served model in requests. root: its checkpoint. context: tokens of prompt and completion.

    paths: what the server answers. settings: vLLM's own config; {} without VLLM_SERVER_DEV_MODE=1.
    """

    name: str
    root: str
    context: int
    paths: frozenset[str]
    settings: Mapping[str, Any]

    @property
    def dtype(self) -> str | None:
        """Of weights and products, e.g. float32; the quantization where there is one; None: unknown."""
        model = self.settings.get("model_config", {})
        dtype = str(model.get("dtype", "")).removeprefix("torch.")
        return str(model.get("quantization") or dtype) or None

    @property
    def lora(self) -> Mapping[str, Any] | None:
        """vLLM's LoRA settings; None without adapters."""
        return self.settings.get("lora_config")


@dataclass(frozen=True)
class Needs:
    """What a run needs of its servers. source, hub_id: the model, where it is here. rank: of its adapters; None: none.

    publishes: whether weights are handed over. temperature: other than 0 while sampling. n: completions of a prompt.
    versions: adapters that are sampled from at the same time.
    """

    source: str
    hub_id: str | None
    rank: int | None
    publishes: bool
    temperature: float
    n: int
    versions: int = 1


async def facts_of(client: httpx.AsyncClient, url: str) -> Facts:
    """What the server says about itself. Raises Failed and Refused."""
    models = (await get(client, f"{url}/v1/models"))["data"]
    base = next(model for model in models if not model.get("parent"))
    paths = frozenset((await get(client, f"{url}/openapi.json"))["paths"])
    settings = {}
    if "/server_info" in paths:
        try:
            settings = (await get(client, f"{url}/server_info?config_format=json"))["vllm_config"]
        except Refused:
            paths -= {"/server_info"}
    return Facts(base["id"], base.get("root") or base["id"], base["max_model_len"], paths, settings)


def require_fit(url: str, facts: Facts, needs: Needs) -> None:
    """Raises UserError, naming the flag, when the server cannot do what the run needs."""

    def refuse(what: str) -> UserError:
        return UserError(f"engine.servers: {url} {what}")

    if PATH not in facts.paths:
        raise refuse(f"has no {PATH}; start it with --enable-scale-out")
    if not is_model(facts.root, needs):
        raise refuse(f"serves {facts.root}, not {needs.source}; start it with that model, or type model.path")
    uses_adapters = needs.rank is not None
    if uses_adapters and LOAD not in facts.paths:
        raise refuse(
            "takes no adapters while it runs; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora"
        )
    if needs.publishes and not uses_adapters and (missing := [p for p in RELOAD if p not in facts.paths]):
        raise refuse(f"has no {missing[0]}, so it takes no new weights; start it with VLLM_SERVER_DEV_MODE=1")
    if not facts.settings:
        if needs.temperature not in (0, 1):
            raise refuse(
                f"does not say whether its log-probabilities are those at temperature={needs.temperature}; start it with"
                " VLLM_SERVER_DEV_MODE=1 --logprobs-mode processed_logprobs"
            )
        return
    settings = facts.settings
    mode = settings["model_config"].get("logprobs_mode")
    if needs.temperature not in (0, 1) and mode != "processed_logprobs":
        raise refuse(
            f"returns {mode}, not the log-probabilities at temperature={needs.temperature}; start it with"
            " --logprobs-mode processed_logprobs"
        )
    if uses_adapters:
        if facts.lora is None:
            raise refuse(f"loads no adapters; start it with --enable-lora --max-lora-rank {rank_of(needs)}")
        if facts.lora["max_lora_rank"] < (needs.rank or 0):
            raise refuse(
                f"takes adapters up to rank {facts.lora['max_lora_rank']}, this one has {needs.rank}; start it with"
                f" --max-lora-rank {rank_of(needs)}"
            )
        if (most := facts.lora.get("max_loras") or needs.versions) < needs.versions:
            log.warning(
                "%s samples from %d adapters at once, and max_lag=%d has %d in flight: the others wait; start it with --max-loras"
                " %d", url, most, needs.versions - 1, needs.versions, needs.versions,
            )  # fmt: skip
    scheduler = settings.get("scheduler_config", {})
    if (most := scheduler.get("max_num_seqs") or needs.n) < needs.n:
        raise refuse(
            f"samples {most} completions at once, a prompt has {needs.n}; start it with --max-num-seqs {needs.n}"
        )
    on_cpu = settings.get("device_config", {}).get("device") == "cpu"
    if on_cpu and scheduler.get("enable_chunked_prefill"):
        raise refuse(
            "runs on a CPU, where a request with a seed crashes it between two chunks of a prompt; start it with"
            " --no-enable-chunked-prefill"
        )


def rank_of(needs: Needs) -> int:
    return lora_rank(needs.rank or 1) or needs.rank or 1


def is_model(root: str, needs: Needs) -> bool:
    """Whether a served checkpoint may be the run's model: its path holds the name, or both are here and of one shape.

    The log-probabilities of the first completions decide: see rl/engines/vllm/verify.py.
    """
    if plain(Path(needs.source).name) in plain(root) or (needs.hub_id and plain(needs.hub_id) in plain(root)):
        return True
    try:
        served, own = (shape(Path(folder)) for folder in (root, needs.source))
    except (OSError, ValueError):
        return False
    return served == own


def plain(name: str) -> str:
    """A name without its punctuation: models--Qwen--Qwen3-8B of a cache is Qwen/Qwen3-8B."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def shape(folder: Path) -> list[Any]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return [config.get("text_config", config).get(name) for name in SHAPE]
