"""Problems as Molt reads them: a saved `datasets` folder of prompts with their golds."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from renderers.tokens import decode
from rl.errors import UserError
from rl.rollouts import Problem
from rl.task import Task


def require_token_ends(task: Task) -> None:
    """Raises UserError for a chat format whose answers end with a text: Molt trains on whole sampled answers."""
    if task.renderer.stop_text is not None:
        raise UserError(
            f"renderer={task.renderer.name}: ends an answer by its text, and Molt by tokens; type renderer=chat_template, or"
            " engine=trl"
        )


def write_problems(task: Task, tokenizer: Any, chosen: Sequence[Problem], folder: Path, split: str) -> bool:
    """Writes the problems of a split to `folder`; returns whether their prompts are messages, which Molt renders.

    A tokenizer without a chat template gets text that is already rendered. Either way the agent replaces Molt's tokens by
    exactly those of the run's renderer, tools included.
    """
    from datasets import Dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    chat = bool(getattr(tokenizer, "chat_template", None))
    rows = [
        {
            "prompt": task.messages(problem) if chat else decode(tokenizer, task.prompt(problem)),
            "reward_model": {
                "ground_truth": problem.answer,
                "problem": json.dumps(dataclasses.asdict(problem)),
                "split": split,
            },
            "datasource": problem.source,
        }
        for problem in chosen
    ]
    shutil.rmtree(folder, ignore_errors=True)
    Dataset.from_list(rows).save_to_disk(folder)
    return chat
