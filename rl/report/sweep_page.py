"""A sweep's folder as one self-contained HTML page: results by budget, and the state of each job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rl.errors import UserError
from rl.report.page_files import Language, language_of, require_room, write_csv, write_page
from rl.report.style import save_themed
from rl.report.summary import format_estimate
from rl.report.sweep import (
    BUDGET,
    MEASURES,
    Job,
    Measured,
    Setting,
    data_sets,
    ranked,
    read_sweep,
    settings,
    varied,
)
from rl.report.sweep_plots import ALONG, draw_sweep
from rl.report.words import WORDS


def write_sweep_report(folder: Path, language: Language | None = None) -> Path:
    """Writes report.html, sweep.csv, settings.csv and report/sweep-*.png into the sweep's folder; returns the page's path.

    The page needs no network and no other file, and links to the reports of the jobs beside it. A sweep that is still
    going is reported as far as it is. language: None: the first job's own. Raises UserError if the folder holds no job.
    """
    jobs = read_sweep(folder)
    if not jobs:
        raise UserError(f"run={folder} holds no run: give a run directory, or the folder of a sweep's runs")
    require_room(folder, "sweep.csv")
    language = language or language_of(jobs[0].folder)
    on_sets = {data: [job.on(data) for job in jobs] for data in data_sets(jobs)}
    first = next(iter(on_sets.values()))
    write_csv([row_of(job, varied(jobs)) for job in first], folder / "sweep.csv")
    rows = [row_of_setting(each, data) for data, found in on_sets.items() for each in ranked(settings(found))]
    write_csv(rows, folder / "settings.csv")
    pictures = {}
    for number, found in enumerate(on_sets.values(), start=1):
        draw = partial(draw_sweep, found, words=WORDS[language])
        name = "sweep" if number == 1 else f"sweep-{number}"
        if files := save_themed(folder / "report", name, draw):
            pictures[name] = files
    return write_page(
        folder / "report.html",
        "sweep.html.j2",
        language,
        pictures,
        name=folder.resolve().name,
        finished=[job for job in jobs if job.finished],
        sets=[
            section(data if len(on_sets) > 1 else "", found, name)
            for (data, found), name in zip(on_sets.items(), pictures, strict=False)
        ],
        untested=any(job.finished and not job.tested for job in first),
        columns=list(MEASURES),
        columns_of_jobs=ALONG,
        jobs=[shown(job) for job in first],
    )


def section(data: str, jobs: Sequence[Job], picture: str) -> dict[str, Any]:
    """What the page says of one data set: the setting of its tests, the picture, and the settings, best first.

    Settings are listed where there are several.
    """
    compared = ranked(settings(jobs))
    return {
        "data": data,
        "picture": picture,
        "tested": settings_of_tests(jobs),
        "settings": [line_of(each) for each in compared] if len(compared) > 1 else [],
        "seeds": any(len(each.jobs) > 1 for each in compared),
    }


def line_of(setting: Setting) -> dict[str, Any]:
    """A setting's row in the page's table."""
    after, sampled = setting.after(), setting.sampled_tokens
    return {
        "label": setting.label,
        "seeds": len(setting.jobs),
        "sampled": "–" if sampled is None else f"{sampled:,.0f}",
        "cells": [format_estimate(name, after.get(name)).partition(" ") for name in MEASURES],
    }


def row_of_setting(setting: Setting, data: str) -> dict[str, Any]:
    """A line of settings.csv."""
    return {
        "setting": setting.label,
        "data": data,
        "seeds": len(setting.jobs),
        "sampled_tokens": setting.sampled_tokens,
        **columns("before", setting.before()),
        **columns("after", setting.after()),
    }


def shown(job: Job) -> dict[str, Any]:
    """A job's row in the page's table."""
    before, after = (job.before(), job.after()) if job.finished else ({}, {})
    report = f"{quote(job.name)}/report.html" if (job.folder / "report.html").is_file() else None
    cells = [[format_estimate(name, at.get(name)).partition(" ") for at in (before, after)] for name in ALONG]
    return {
        "name": job.name,
        "state": job.state,
        "reason": job.reason,
        "step": job.step,
        "report": report,
        "cells": cells,
    }


def settings_of_tests(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The distinct settings of the jobs' last evaluations: one, unless the sweep varies them."""
    names = ("problems", "completions", "temperature")
    last = [job.evaluations[-1] for job in jobs if job.finished and job.tested]
    found = [{name: row[name] for name in names} for row in last]
    return [setting for i, setting in enumerate(found) if setting not in found[:i]]


def row_of(job: Job, keys: Sequence[str]) -> dict[str, Any]:
    """A line of sweep.csv; unknown or infinite numbers are empty."""
    row: dict[str, Any] = {
        "job": job.name,
        "state": job.state,
        "reason": job.reason,
        "step": job.step,
        BUDGET: job.budget,
    }
    row |= {key: job.settings.get(key) for key in keys if key != BUDGET}
    if job.finished:
        row["measured_on"] = "test" if job.tested else "train"
        row |= columns("before", job.before()) | columns("after", job.after())
    return row


def columns(phase: str, measured: Measured) -> dict[str, float | None]:
    return {
        f"{name}_{phase}{end}": value if math.isfinite(value) else None
        for name, estimate in measured.items()
        for end, value in zip(("", "_low", "_high"), estimate, strict=True)
    }
