"""Translates a data set, or repairs a translated one: `python -m recipes.translate data=gsm8k to=ja server=URL model=NAME out=DIR`."""

from __future__ import annotations

import itertools
import shlex
import sys

from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from rl.data.translate.choices import Choices
from rl.data.translate.run import Outcome
from rl.errors import UserError
from rl.schema import build
from rl.terminal import open_console

# Short names of two keys. `model` alone is the group of models to train, which this recipe does not have.
SHORT = {"server=": "server.url=", "model=": "server.model="}
# The data set that reads a translation, by source and language; others are read with data=jsonl.
READ_WITH = {("gsm8k", "ja"): "gsm8k_ja", ("gsm8k_ja", "ja"): "gsm8k_ja", ("gsm8k_ja", "en"): "gsm8k"}


@recipe("translate", Choices)
def run(composed: Composed) -> None:
    """Writes the new set, its card and a sample to look at; with repair=FILE checks and repairs a set that exists."""
    choices: Choices = build(Choices, composed.tree)
    if choices.push and not choices.dry_run and not choices.plan:
        from rl.models.export import require_pushable

        require_pushable(choices.repo_id)
    if choices.plan:
        show_plan(choices)
        return
    from rl.data.translate import run as whole

    if choices.repair is not None:
        outcome = whole.repair(choices)
    else:
        require_openai()
        try:
            outcome = whole.translate(choices)
        except KeyboardInterrupt:
            print("stopped; every answer so far is on disk: the same command goes on", file=sys.stderr)
            raise
    show(choices, outcome)
    if choices.push or choices.dry_run:
        push(choices, outcome)
    if not outcome.complete:
        raise UserError(
            f"max_usd={choices.max_usd:g}: reached, with {outcome.usd:.2f} USD spent; the finished rows are written; type a larger"
            " max_usd to go on"
        )


def main() -> None:
    """The command, with server=URL and model=NAME as typed."""
    sys.argv[1:] = [lengthened(argument) for argument in sys.argv[1:]]
    run()


def lengthened(argument: str) -> str:
    """The override with a short key written out."""
    for short, key in SHORT.items():
        if argument.startswith(short):
            return key + argument.removeprefix(short)
    return argument


def require_openai() -> None:
    """Raises UserError if the `openai` package is missing."""
    try:
        import openai  # noqa: F401
    except ImportError:
        raise UserError(
            "recipes.translate: needs the openai package; type pip install 'tanka-rl[translate]'"
        ) from None


def show_plan(choices: Choices) -> None:
    """Prints the requests of the first row, and an estimate of rows, tokens and cost."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from rl.data.translate.estimate import SAMPLED_ROWS, estimate
    from rl.data.translate.run import wording_of
    from rl.data.translate.source import open_splits

    console = open_console()
    splits = open_splits(choices)
    wording = wording_of(choices)
    rows = itertools.chain.from_iterable(split.rows(choices) for split in splits)
    sampled = [*itertools.islice(rows, SAMPLED_ROWS)]
    for part, messages in zip(("question", "solution"), wording.first(sampled[0]), strict=False):
        for message in messages:
            console.print(
                Panel(Text(message["content"]), title=f"{part}: {message['role']}", title_align="left")
            )
    found = estimate(wording, sampled, sum(len(split.numbers) for split in splits), choices.price)
    table = Table(show_header=False, box=None)
    for split in splits:
        table.add_row(split.name, f"{len(split.numbers):,} rows ({split.report.summary()})")
    table.add_row("requests", f"about {found.requests:,}, plus what is asked again")
    table.add_row(
        "tokens",
        f"about {found.prompt_tokens:,} sent and {found.completion_tokens:,} answered, plus the model's reasoning",
    )
    cost = (
        "unknown: type price.input= and price.output=" if found.usd is None else f"about {found.usd:.2f} USD"
    )
    table.add_row("cost", cost)
    console.print(table)


def show(choices: Choices, outcome: Outcome) -> None:
    """Prints the sample, the counts, the files and what to type next."""
    from rl.data.translate import sample

    console = open_console()
    if outcome.shown:
        console.print(sample.table(outcome.shown, choices.to))
    for split, counts in outcome.counts.items():
        console.print(f"{split}: {counts.line()}", soft_wrap=True, highlight=False, markup=False)
        if choices.repair is not None and choices.data.source.path and counts.kept < counts.read / 2:
            print(
                f"more than half left out: do the rows of {choices.data.source.path} have the same order? data.source.id=COLUMN aligns them"
            )
    if choices.repair is None:
        cost = f", {outcome.usd:.2f} USD" if choices.price.known else ""
        print(f"spent: {outcome.tokens:,} tokens{cost}")
    for name in ("sample.html", "rejected.jsonl", "changes.jsonl", "README.md"):
        if (outcome.folder / name).is_file():
            print(f"{name + ':':16}{outcome.folder / name}")
    if "train" in outcome.counts and outcome.counts["train"].kept:
        print(f"train on it: {training_command(choices, outcome)}")


def training_command(choices: Choices, outcome: Outcome) -> str:
    """The command that trains on the new set."""
    from rl.data.translate.outputs import column_names

    name = READ_WITH.get((choices.data.name, choices.to))
    path = f"data.path={shlex.quote(str(outcome.folder / 'train.jsonl'))}"
    if name:
        return f"python -m recipes.rl_basic data={name} {path}"
    question, answer = column_names(choices.data)
    columns = f"data.question={question} data.answer={answer} data.gold={choices.data.gold} data.language={choices.to}"
    return f"python -m recipes.rl_basic data=jsonl {path} {columns}"


def push(choices: Choices, outcome: Outcome) -> None:
    """Uploads the set, or shows what would be uploaded."""
    from rl.data.translate import card

    if not choices.dry_run:
        print(f"pushed: {card.push(outcome.folder, str(choices.repo_id), choices.private)}")
        return
    visibility = "private" if choices.private else "public"
    print(f"push=true would upload to {choices.repo_id or '(repo_id=null)'}, {visibility}:")
    for name, size in card.pushed_files(outcome.folder).items():
        print(f"  {size:>14,} bytes  {name}")


if __name__ == "__main__":
    main()
