"""Errors that the user can fix: one clear line, exit code 2, never a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """Bad input. The message says what was given, what was expected, and what to type instead."""


class Stopped(UserError):
    """The run cannot go on, but its weights are intact: they are saved before it ends."""


class NotFinite(UserError):
    """A number from outside, such as a reward, is NaN or infinite. The step may be skipped."""


def reason_of(error: BaseException) -> str:
    """Why something failed, for status.json: a UserError's own line; for other errors, type and text."""
    return (
        str(error)
        if isinstance(error, UserError)
        else f"{type(error).__name__}: {text_of(error)}".strip(": ")
    )


def nearest(given: str, known: Iterable[str], count: int = 1) -> list[str]:
    """The known names most similar to `given`, best first; empty when none is close."""
    by_case = {name.lower(): name for name in known}
    close = difflib.get_close_matches(given.lower(), by_case, n=count, cutoff=0.5)
    # difflib ties grpo with gspo for "gpro": two letters that changed places are the likelier slip.
    swapped = [name for name in by_case if sorted(name) == sorted(given.lower())]
    return [by_case[name] for name in [*swapped, *(name for name in close if name not in swapped)][:count]]


def first_line(error: BaseException) -> str:
    """An error's first sentence, to quote inside our own message."""
    return (text_of(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0].rstrip(".")


def require(condition: bool, key: str, value: Any, expected: str, example: Any) -> None:
    """Raises UserError, naming the key, unless `condition` holds."""
    if not condition:
        raise UserError(f"{key}={value}: expected {expected}; e.g. {key}={example}")


def one_line(error: BaseException) -> str:
    """Any error with its type, on one line."""
    return f"{type(error).__name__}: {' '.join(text_of(error).split())}"


def text_of(error: BaseException) -> str:
    """An error's text; "" when a user's exception class cannot even say it."""
    try:
        return str(error)
    except BaseException:  # also SystemExit: whoever reports an error must not raise another
        return ""
