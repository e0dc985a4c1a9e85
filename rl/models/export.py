"""Exporting weights: merged with their base, with a model card, to a folder or the Hub."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rl import progress
from rl.errors import UserError, first_line
from rl.models.adapters import BASE, base_of
from rl.models.card import run_of, write_card
from rl.storage import checkpoint

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

# Files needed only for resuming and checks.
PRIVATE = ("state.pt", checkpoint.MARKER, BASE)
# Written into every export: what merging measured. It also marks the folder as replaceable.
REPORT = "merge.json"


def find_weights(path: str, key: str) -> Path:
    """The folder with the weights: `path` itself, or final/ inside it. Raises UserError naming `key`."""
    folder = Path(path).expanduser().absolute()
    if (folder / "final").is_dir():
        folder /= "final"
    if not (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise UserError(
            f"{key}={path}: holds no weights; expected a finished run, its final/, or one of its checkpoints/step-..."
        )
    return folder


def is_adapter(weights: Path) -> bool:
    return (weights / "adapter_config.json").is_file()


def require_replaceable(out: Path, weights: Path, base: str | None) -> None:
    """Raises UserError unless `out` is new, empty or an earlier export, and does not overlap the base or the run's weights."""
    instead = f"type out={weights.name}-merged-2, or another new folder"
    place = out.resolve()
    for what, folder in _kept(weights, base):
        if place == folder or place in folder.parents or folder in place.parents:
            raise UserError(f"out={out}: is, holds or lies in {what} ({folder}); {instead}")
    if out.exists() and not out.is_dir():
        raise UserError(f"out={out}: is a file; expected a folder; {instead}")
    if out.is_dir() and any(out.iterdir()) and not _is_export(out):
        raise UserError(f"out={out}: holds something other than an earlier merge; {instead}")


def _kept(weights: Path, base: str | None) -> Iterator[tuple[str, Path]]:
    """The folders that an export must not touch, each with its description for messages."""
    yield "the adapter's own folder" if is_adapter(weights) else "the model's own folder", weights.resolve()
    if base is None and is_adapter(weights):
        base = base_of(weights)
    if base is not None and Path(base).expanduser().is_dir():
        yield "the base", Path(base).expanduser().resolve()
    if run := run_of(weights):
        for folder in (run / "final", *checkpoint.steps(run / "checkpoints")):
            yield "the run's weights", folder.resolve()


def _is_export(folder: Path) -> bool:
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and "tensors" in report


def export(weights: Path, base: str | None, out: Path, dtype: Dtype, device: str) -> dict[str, Any] | None:
    """Writes a full model with tokenizer, generation config and card to `out`; returns what merging measured.

    An adapter is merged into `base`, or into the base that it names. A full model is copied, and the result is None.
    Raises UserError.
    """
    report = None

    def write(folder: Path) -> None:
        nonlocal report
        if is_adapter(weights):
            report = _write_merged(weights, base, folder, dtype, device)
        else:
            shutil.copytree(weights, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*PRIVATE))
            if not _is_export(folder):
                _write_report(folder, {"tensors": 0})
        if run := run_of(weights):
            write_card(folder, run, report)

    checkpoint.write_folder(out, write)
    return report


def _write_merged(weights: Path, base: str | None, folder: Path, dtype: Dtype, device: str) -> dict[str, Any]:
    import torch

    from rl.models.adapters import load_adapter, merge
    from rl.models.device import resolve_device
    from rl.saving import RENDERER

    base = base or base_of(weights)
    tokenizer = _tokenizer(weights, base)
    adapted = load_adapter(weights, base, torch.device(resolve_device(device)))
    wanted = stored_dtype(adapted.get_base_model()) if dtype == "auto" else getattr(torch, dtype)
    with progress.task("merging"):
        merged, measured = merge(adapted, tokenizer, wanted)
    with progress.task("saving"):
        merged.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if (weights / RENDERER).is_file():
        shutil.copy(weights / RENDERER, folder)
    report = dataclasses.asdict(measured)
    _write_report(folder, report)
    return report


def _tokenizer(adapter: Path, base: str) -> Any:
    """The adapter's own tokenizer, else the base's: many adapters come without one. Raises UserError if neither has any."""
    from transformers import AutoTokenizer

    from rl.models.loading import has_tokenizer

    own = has_tokenizer(adapter)
    folder = Path(base).expanduser()
    if not own and folder.is_dir() and not has_tokenizer(folder):
        raise UserError(
            f"base={base}: neither this folder nor the adapter's has tokenizer files (tokenizer.json, or its vocabulary);"
            " type base=ORG/NAME, or copy them: AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)"
        )
    try:
        return AutoTokenizer.from_pretrained(adapter if own else base)
    except Exception as error:  # a damaged file makes transformers raise many kinds
        raise UserError(
            f"{f'adapter={adapter}' if own else f'base={base}'}: its tokenizer cannot be loaded ({first_line(error)}); give"
            " the adapter's base, base=FOLDER or base=ORG/NAME"
        ) from None


def _write_report(folder: Path, report: dict[str, Any]) -> None:
    (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def stored_dtype(model: Any) -> Any:
    """The dtype that the base's own checkpoint is stored in."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model.config.name_or_path).dtype or model.dtype


def files_of(folder: Path) -> dict[str, int]:
    """Every file below `folder` with its size in bytes."""
    return {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}


def require_pushable(repo_id: str | None) -> str:
    """`repo_id`, checked before anything is loaded. Raises UserError for an invalid name or a missing token."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if repo_id is None:
        raise UserError("repo_id=null: push=true needs a repository name; e.g. repo_id=me/my-model")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UserError(
            f"repo_id={repo_id}: {first_line(error)}; expected OWNER/NAME; e.g. repo_id=me/my-model"
        ) from None
    if get_token() is None:
        raise UserError("push=true: no token for the Hub; set HF_TOKEN, or log in once with: hf auth login")
    return repo_id


def push(folder: Path, repo_id: str, private: bool) -> str:
    """Uploads every file of `folder` in one commit and returns the repository's URL.

    Raises UserError when the Hub refuses, or, before uploading, when `private` is set and the repository is public.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        if private and not api.model_info(url.repo_id).private:
            raise UserError(
                f"repo_id={repo_id}: exists and is public; type private=false, or another repo_id"
            )
        api.upload_folder(
            repo_id=url.repo_id, folder_path=folder, commit_message="Upload weights, tokenizer and card"
        )
    except UserError:
        raise
    except Exception as error:  # HTTP libraries raise many kinds
        raise UserError(f"repo_id={repo_id}: the Hub refused ({first_line(error)})") from error
    return str(url)
