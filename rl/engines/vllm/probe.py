"""What a running server is and can do, read once when it is first used, and what it lacks for a run."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.engines.vllm.command import lora_rank
from rl.engines.vllm.completions import PATH
from rl.engines.vllm.wire import KEY, Failed, Refused, brief, get
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

    def setting(self, section: str, name: str) -> Any:
        """A value of vLLM's own config; None where it has none."""
        found = self.settings.get(section)
        return found.get(name) if isinstance(found, Mapping) else None

    def number(self, section: str, name: str) -> int | None:
        """The same, a whole number."""
        found = self.setting(section, name)
        return found if isinstance(found, int) else None

    @property
    def dtype(self) -> str | None:
        """Of weights and products, e.g. float32; the quantization where there is one; None: unknown."""
        dtype = str(self.setting("model_config", "dtype") or "").removeprefix("torch.")
        return brief(self.setting("model_config", "quantization") or dtype) or None


@dataclass(frozen=True)
class Needs:
    """What a run needs of its servers. source, hub_id: the model, where it is here. rank: of its adapters; None: none.

    publishes: whether weights are handed over. temperature: other than 0 while sampling. n: completions of a prompt.
    versions: adapters that are sampled from at the same time. vocabulary: the model's number of token ids.
    """

    source: str
    hub_id: str | None
    rank: int | None
    publishes: bool
    temperature: float
    n: int
    versions: int = 1
    vocabulary: float = math.inf


async def facts_of(client: httpx.AsyncClient, url: str) -> Facts:
    """What the server says about itself. Raises Failed, also for an answer that is not vLLM's, Refused, and UserError.

    The last is for a server that asks for a key: waiting would not help.
    """
    try:
        models = await get(client, f"{url}/v1/models")
    except Refused as error:
        if error.status != 401:
            raise
        sent = "takes another key than the one in" if os.environ.get(KEY) else "asks for a key; put it into"
        raise UserError(f"engine.servers: {url} {sent} the environment variable {KEY}") from None
    described = await get(client, f"{url}/openapi.json")
    try:
        base: Any = next((model for model in models["data"] if not model.get("parent")), None)
        name, context = base["id"], base["max_model_len"]
        root, paths = base.get("root") or name, frozenset(described["paths"])
    except (LookupError, TypeError, AttributeError) as error:
        raise Failed(
            f"it does not describe itself as vLLM does ({type(error).__name__}: {brief(error)})"
        ) from None
    if not (isinstance(name, str) and isinstance(root, str) and isinstance(context, int)):
        raise Failed(
            f"it does not describe itself as vLLM does (max_model_len={brief(context)}, id={brief(name)})"
        )
    settings: Any = None
    if "/server_info" in paths:
        try:
            info = await get(client, f"{url}/server_info?config_format=json")
            settings = info.get("vllm_config") if isinstance(info, dict) else None
        except Refused:
            paths -= {"/server_info"}
    return Facts(name, root, context, paths, settings if isinstance(settings, dict) else {})


def require_fit(url: str, facts: Facts, needs: Needs) -> None:
    """Raises UserError, naming the flag, when the server cannot do what the run needs."""

    def refuse(what: str) -> UserError:
        return UserError(f"engine.servers: {url} {what}")

    if PATH not in facts.paths:
        raise refuse(f"has no {PATH}; start it with --enable-scale-out")
    if not is_model(facts.root, needs):
        raise refuse(
            f"serves {brief(facts.root)}, not {needs.source}; start it with that model, or type model.path"
        )
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
    mode = facts.setting("model_config", "logprobs_mode")
    if needs.temperature not in (0, 1) and mode != "processed_logprobs":
        raise refuse(
            f"returns {brief(mode)}, not the log-probabilities at temperature={needs.temperature}; start it with"
            " --logprobs-mode processed_logprobs"
        )
    if uses_adapters:
        if not facts.settings.get("lora_config"):
            raise refuse(f"loads no adapters; start it with --enable-lora --max-lora-rank {rank_of(needs)}")
        rank = needs.rank or 0
        if (highest := facts.number("lora_config", "max_lora_rank") or rank) < rank:
            raise refuse(
                f"takes adapters up to rank {highest}, this one has {rank}; start it with"
                f" --max-lora-rank {rank_of(needs)}"
            )
        if (most := facts.number("lora_config", "max_loras") or needs.versions) < needs.versions:
            log.warning(
                "%s samples from %d adapters at once, and max_lag=%d has %d in flight: the others wait; start it with --max-loras"
                " %d", url, most, needs.versions - 1, needs.versions, needs.versions,
            )  # fmt: skip
    if (most := facts.number("scheduler_config", "max_num_seqs") or needs.n) < needs.n:
        raise refuse(
            f"samples {most} completions at once, a prompt has {needs.n}; start it with --max-num-seqs {needs.n}"
        )
    on_cpu = facts.setting("device_config", "device") == "cpu"
    if on_cpu and facts.setting("scheduler_config", "enable_chunked_prefill"):
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
    names = [plain(Path(needs.source).name), plain(needs.hub_id or "")]
    if any(name and name in plain(root) for name in names):
        return True
    try:
        served, own = (shape(Path(folder)) for folder in (root, needs.source))
    except (OSError, ValueError, AttributeError):  # AttributeError: a config.json that holds no object
        return False
    return served == own


def plain(name: str) -> str:
    """A name without its punctuation: models--Qwen--Qwen3-8B of a cache is Qwen/Qwen3-8B."""
    return re.sub(r"[\W_]", "", name.lower())


def shape(folder: Path) -> list[Any]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return [config.get("text_config", config).get(name) for name in SHAPE]
