"""Base and trained model side by side on the same prompts: `python -m recipes.sample run=runs/rl_basic/... rows=4`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from recipes.cli import Composed, recipe
from rewards.thinking_language import script_share
from rl.blueprint import Blueprint, blueprint_from
from rl.boxes import split_boxes
from rl.data.problems import load
from rl.engines.base import SamplingParams
from rl.errors import UserError
from rl.evaluation.base_and_trained import SIDES, Policies, load_policies, read_config
from rl.models.export import find_weights
from rl.models.loading import open_renderer
from rl.places import PLACES, place_in, with_places
from rl.rollouts import Problem, Rollout
from rl.schema import build
from rl.storage.file_kinds import advice

PIPE_WIDTH = 120  # columns where there is no terminal to ask


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Where something lies now that the run names under the same key."""

    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class MovedData(Moved):
    """The same, of the data set's other files too."""

    test_path: str | None = None
    source: Moved = field(default_factory=Moved)


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """See conf/sample.yaml."""

    run: str
    rows: int
    prompt: str | None
    file: str | None
    interactive: bool
    max_tokens: int | None
    temperature: float
    seed: int
    device: Literal["auto", "cpu", "cuda", "mps"]
    model: Moved = field(default_factory=Moved)
    data: MovedData = field(default_factory=MovedData)

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UserError(f"rows={self.rows}: expected a positive integer; e.g. rows=4")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(
                f"max_tokens={self.max_tokens}: expected a positive integer, or null; e.g. max_tokens=256"
            )
        # Below 1e-6 the logits divided by it overflow float32.
        if self.temperature != 0 and not 1e-6 <= self.temperature < math.inf:
            raise UserError(
                f"temperature={self.temperature}: expected 0 (greedy), or a finite number from 1e-6 up;"
                " e.g. temperature=1.0"
            )
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed={self.seed}: expected a whole number from 0 to 2**63 - 1; e.g. seed=0")
        if sum(bool(source) for source in (self.prompt, self.file, self.interactive)) > 1:
            raise UserError("prompt, file, interactive: expected one of them; e.g. interactive=true alone")


@recipe("sample", SampleConfig)
def main(composed: Composed) -> None:
    """Answers the prompts with both models and prints thinking, answer, length and verdict of each."""
    config: SampleConfig = build(SampleConfig, composed.tree)
    weights = find_weights(config.run, "run")
    places = {key: place_in(composed.tree, key) for key in PLACES}
    blueprint = blueprint_from(with_places(read_config(weights), places))
    batches = [problems_of(config, blueprint)] if not config.interactive else None
    _, renderer = open_renderer(blueprint.model, blueprint.renderer)
    policies = load_policies(blueprint.model, renderer, weights, config.device)
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    try:
        for problems in batches or typed(console):
            answers = answer(config, blueprint, policies, problems)
            for base, trained in zip(*answers.values(), strict=True):
                console.print(side_by_side(base, trained))
            if len(problems) > 1:
                console.print(totals(answers))
    finally:
        blueprint.rewards.close()


def problems_of(config: SampleConfig, blueprint: Blueprint) -> Sequence[Problem]:
    """The prompt, the file's questions, or the first rows of the test split (of the train split where there is none)."""
    if config.prompt is not None:
        return [question(config.prompt)]
    if config.file is not None:
        return read_questions(Path(config.file).expanduser().absolute())
    problems = load(blueprint.data, blueprint.seed)
    return list((problems.test or problems.train)[: config.rows])


def read_questions(path: Path) -> list[Problem]:
    """JSONL rows with `question` and perhaps `answer` (a bare one), or plain text, a question a line."""
    if not path.is_file():
        raise UserError(
            f"file={path}: no such file; expected .jsonl with question (and answer), or a question a line"
        )
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError:
        said = (
            advice(path, path.read_bytes())
            or f"{path}: is not UTF-8; save it as UTF-8 and type the same command"
        )
        raise UserError(f"file={said}") from None
    if path.suffix != ".jsonl":
        found = [question(line.strip()) for line in lines]
    else:
        try:
            rows = [json.loads(line) for line in lines]
            found = [question(row["question"], str(row.get("answer", ""))) for row in rows]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"file={path}: expected one object with question (and answer) a line ({type(error).__name__}: {error})"
            ) from None
    if not found:
        raise UserError(f"file={path}: holds no question; expected one a line")
    return found


def question(text: str, answer: str = "") -> Problem:
    """A question from outside any data set; "" for an unknown answer."""
    language = "ja" if script_share(text, "ja") > 0 else "en"
    return Problem(id="typed", question=text, answer=answer, language=language, source="typed")


def typed(console: Console) -> Iterator[list[Problem]]:
    """One question a line until the end of input or an empty line."""
    while True:
        try:
            line = console.input("question (empty: end)> ")
        except EOFError:
            return
        if not line.strip():
            return
        yield [question(line.strip())]


def answer(
    config: SampleConfig, blueprint: Blueprint, policies: Policies, problems: Sequence[Problem]
) -> dict[str, list[Rollout]]:
    """One rollout of each problem for each side; graded where the right answers are known."""
    budget, renderer = config.max_tokens or blueprint.max_tokens, policies.renderer
    params = SamplingParams(budget, config.temperature, renderer.stop_ids, config.seed)
    prompts = [renderer.prompt(blueprint.data.messages(problem)) for problem in problems]
    answers = {
        side: policies.sample(side, problems, prompts, 1, params).at(budget, renderer) for side in SIDES
    }
    if all(problem.answer for problem in problems):
        for rollouts in answers.values():
            blueprint.rewards.score(rollouts, watch=False)
    return answers


def side_by_side(base: Rollout, trained: Rollout) -> Panel:
    """The question above two columns of thinking, answer and verdict."""
    table = Table.grid(expand=True, padding=(0, 2))
    for _ in SIDES:
        table.add_column(ratio=1)
    table.add_row(*(Text(side, "bold cyan") for side in SIDES))
    table.add_row(*map(show_rollout, (base, trained)))
    return Panel(Group(Text(base.problem.question.strip(), "bold"), "", table))


def show_rollout(rollout: Rollout) -> Group:
    """Thinking, answer with its box marked, and a line of facts."""
    parsed, verdict = rollout.parsed, rollout.verdict
    answer = Text()
    for piece, boxed in split_boxes(parsed.text.strip()):
        answer.append(piece, "bold green" if boxed else "")
    facts = Text(
        f"{len(rollout.completion.tokens)} tokens, {'CUT' if parsed.ended == 'length' else parsed.ended}",
        "dim",
    )
    if verdict is not None:
        facts.append(f", {verdict.reason} (gold {verdict.gold})", "green" if verdict.correct else "red")
    parts = [Text(parsed.thinking.strip(), "italic dim"), answer]
    return Group(*(part for part in parts if part), facts)


def totals(answers: dict[str, list[Rollout]]) -> Table:
    """One line a side: mean tokens, share cut, and share correct where graded."""
    table = Table("", "tokens (mean)", "cut", "correct")
    for side, rollouts in answers.items():
        count = len(rollouts)
        tokens = sum(len(r.completion.tokens) for r in rollouts) / count
        cut = sum(r.parsed.ended == "length" for r in rollouts) / count
        graded = all(r.verdict is not None for r in rollouts)
        correct = f"{sum(r.verdict.correct for r in rollouts) / count:.0%}" if graded else "-"
        table.add_row(side, f"{tokens:.1f}", f"{cut:.0%}", correct)
    return table


if __name__ == "__main__":
    main()
