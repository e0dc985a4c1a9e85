"""Shows a model's answers (`recipes.sample model=tiny`), or base and trained side by side (`run=RUN_DIR`)."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from environments.base import EnvironmentConfig
from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from recipes.cli.subject import subject_of
from renderers.base import Renderer, RendererConfig
from renderers.parsing import THINK_CLOSE, THINK_OPEN
from rewards.reward_set import RewardSet
from rewards.thinking_language import script_share
from rl import progress
from rl.blueprint import EngineConfig
from rl.boxes import holds_box
from rl.budget import check_thinking_tokens
from rl.collecting import roll_out
from rl.data.config import DataConfig
from rl.data.problems import load
from rl.engines.base import SamplingParams
from rl.engines.policies import Policies
from rl.errors import UserError
from rl.loggers.console import earlier_message, mark_boxes
from rl.models.config import ModelConfig
from rl.models.hub import require_model
from rl.models.loading import open_renderer
from rl.rollouts import Parsed, Problem, Rollout, conversation
from rl.schema import build
from rl.storage.file_kinds import advice
from rl.task import open_task
from rl.terminal import open_console


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """See conf/sample.yaml."""

    model: ModelConfig
    data: DataConfig
    renderer: RendererConfig
    rewards: RewardSet
    environment: EnvironmentConfig
    engine: EngineConfig
    run: str | None
    adapter: str | None
    rows: int
    prompt: str | None
    file: str | None
    interactive: bool
    max_tokens: int
    thinking_tokens: int | None
    temperature: float
    seed: int
    device: Literal["auto", "cpu", "cuda", "mps"]

    def __post_init__(self) -> None:
        self.data.instruction = self.rewards.instruction
        if self.rows < 1:
            raise UserError(f"rows={self.rows}: expected a positive integer; e.g. rows=4")
        if self.max_tokens < 1:
            raise UserError(f"max_tokens={self.max_tokens}: expected a positive integer; e.g. max_tokens=256")
        check_thinking_tokens(self.thinking_tokens, {"max_tokens": [self.max_tokens]}, self.environment)
        # With a temperature below 1e-6, logits / temperature overflows float32.
        if self.temperature != 0 and not 1e-6 <= self.temperature < math.inf:
            raise UserError(
                f"temperature={self.temperature}: expected 0 (greedy) or a finite number of at least 1e-6;"
                " e.g. temperature=1.0"
            )
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed={self.seed}: expected a whole number from 0 to 2**63 - 1; e.g. seed=0")
        if self.prompt is not None and not self.prompt.strip():
            raise UserError("prompt: empty; expected a question; e.g. \"prompt='What is 17 + 25?'\"")
        if [self.prompt is None, self.file is None, not self.interactive].count(False) > 1:
            raise UserError("prompt, file, interactive: expected only one of them; e.g. interactive=true")


@recipe("sample", SampleConfig)
def main(composed: Composed) -> None:
    """Answers the prompts with each model; prints thinking, answers, lengths, verdicts and the time taken."""
    tree, weights, problem_seed = subject_of(composed, lambda max_tokens: {"max_tokens": max_tokens})
    config: SampleConfig = build(SampleConfig, tree)
    config.environment.check()
    if config.model.path is None:
        require_model(str(config.model.id), config.model.revision)
    batches = [problems_of(config, problem_seed)] if not config.interactive else None
    with progress.task("starting"):
        _, renderer = open_renderer(config.model, config.renderer)
        policies = config.engine.policies(config.model, renderer, weights, config.device)
    console = open_console()
    with closing(policies), closing(config.rewards):
        for problems in batches or typed(console, config.data):
            answers = answer(config, renderer, policies, problems)
            for group in zip(*(each.rollouts for each in answers.values()), strict=True):
                console.print(side_by_side(dict(zip(answers, group, strict=True))))
            console.print(totals(answers))


def problems_of(config: SampleConfig, seed: int) -> Sequence[Problem]:
    """The prompt, the file's questions, or the first rows of the test split (without one, of the train split)."""
    if config.prompt is not None:
        return [question(config.prompt, config.data)]
    if config.file is not None:
        return read_questions(Path(config.file).expanduser().absolute(), config.data)
    problems = load(config.data, seed)
    return list((problems.test or problems.train)[: config.rows])


def read_questions(path: Path, data: DataConfig) -> list[Problem]:
    """The questions of a JSONL file (`question`, optionally `answer` as plain text), or of a text file, one a line."""
    if not path.is_file():
        raise UserError(
            f"file={path}: no such file; expected .jsonl with question (and answer), or text with one question a line"
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
        found = [question(line, data) for line in lines]
    else:
        try:
            rows = [json.loads(line) for line in lines]
            found = [question(row["question"], data, str(row.get("answer", ""))) for row in rows]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"file={path}: expected one JSON object a line with question (and answer); {type(error).__name__}: {error}"
            ) from None
    if not found or not all(problem.question for problem in found):
        lacks = f"row {[bool(p.question) for p in found].index(False) + 1} has" if found else "has"
        raise UserError(f"file={path}: {lacks} no question; expected one question a line")
    return found


def question(text: str, data: DataConfig, answer: str = "") -> Problem:
    """A problem made of a typed question; answer "" means unknown.

    A format sentence of the data set at its end is removed, because `data.messages` adds one to every question.
    """
    text = text.strip()
    language = "ja" if script_share(text, "ja") > 0 else "en"
    for of, suffix in (data.suffix or {}).items():
        words = r"\s+".join(map(re.escape, suffix.strip().rstrip(".。").split()))
        found = re.search(rf"\s*{words}[.。]?$", text) if words else None
        if found and found.start():
            text, language = text[: found.start()], of
            break
    return Problem(id="typed", question=text, answer=answer, language=language, source="typed")


def typed(console: Console, data: DataConfig) -> Iterator[list[Problem]]:
    """Yields one question a line until the end of input or an empty line."""
    while True:
        try:
            line = console.input("question (empty: end)> ")
        except EOFError:
            return
        if not line.strip():
            return
        yield [question(line, data)]


@dataclass(frozen=True)
class Answers:
    """One side's rollouts, one a problem, and the seconds that sampling them all took."""

    rollouts: list[Rollout]
    seconds: float


def answer(
    config: SampleConfig, renderer: Renderer, policies: Policies, problems: Sequence[Problem]
) -> dict[str, Answers]:
    """One rollout of each problem for each side, graded if all answers are known."""
    params = SamplingParams(config.max_tokens, config.temperature, renderer.stop_ids, config.seed)
    task = open_task(config.data.messages, renderer, config.environment, config.model, config.thinking_tokens)
    answers = {}
    for side in policies.sides:
        start = time.perf_counter()
        with progress.task(side):
            rollouts = roll_out(policies.sampler(side), task, problems, 1, params)
        answers[side] = Answers(rollouts, time.perf_counter() - start)
    if all(problem.answer for problem in problems):
        for each in answers.values():
            config.rewards.score(each.rollouts, watch=False)
    return answers


def side_by_side(rollouts: Mapping[str, Rollout]) -> Panel:
    """The question, and below it one column per side with thinking, answer and verdict."""
    table = Table.grid(expand=True, padding=(0, 2))
    for _ in rollouts:
        table.add_column(ratio=1)
    table.add_row(*(Text(side, "bold cyan") for side in rollouts))
    table.add_row(*map(show_rollout, rollouts.values()))
    problem = next(iter(rollouts.values())).problem
    return Panel(Group(Text(problem.question.strip(), "bold"), "", table))


def show_rollout(rollout: Rollout) -> Group:
    """Earlier turns, thinking with its tags and the answer, with boxes highlighted, and a line of facts."""
    parsed, verdict = rollout.parsed, rollout.verdict
    ended: str = "CUT" if parsed.ended == "length" else parsed.ended
    if rollout.ended not in ("answered", "budget"):
        ended = f"ended by {rollout.ended}"
    turns = f", {len(rollout.turns)} turns" if len(rollout.turns) > 1 else ""
    if rollout.forced:
        turns = ", thinking closed at its budget"
    facts = Text(f"{rollout.length} tokens{turns}, {ended}", "dim")
    if holds_box(parsed.thinking):
        facts.append(", box in thinking", "yellow")
    if verdict is not None:
        facts.append(f", {verdict.reason} (gold {verdict.gold})", "green" if verdict.correct else "red")
    parts = [tagged_thinking(parsed), mark_boxes(parsed.text.strip(), "", "bold green")]
    earlier = [earlier_message(message) for message in conversation(rollout)[:-1]]
    return Group(*(part for part in [*earlier, *parts] if part), facts)


def tagged_thinking(parsed: Parsed) -> Text:
    """The reasoning with its think tags, whether the model or the prompt wrote the opening one."""
    text = Text()
    if parsed.prefilled or THINK_OPEN in parsed.raw:
        text.append(f"{THINK_OPEN}\n", "dim")
    text.append_text(mark_boxes(parsed.thinking.strip(), "dim italic", "bold yellow"))
    return text.append(f"\n{THINK_CLOSE}", "dim") if THINK_CLOSE in parsed.raw else text


def totals(answers: Mapping[str, Answers]) -> Table:
    """One line per side: tokens, seconds, share cut, share with a box in the reasoning, share correct if graded."""
    table = Table("", "tokens (mean)", "seconds", "cut", "box in thinking", "correct")
    for side, each in answers.items():
        rollouts, count = each.rollouts, len(each.rollouts)
        tokens = sum(r.length for r in rollouts) / count
        cut = sum(r.truncated for r in rollouts) / count
        boxed = sum(holds_box(r.parsed.thinking) for r in rollouts) / count
        graded = all(r.verdict is not None for r in rollouts)
        correct = f"{sum(r.verdict.correct for r in rollouts) / count:.0%}" if graded else "-"
        table.add_row(side, f"{tokens:.1f}", f"{each.seconds:.1f}", f"{cut:.0%}", f"{boxed:.0%}", correct)
    return table


if __name__ == "__main__":
    main()
