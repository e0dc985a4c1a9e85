"""Many rows at once: a fixed number of requests in flight, finished rows on disk, memory that does not grow."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rl.data.translate.checks import Fault
from rl.data.translate.client import Client, Overspent
from rl.data.translate.rows import Result, SourceRow, Translator


class Results:
    """Results by row, in a file; only their places stay in memory. They are derived from the journal at each start."""

    def __init__(self, path: Path, total: int) -> None:
        self._file = path.open("w+b")
        self._places = array("q", [-1]) * total
        self.finished = 0
        self.kept = 0

    def put(self, number: int, result: Result) -> None:
        self._places[number] = self._file.seek(0, 2)
        self._file.write(json.dumps(_plain(result)).encode() + b"\n")
        self.finished += 1
        self.kept += result.kept

    def __iter__(self) -> Iterator[Result]:
        """The finished rows, in the order of the source."""
        self._file.flush()
        for place in self._places:
            if place >= 0:
                self._file.seek(place)
                yield _result(json.loads(self._file.readline()))

    def close(self) -> None:
        self._file.close()


def _plain(result: Result) -> dict[str, Any]:
    faults = [[fault.reason, fault.detail] for fault in result.faults]
    return {**result.__dict__, "source": result.source.__dict__, "faults": faults}


def _result(row: dict[str, Any]) -> Result:
    return Result(
        **{**row, "source": SourceRow(**row["source"]), "faults": [Fault(*fault) for fault in row["faults"]]}
    )


def run(
    rows: Iterator[SourceRow],
    translator: Translator,
    client: Client,
    requests: int,
    results: Results,
    on_finished: Callable[[], None],
) -> bool:
    """Translates the rows with up to `requests` of them at once; False if the cost limit ended it.

    `on_finished` is called after each row. Raises UserError when the server cannot be used; rows in flight are then lost,
    their answers that arrived are not.
    """
    return asyncio.run(_run(rows, translator, client, requests, results, on_finished))


async def _run(
    rows: Iterator[SourceRow],
    translator: Translator,
    client: Client,
    requests: int,
    results: Results,
    on_finished: Callable[[], None],
) -> bool:
    numbered = enumerate(rows)
    overspent = False

    async def work() -> None:
        nonlocal overspent
        # One iterator for all workers: each takes the next row when it is free.
        for number, row in numbered:
            try:
                result = await translator.translate(row)
            except Overspent:
                overspent = True
            else:
                results.put(number, result)
                on_finished()
            if overspent:
                return
            await asyncio.sleep(0)  # rows that come from the journal must not keep the others waiting

    async with _closing(client):
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(requests):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
    return not overspent


@asynccontextmanager
async def _closing(client: Client) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await client.close()
