"""A model folder without tokenizer files: the line says so, whatever is asked of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.recipes import ROOT, run_recipe


@pytest.mark.parametrize("kept", [(), ("tokenizer_config.json",), ("chat_template.jinja",)])
def test_a_folder_without_tokenizer_files_is_one_line(tmp_path: Path, kept: tuple[str, ...]) -> None:
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors", *kept):
        shutil.copy(ROOT / "assets/tiny" / name, tmp_path / "model")
    for choice in ("renderer=auto", "renderer=role_colon", "renderer=qwen3")[: 1 if kept else 3]:
        done = run_recipe("render", "model.path=model", choice, cwd=tmp_path)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
        assert "model.path=model: its tokenizer files are missing" in done.stderr


def test_a_folder_with_its_tokenizer_is_read(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "assets/tiny", tmp_path / "model")
    done = run_recipe("render", "model.path=model", cwd=tmp_path)
    assert done.returncode == 0 and "<|im_start|>user" in done.stdout, done.stderr
