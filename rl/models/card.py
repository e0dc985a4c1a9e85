"""The model card of exported weights: base, training settings, measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rl.report.summary import summarize
from rl.storage.jsonl import read_jsonl

FACTS = ("max_tokens", "batch_size", "group_size", "learning_rate", "temperature", "seed")


def run_of(weights: Path) -> Path | None:
    """The run directory of `weights` (its final/ or one of its checkpoints); None for weights outside a run."""
    return next(
        (parent for parent in weights.resolve().parents[:2] if (parent / "config.yaml").is_file()), None
    )


def write_card(folder: Path, run: Path, merge: Mapping[str, Any] | None = None) -> None:
    """Writes README.md into `folder` from a run's config.yaml and metrics.jsonl; `merge` is what merging measured."""
    import jinja2
    from huggingface_hub import ModelCardData

    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    rows = read_jsonl(run / "metrics.jsonl")
    model, data = config["model"], config["data"]
    adapter = (folder / "adapter_config.json").is_file()
    front = ModelCardData(
        base_model=model.get("id") or model["name"],
        base_model_relation="adapter" if adapter else "finetune",
        datasets=[data["id"]] if data.get("id") else None,
        language=["en", "ja"] if data.get("language", "both") == "both" else [data["language"]],
        library_name="peft" if adapter else "transformers",
        license=licence_of(model),
        pipeline_tag="text-generation",
        tags=["tanka-rl", "reinforcement-learning", config["loss"]["name"], "token-budget"],
    )
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rl.models"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = environment.get_template("model_card.md.j2").render(
        front=front.to_yaml(),
        name=config["name"],
        adapter=adapter,
        model=model,
        data=data,
        loss=config["loss"]["name"],
        rewards=config["rewards"]["name"],
        length=(config.get("length") or {}).get("name"),
        facts={name: config[name] for name in FACTS},
        licence=licence_of(model),
        steps=rows[-1]["step"] if rows else 0,
        summary=summarize(rows),
        merge=merge,
        overrides=(run / "overrides.yaml").read_text(encoding="utf-8").strip(),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def licence_of(model: Mapping[str, Any]) -> str:
    """The base's licence, which the trained weights inherit; `other` if the catalogue does not name it."""
    return model.get("facts", {}).get("licence") or "other"
