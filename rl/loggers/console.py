"""The run on the terminal: a live view if it is interactive, else one aligned line per step.

Everything is printed through rich's shared console, so that log messages appear above the live view.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import rich
from rich.console import Group, RenderableType
from rich.live import Live
from rich.logging import RichHandler
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rl import progress
from rl.boxes import split_boxes
from rl.loggers.base import Logger, Metrics, RunInfo, SampleRow
from rl.metrics import evaluated_sets
from rl.progress_view import REFRESH_SECONDS, Bar, Row, bars, task_rows
from rl.report.summary import LAST_STEPS, MAIN_METRICS, Rows, format_value, series, summarize
from rl.storage.jsonl import read_jsonl
from rl.terminal import EscapingFormatter

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 40
THINKING_LINES = 6  # of the sample's thinking in the live view


def log_handler() -> logging.Handler:
    """The handler of the `tanka` logger: prints above the live view on a terminal, plain lines elsewhere."""
    if rich.get_console().is_interactive:
        handler: logging.Handler = RichHandler(
            show_time=False, show_path=False, show_level=False, highlighter=None
        )
    else:
        handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Warnings())
    return handler


class Warnings(EscapingFormatter):
    """Puts "warning: " before warnings and errors."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return f"warning: {text}" if record.levelno >= logging.WARNING else text


def summary_table(rows: Rows) -> Table:
    """The main metrics at the first step and as the mean of the last five; rows: of metrics.jsonl."""
    table = Table(title=f"step {rows[0]['step']} → {rows[-1]['step']}", title_justify="left")
    table.add_column("metric")
    table.add_column("first", justify="right")
    table.add_column(f"last {min(LAST_STEPS, len(rows))} (mean)", justify="right")
    for line in summarize(rows):
        table.add_row(*line)
    return table


class Console(Logger):
    """Steps and the current task with the time left, the main metrics with a sparkline each, and one sample."""

    def open(self, run: RunInfo) -> None:
        self.run = run
        self.rows = read_jsonl(run.run_dir / "metrics.jsonl", run.resumed_from)
        self.done, self.start = run.resumed_from, time.monotonic()
        self.sample: RenderableType = ""
        self.samples_seen = 0
        self.live: Live | None = None
        if rich.get_console().is_interactive:
            if Bar.shown:
                Bar.shown.pause(True)
            self.live = Live(
                get_renderable=self.view,
                console=rich.get_console(),
                refresh_per_second=1 / REFRESH_SECONDS,
            )
            self.live.start()
            rich.get_console().show_cursor()  # otherwise a run that is killed leaves a terminal without a cursor

    def log(self, step: int, metrics: Metrics) -> None:
        self.rows.append({"step": step, **metrics})
        self.done = step
        if not self.live:
            for line in plain_lines(step, self.run.total_steps, metrics):
                rich.get_console().print(line, soft_wrap=True, highlight=False, markup=False)

    def samples(self, step: int, rows: Sequence[SampleRow]) -> None:
        if self.live and rows:
            row = rows[self.samples_seen % len(rows)]  # so that each language appears in turn
            self.sample = sample_panel(step, row)
            self.samples_seen += 1

    def close(self, exit_code: int) -> None:
        if self.live:
            self.live.stop()
            if Bar.shown:
                Bar.shown.pause(False)

    def view(self) -> RenderableType:
        """All of it as it is now."""
        table = metrics_table(self.rows) if self.rows else ""
        return Group(bars([self._steps(), *task_rows()]), table, self.sample)

    def _steps(self) -> Row:
        total, elapsed = self.run.total_steps, progress.clock(time.monotonic() - self.start)
        state = progress.state()
        left = f", {progress.clock(state.run_left)} left" if state and state.run_left is not None else ""
        return self.done / total, f"{self.run.name} {self.done}/{total} steps, {elapsed} elapsed{left}"


def plain_lines(step: int, total_steps: int, metrics: Metrics) -> list[str]:
    """The step's line, preceded by the lines of the evaluations before it, if there were any."""
    label = f"step {step:>{len(str(total_steps))}}/{total_steps}"
    training = _cells(metrics, "")
    if "time/step" in metrics:
        training.append(f"{metrics['time/step']:.1f} s")
    sets = evaluated_sets(metrics)
    lines = [((name or "test").ljust(len(label)), _cells(metrics, prefix)) for name, prefix in sets.items()]
    lines.append((label, training))
    return ["  ".join([start, *cells]) for start, cells in lines]


def _cells(metrics: Metrics, prefix: str) -> list[str]:
    return [
        f"{short} {format_value(name, metrics[prefix + name]):>5}"
        for name, short in MAIN_METRICS.items()
        if prefix + name in metrics
    ]


def metrics_table(rows: Rows) -> Table:
    """One row per main metric: last value, last evaluation on each set, sparkline of all steps."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("last", justify="right")
    sets = evaluated_sets(dict.fromkeys(name for row in rows for name in row))
    for name in sets:
        table.add_column(name or "eval", justify="right")
    table.add_column("first → last", style="cyan", no_wrap=True)
    for name in MAIN_METRICS:
        _, values = series(rows, name)
        evaluated = [series(rows, f"{prefix}{name}")[1] for prefix in sets.values()]
        if values:
            last = [format_value(name, each[-1]) if each else "" for each in evaluated]
            table.add_row(name, format_value(name, values[-1]), *last, sparkline(values))
    return table


def sparkline(values: Sequence[float]) -> str:
    """The values as at most SPARK_WIDTH block characters, scaled from the lowest to the highest value."""
    count = min(len(values), SPARK_WIDTH)
    picked = [values[round(i * (len(values) - 1) / max(1, count - 1))] for i in range(count)]
    low, high = min(picked), max(picked)
    if low == high:
        return SPARKS[0] * count
    return "".join(SPARKS[int((value - low) / (high - low) * (len(SPARKS) - 1) + 0.5)] for value in picked)


def sample_panel(step: int, sample: SampleRow) -> Panel:
    """A graded completion: question, end of the thinking, answer with its box highlighted, or where it was cut."""
    cut = sample["ended"] == "length"
    question = Text(sample["question"].strip(), style="bold")
    box_style = "bold green" if sample["correct"] else "bold"
    thinking = mark_boxes(sample["thinking"].strip(), "dim italic", "bold")
    answer = mark_boxes(sample["text"].strip(), "", box_style)
    if cut:
        (answer if sample["text"] else thinking).append(f" ✂ cut after {sample['tokens']} tokens", "bold red")
    earlier = [earlier_message(message) for message in sample.get("conversation", [])[:-1]]
    verdict = f"{sample['reason']} · gold {sample['gold']} · reward {sample['reward']:.2f}"
    return Panel(
        Group(*(part for part in (question, *earlier, _last_lines(thinking), answer) if part)),
        title=f"{sample['split']} sample, step {step}",
        title_align="left",
        subtitle=Text(verdict, style="green" if sample["correct"] else "red"),
        subtitle_align="right",
        border_style="dim",
    )


def earlier_message(message: Mapping[str, Any]) -> Text:
    """A turn before the last, without its thinking, or what the environment answered."""
    if message["role"] == "assistant":
        return Text(message["text"].strip())
    return Text(f"→ {message['text'].strip()}", "cyan")


def mark_boxes(text: str, style: str, box_style: str) -> Text:
    r"""The text in `style`, with each complete `\boxed{...}` in `box_style`."""
    marked = Text()
    for piece, boxed in split_boxes(text):
        marked.append(piece, box_style if boxed else style)
    return marked


def _last_lines(text: Text) -> Text:
    """The last lines, wrapped to the console's width; rich counts kana and kanji as two cells."""
    console = rich.get_console()
    lines = text.wrap(console, max(20, console.width - 4))
    if len(lines) <= THINKING_LINES:
        return text
    return Text("\n").join([Text("…", style="dim"), *lines[-THINKING_LINES:]])
