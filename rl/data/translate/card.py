"""The dataset card, and pushing the folder to the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl.data.translate.outputs import WORK, Counts
from rl.errors import UserError, first_line

CARD = "README.md"
# Licences of the shipped data sets, by Hub id, as their own cards state them.
LICENSES = {
    "openai/gsm8k": "mit",
    "open-multilang/gsm8k-106": "mit",
    "AI-MO/NuminaMath-TIR": "apache-2.0",
}


def write_card(folder: Path, report: Mapping[str, Any], counts: Mapping[str, Counts]) -> Path:
    """Writes README.md from the report's facts and counts."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rl.data.translate"), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )  # fmt: skip
    path = folder / CARD
    text = environment.get_template("card.md.j2").render(report=report, counts=counts)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def pushed_files(folder: Path) -> dict[str, int]:
    """The files that push=true uploads, with their sizes in bytes."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] != WORK and not path.name.startswith(".")
    }


def push(folder: Path, repo_id: str, private: bool) -> str:
    """Uploads the set in one commit and returns its URL. Raises UserError when the Hub refuses."""
    from huggingface_hub import HfApi

    api, files = HfApi(), pushed_files(folder)
    try:
        url = api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        if private and not api.dataset_info(url.repo_id).private:
            raise UserError(
                f"repo_id={repo_id}: exists and is public; type private=false, or another repo_id"
            )
        api.upload_folder(
            repo_id=url.repo_id,
            repo_type="dataset",
            folder_path=folder,
            allow_patterns=list(files),
            commit_message="Upload the translated data set",
        )
    except UserError:
        raise
    except Exception as error:  # HTTP libraries raise many kinds
        raise UserError(f"repo_id={repo_id}: the Hub refused ({first_line(error)})") from error
    return str(url)
