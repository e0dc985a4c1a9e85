"""`eval_data=[math_500,mgsm_ja]`: names of data sets, each composed by Hydra from conf/data into `eval_data.NAME`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from rl.errors import UserError, nearest

KEY = "eval_data"
_ADDED = re.compile(rf"\+data@{KEY}\.(\w+)=\1")


def overrides_of(override: Override, options: Sequence[str]) -> list[str]:
    """One group override for each data set named. Raises UserError for a name that is not in `options`, or a sweep."""
    if override.is_sweep_override():
        raise UserError(
            f"{override.input_line}: all jobs of a sweep evaluate on the same sets; type one list, eval_data=[math_500,aime]"
        )
    value = override.value()
    names = value if isinstance(value, list) else [] if value is None else [value]
    for name in names:
        if str(name) not in options:
            close = nearest(str(name), options)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else "type names of data sets, e.g. eval_data=[math_500,aime]"
            )
            raise UserError(
                f"{override.input_line}: no such data set: {name}; {hint} data sets: {', '.join(sorted(options))}"
            )
    return [f"+data@{KEY}.{name}={name}" for name in dict.fromkeys(map(str, names))]


def as_typed(overrides: Sequence[str]) -> list[str]:
    """The overrides with those of `overrides_of` as one list again."""
    names = [match[1] for text in overrides if (match := _ADDED.fullmatch(text))]
    rest = [text for text in overrides if not _ADDED.fullmatch(text)]
    return [*rest, f"{KEY}=[{','.join(names)}]"] if names else rest
