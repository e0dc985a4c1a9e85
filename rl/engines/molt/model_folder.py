"""A folder with a checkpoint's files and another context: Molt has no flag for a context or a revision."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rl.models.config import ModelConfig
from rl.models.hub import hub, model_errors


def write_model(model: ModelConfig, folder: Path) -> None:
    """Links the checkpoint's files into `folder` if the model has a context or a revision of its own; otherwise nothing.

    model.context replaces max_position_embeddings in config.json. A model of the Hub is downloaded first.
    """
    if model.context is None and (model.path is not None or model.revision is None):
        return
    source = model.local_path if model.path is not None else _downloaded(model)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file.resolve())
    if model.context is not None:
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        (config.get("text_config") or config)["max_position_embeddings"] = model.context
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _downloaded(model: ModelConfig) -> Path:
    from huggingface_hub import snapshot_download

    assert model.id is not None
    with hub("model", model.id), model_errors(model.id):
        return Path(snapshot_download(model.id, revision=model.revision))
