"""The model catalogue: every entry composes, names a format that exists, and its figures agree with each other."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from renderers import RendererConfig

CONF = Path(__file__).parents[2] / "conf"
MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
PUBLISHED = [name for name in MODELS if name not in ("tiny", "tiny_tools", "custom")]
FORMATS = get_args(get_type_hints(RendererConfig)["name"])
CATALOGUE = [
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-0.6b-base",
    "qwen3-1.7b-base",
    "qwen3-4b-base",
    "qwen3-8b-base",
    "qwen3-14b-base",
    "qwen3-4b-instruct-2507",
    "qwen3-4b-thinking-2507",
    "qwen3.5-0.8b",
    "qwen3.5-4b",
    "qwen3.5-9b",
    "qwen2-0.5b-instruct",
    "qwen2-1.5b-instruct",
    "qwen2-7b-instruct",
    "qwen2.5-0.5b-instruct",
    "qwen2.5-1.5b-instruct",
    "qwen2.5-3b-instruct",
    "qwen2.5-7b-instruct",
    "qwen2.5-math-1.5b",
    "qwen2.5-math-1.5b-instruct",
    "qwen2.5-math-7b",
    "qwen2.5-math-7b-instruct",
    "deepseek-r1-distill-qwen-1.5b",
    "deepseek-r1-distill-qwen-7b",
    "deepseek-r1-distill-llama-8b",
    "llama-3.1-8b",
    "llama-3.1-8b-instruct",
    "llama-3.2-1b",
    "llama-3.2-1b-instruct",
    "llama-3.2-3b",
    "llama-3.2-3b-instruct",
    "smollm2-135m-instruct",
    "smollm2-360m-instruct",
    "smollm2-1.7b-instruct",
    "gemma-3-1b-it",
]


@functools.cache
def model(name: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node = compose(overrides=["+data=word_problems", f"+model={name}"])
    return OmegaConf.to_container(node, resolve=True)["model"]  # type: ignore[index,call-overload,return-value]


def test_the_promised_models_are_there() -> None:
    assert set(CATALOGUE) == set(PUBLISHED)


def test_shared_fragments_are_no_option() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        options = GlobalHydra.instance().config_loader().get_group_options("model")
    assert sorted(options) == MODELS


@pytest.mark.parametrize("name", MODELS)
def test_every_entry_has_the_same_keys(name: str) -> None:
    assert set(model(name)) == {
        *("name", "id", "path", "revision", "context", "renderer", "stop_tokens", "dtype", "quantization"),
        *("lora", "recipe", "facts"),
    }
    assert model(name)["name"] == name
    assert model(name)["renderer"] in FORMATS
    assert set(model(name)["recipe"]) == {
        *("max_tokens", "batch_size", "group_size", "learning_rate", "max_steps", "epochs", "temperature")
    }
    assert isinstance(model(name)["recipe"]["learning_rate"], float)
    if model(name)["lora"] is not None:
        assert set(model(name)["lora"]) == {"rank", "alpha", "dropout", "target_modules"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_ids_and_formats_agree(name: str) -> None:
    entry = model(name)
    assert entry["id"].lower().endswith("/" + name)
    base = name.endswith("-base") or bool(re.fullmatch(r"llama-3\.\d-\db", name))
    assert (entry["renderer"] == "role_colon") == base
    assert entry["stop_tokens"]


@pytest.mark.parametrize("name", [name for name in PUBLISHED if not name.startswith("qwen3.5")])
def test_parameters_follow_from_the_shape(name: str) -> None:
    facts = model(name)["facts"]
    assert parameters(name, facts) == facts["parameters"]


def parameters(name: str, facts: dict[str, Any]) -> int:
    """Embeddings, attention, gated MLP and norms of a decoder with these dimensions."""
    gemma, qwen3 = name.startswith("gemma"), name.startswith("qwen3")
    qwen2 = name.startswith("qwen2") or "distill-qwen" in name
    hidden, head = facts["hidden_size"], facts["head_dim"]
    queries, keys = facts["heads"] * head, facts["kv_heads"] * head
    attention = 2 * hidden * queries + 2 * hidden * keys
    attention += (queries + 2 * keys) * qwen2  # Qwen2 adds biases to its q, k and v projections
    attention += 2 * head * (qwen3 or gemma)  # Qwen3 and Gemma 3 normalise queries and keys
    norms = hidden * (4 if gemma else 2)
    inner = facts["intermediate_size"]
    router = 0
    if "experts" in facts:
        inner, router = facts["experts"] * facts["expert_size"], hidden * facts["experts"]
    layer = attention + 3 * hidden * inner + router + norms
    embeddings = facts["vocab_size"] * hidden * (1 if facts["tied_embeddings"] else 2)
    return embeddings + facts["layers"] * layer + hidden


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_size_in_the_name_is_the_size(name: str) -> None:
    match = re.search(r"-(\d+(?:\.\d+)?)(b|m)(?:-|$)", name)
    assert match is not None
    size = float(match[1]) * {"b": 1e9, "m": 1e6}[match[2]]
    assert model(name)["facts"]["parameters"] == pytest.approx(size, rel=0.25)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_thinking_length_has_a_source(name: str) -> None:
    facts = model(name)["facts"]
    assert (facts["thinking_tokens"] is None) == (facts["thinking_source"] is None)


def test_published_recipes() -> None:
    lora = {"rank": 32, "alpha": 32, "dropout": 0.0, "target_modules": "all-linear"}
    tinker = model("qwen3-8b")
    assert tinker["lora"] == lora
    assert tinker["recipe"] == {
        **{"max_tokens": 256, "batch_size": 128, "group_size": 16, "learning_rate": 4e-5},
        **{"max_steps": None, "epochs": 1, "temperature": 1.0},
    }
    trl = model("qwen2-0.5b-instruct")
    assert trl["lora"] == {"rank": 8, "alpha": 32, "dropout": 0.1, "target_modules": ["q_proj", "v_proj"]}
    assert (trl["recipe"]["group_size"], trl["recipe"]["max_tokens"]) == (4, 64)
    assert trl["recipe"]["batch_size"] == 8 * 16  # problems in a device's batch x accumulation
    for name, budget in (("deepseek-r1-distill-qwen-1.5b", 8192), ("qwen2.5-math-1.5b", 4096)):
        flash = model(name)
        assert flash["lora"] is None
        assert flash["recipe"]["batch_size"] * flash["recipe"]["group_size"] == 128
        assert (flash["recipe"]["max_tokens"], flash["recipe"]["learning_rate"]) == (budget, 1e-6)
