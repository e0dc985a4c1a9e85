"""Problems as Molt reads them: a saved `datasets` folder of prompts with their golds."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from renderers.base import Renderer
from renderers.tokens import decode
from rl.data.problems import ProblemSet
from rl.errors import UserError
from rl.rollouts import Message, Problem

log = logging.getLogger("tanka")

TRIED = 16  # prompts that decide the form


@dataclass(frozen=True)
class Prompts:
    """Writes a problem's prompt in the form that gives Molt's tokens exactly ours.

    chat: as messages, which Molt renders with the tokenizer's own template; otherwise as text that is already rendered.
    """

    problems: ProblemSet
    renderer: Renderer
    tokenizer: Any
    chat: bool

    def of(self, problem: Problem) -> list[Message] | str | None:
        """The prompt; None if Molt would read other tokens, e.g. a control token in the question."""
        messages = self.problems.messages(problem)
        ours = self.renderer.prompt(messages)
        if not self.chat:
            text = decode(self.tokenizer, ours)
            return text if _encoded(self.tokenizer, text) == ours else None
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return messages if _encoded(self.tokenizer, text) == ours else None


def choose_form(problems: ProblemSet, renderer: Renderer, tokenizer: Any) -> Prompts:
    """Messages where Molt's own rendering gives our tokens, else rendered text. Raises UserError where neither does."""
    if renderer.stop_text is not None:
        raise UserError(
            f"renderer={renderer.name}: ends an answer by its text, and Molt by tokens; type renderer=chat_template, or"
            " engine=trl"
        )
    tried = list(islice(problems.train, TRIED))
    for chat in (True, False):
        prompts = Prompts(problems, renderer, tokenizer, chat)
        try:
            if any(prompts.of(problem) is not None for problem in tried):
                return prompts
        except UserError:
            raise
        except Exception as error:  # a template may raise anything, e.g. when the tokenizer has none
            log.info("Molt cannot render prompts as renderer=%s does (%s)", renderer.name, error)
    raise UserError(
        f"renderer={renderer.name}: Molt would read other tokens from its prompts; type renderer=chat_template, or engine=trl"
    )


def write_problems(prompts: Prompts, chosen: Sequence[Problem], folder: Path, split: str) -> int:
    """Writes the problems of a split to `folder` and returns how many it has.

    Raises UserError when no problem is left.
    """
    from datasets import Dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    rows = []
    for problem in chosen:
        if (prompt := prompts.of(problem)) is not None:
            label = {
                "ground_truth": problem.answer,
                "problem": json.dumps(dataclasses.asdict(problem)),
                "split": split,
            }
            rows.append({"prompt": prompt, "reward_model": label, "datasource": problem.source})
    if not rows:
        raise UserError(
            f"data={prompts.problems.config.name}: Molt would read other tokens from every prompt; see renderer"
        )
    if lost := len(chosen) - len(rows):
        log.warning(
            "%d of %d problems left out: Molt would read other tokens from their prompts", lost, len(chosen)
        )
    shutil.rmtree(folder, ignore_errors=True)
    Dataset.from_list(rows).save_to_disk(folder)
    return len(rows)


def _encoded(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text=text, add_special_tokens=False)["input_ids"])
