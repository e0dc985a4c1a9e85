"""Writes tests/data/molt_flags.json: the flags of the installed Molt with their types, choices and defaults.

Run by Molt's Python: `make test-molt` compares the record with the installed release; `... record.py write` renews it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import runpy
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "data" / "molt_flags.json"


class Parsed(BaseException):
    pass


def recorded() -> dict[str, Any]:
    """The installed release and its flags."""
    flags: dict[str, Any] = {}

    def catch(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        for action in parser._actions:
            for option in action.option_strings:
                if option.startswith("--") and option != "--help" and "wandb.run_name" not in option:
                    kind = getattr(action.type, "__name__", None)
                    default = str(action.default) if action.default == float("inf") else action.default
                    flags[option[2:]] = {
                        "type": "flag" if action.nargs == 0 else kind or "str",
                        "nargs": action.nargs if action.nargs != 0 else None,
                        "choices": list(action.choices) if action.choices else None,
                        "default": default,
                    }
        raise Parsed

    argparse.ArgumentParser.parse_args = catch  # type: ignore[assignment, method-assign]
    with contextlib.suppress(Parsed):
        runpy.run_module("molt.cli.train_rl_ray", run_name="__main__")
    return {"release": importlib.metadata.version("molt-rl"), "flags": dict(sorted(flags.items()))}


if __name__ == "__main__":
    found = json.dumps(recorded(), indent=1) + "\n"
    if sys.argv[1:] == ["write"]:
        FILE.write_text(found)
    else:
        print(found)
