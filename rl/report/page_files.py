"""Self-contained HTML pages: pictures embedded, nothing fetched, all text escaped."""

from __future__ import annotations

import base64
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from rl.boxes import split_boxes
from rl.errors import UserError
from rl.report.style import Themed
from rl.report.words import WORDS

Language = Literal["en", "ja"]


def language_of(run_dir: Path) -> Language:
    """`report.language` in the run's config.yaml; English if it is missing."""
    try:
        config = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
        language = config["report"]["language"]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return "en"
    return language if language in WORDS else "en"


def write_page(
    path: Path, template: str, language: Language, pictures: Mapping[str, Themed], **values: Any
) -> Path:
    """Renders a template of rl/report/templates/ with the language's words and the pictures as data URLs; returns `path`."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rl.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["boxes"] = split_boxes
    embedded = {
        name: {theme: _data_url(file) for theme, file in files.items()} for name, files in pictures.items()
    }
    page = environment.get_template(template).render(
        words=WORDS[language], language=language, plots=embedded, **values
    )
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def _data_url(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes one line per row, columns in the order in which names first appear; missing values are empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def require_room(folder: Path, numbers: str) -> None:
    """Raises UserError if a file or folder blocks the page, its pictures or its CSV."""
    for name, blocks in {"report": Path.is_file, "report.html": Path.is_dir, numbers: Path.is_dir}.items():
        if blocks(folder / name):
            raise UserError(f"run={folder}: {name} is in the way of the report; move it and try again")
