"""A whole translation, and a whole repair: from the source to the files of the new set."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl import progress
from rl.data.translate import card, outputs, sample
from rl.data.translate.checks import LANGUAGES
from rl.data.translate.choices import Choices
from rl.data.translate.client import Client
from rl.data.translate.job import Results, run
from rl.data.translate.journal import Journal, locked
from rl.data.translate.outputs import WORK, Counts
from rl.data.translate.repair import Repaired, repair_row
from rl.data.translate.rows import Result, Translator, Wording
from rl.data.translate.source import open_repaired, open_splits
from rl.storage.disk import disk_errors


@dataclass(frozen=True)
class Outcome:
    """complete: False if the cost limit ended it. shown: the most doubtful rows."""

    folder: Path
    counts: dict[str, Counts]
    complete: bool
    shown: list[Result]
    tokens: int = 0
    usd: float = 0.0


def translate(choices: Choices) -> Outcome:
    """Translates what the journal in `choices.out` does not have yet, and writes the set from all finished rows.

    Raises UserError; what was answered until then is on disk.
    """
    choices.server.require_named()
    splits = open_splits(choices)
    folder = Path(choices.out).expanduser().absolute()
    counts = {
        split.name: Counts(read=split.report.read, source_rejected=split.report.rejected) for split in splits
    }
    total = sum(len(split.numbers) for split in splits)
    with disk_errors(f"out={choices.out}", folder):
        outputs.require_own(folder, choices.job())
        journal = Journal(folder / WORK)
        results = Results(folder / WORK / "results.jsonl", total)
        try:
            client = Client(choices.server, choices.prices, choices.max_usd, journal)
            translator = Translator(
                client, wording_of(choices), choices.checks, choices.judge, choices.attempts
            )

            rows = (row for split in splits for row in split.rows(choices))
            with progress.task("translating", total, "rows") as task:

                def finished() -> None:
                    task.done = results.finished
                    task.unit = f"rows{spending(client, choices)}"

                complete = run(rows, translator, client, choices.requests, results, finished)
            with progress.task("writing", total, "rows") as task:
                outputs.write_results(folder, choices.data, choices.to, results, counts, task)
            shown = sample.most_doubtful(results, choices.sample)
            spent, usd = client.spent.tokens, client.usd
        finally:
            results.close()
            journal.close()
        _write_facts(folder, choices, counts, complete)
        if shown:
            sample.write_page(folder, shown, folder.name, choices.to)
    return Outcome(folder, counts, complete, shown, spent, usd)


def spending(client: Client, choices: Choices) -> str:
    """What the progress shows after the rows: tokens, cost, and what the server refused, e.g. ``429: 12 times``."""
    text = f", {client.spent.tokens:,} tokens"
    if choices.price.known:
        text += f", {client.usd:.2f} USD"
    refused = ", ".join(f"{status}: {count} times" for status, count in client.refusals.items())
    return f"{text} (refused: {refused})" if refused else text


def wording_of(choices: Choices) -> Wording:
    return Wording(choices.prompts, choices.data.gold, choices.to)


def repair(choices: Choices) -> Outcome:
    """Checks and repairs the set in `choices.repair`; writes the kept rows, the changes and the rows left out."""
    found = open_repaired(choices)
    folder = Path(choices.out).expanduser().absolute()
    counts = {split: Counts() for split in found}
    total = sum(len(numbers) for _, numbers in found.values())
    direction = choices.checks.direction(choices.source_language, choices.to)

    def repaired(
        split: str, task: progress.Task
    ) -> Iterator[tuple[str, Repaired, tuple[str, str], tuple[str, str]]]:
        reader, numbers = found[split]
        for number in numbers:
            before, original = reader.texts(number), reader.originals(number)
            row = repair_row(*before, original, choices.data.gold, direction)
            task.done += 1
            yield reader.problem_id(number), row, before, original

    with disk_errors(f"out={choices.out}", folder):
        outputs.require_own(folder, {"repair": place_of(str(choices.repair))})
        with locked(folder / WORK):
            for name in (outputs.REJECTED, outputs.CHANGES):
                (folder / name).write_text("")
            with progress.task("checking", total, "rows") as task:
                for split in found:
                    rows = repaired(split, task)
                    outputs.write_repaired(folder, choices.data, choices.to, split, rows, counts[split])
            _write_facts(folder, choices, counts, complete=True)
    return Outcome(folder, counts, True, [])


def place_of(repair: str) -> str:
    """What identifies the set to repair: the absolute path of a file or folder, or the Hub id."""
    path = Path(repair).expanduser()
    return str(path.resolve()) if path.exists() else repair


def _write_facts(folder: Path, choices: Choices, counts: Mapping[str, Counts], complete: bool) -> None:
    """report.json and the card."""
    data, repairing = choices.data, choices.repair is not None
    facts: dict[str, Any] = {
        "name": folder.name,
        "to": choices.to,
        "language": LANGUAGES[choices.to],
        "source_name": Path(str(choices.repair)).name if repairing else data.name,
        "source_id": data.id if not data.path and not repairing else None,
        "license": choices.license or card.LICENSES.get(str(data.id)),
        "model": None if repairing else choices.server.model,
        "judge": None if repairing else choices.judge.model,
        "prompts": None if repairing else _texts(choices),
        "date": time.strftime("%Y-%m-%d"),
        "complete": complete,
        "why": {split: outputs.in_words(c.source_rejected + c.rejected) for split, c in counts.items()},
    }
    card.write_card(folder, outputs.write_report(folder, facts, counts), counts)


def _texts(choices: Choices) -> dict[str, str]:
    """The prompts that were used, for the card."""
    texts = dataclasses.asdict(choices.prompts)
    style = texts.pop("style").get(choices.to, "")
    texts["system"] = f"{texts['system'].strip()}\n{style.strip()}"
    wanted = [
        "system",
        "question",
        "solution",
        "again",
        *([choices.judge.kind] if choices.judge.model else []),
    ]
    return {name: texts[name] for name in wanted}
