"""ALFWorld's text games (arXiv:2010.03768) as an environment, through the `alfworld` package and games on this disk.

A problem is a game file; each turn of the model is one command. The reward is 1 when the task is done, else 0.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from environments.base import Environment, EnvironmentConfig, FindCalls
from rl.errors import Stopped, UserError, first_line
from rl.rollouts import Message, Parsed, Problem

FOLDERS = {"train": "train", "test": "valid_unseen"}
INSTRUCTION = (
    "You act in a household. Each turn, think about the next step, then write one command between <action> and"
    " </action>, for example <action>go to table 1</action>."
)
_ACTION = re.compile(r"<action>(.*?)(?:</action>|\Z)", re.DOTALL)
_MOST_CHARACTERS = 200  # of a command
# TextWorld's parser and planner keep state of their own.
_LOCK = threading.RLock()


def games_folder() -> Path:
    """Where `alfworld-download` put the games: $ALFWORLD_DATA, or the package's default."""
    return Path(os.environ.get("ALFWORLD_DATA", "~/.cache/alfworld")).expanduser()


def generate(
    split: Literal["train", "test"], count: int, seed: int, language: Literal["en", "ja", "both"]
) -> list[Problem]:
    """`count` solvable games in a random order that depends on `seed`. test: ALFWorld's valid_unseen.

    Raises UserError when the games are missing, or fewer.
    """
    folder = games_folder() / "json_2.1.1" / FOLDERS[split]
    paths = sorted(folder.rglob("game.tw-pddl"))
    if not paths:
        raise UserError(
            f"data=alfworld: no games in {folder}; run alfworld-download, and set ALFWORLD_DATA to its folder"
        )
    Random(f"{split} {seed}").shuffle(paths)
    found: list[Problem] = []
    for path in _solvable(paths):
        name = str(path.parent.relative_to(folder))
        found.append(Problem(name, INSTRUCTION, "done", "en", "alfworld", extra={"game": str(path)}))
        if len(found) == count:
            return found
    raise UserError(
        f"data.{split}_size={count}: {folder} has {len(found):,} solvable games; type that or less"
    )


def _solvable(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if "movable" in str(path) or "Sliced" in str(path):  # ALFWorld's own loader leaves these out
            continue
        try:
            if json.loads(path.read_text(encoding="utf-8")).get("solvable"):
                yield path
        except ValueError as error:
            raise UserError(
                f"data=alfworld: {path} is not JSON: {first_line(error)}; download it again"
            ) from None


@dataclass(frozen=True, kw_only=True)
class AlfworldConfig(EnvironmentConfig):
    """show_commands: each observation ends with the commands that the game would accept."""

    show_commands: bool = True

    def check(self) -> None:
        lacks = [name for name in ("textworld", "alfworld") if importlib.util.find_spec(name) is None]
        if lacks:
            raise UserError(
                f"environment=alfworld: {' and '.join(lacks)} not installed; type pip install 'tanka-rl[alfworld]'"
            )

    @property
    def rewards_itself(self) -> bool:
        return True

    def make(self, find_calls: FindCalls) -> Environment:
        return Alfworld(self.show_commands)


class Alfworld(Environment):
    """One game. Counts: commands, and commands_refused (the game does not know them)."""

    def __init__(self, show_commands: bool) -> None:
        super().__init__()
        self._show_commands = show_commands
        self._game: Any = None
        self._commands: list[str] = []
        self._won = False

    def start(self, problem: Problem) -> str:
        path = problem.extra.get("game")
        if not isinstance(path, str):
            raise Stopped(f"environment=alfworld: problem {problem.id} has no game; type data=alfworld")
        try:
            with _LOCK:
                self._game = open_game(path)
                state = self._game.reset()
        except Exception as error:  # TextWorld and its planner raise many kinds
            raise Stopped(
                f"environment=alfworld: {path} cannot be played: {type(error).__name__}: {first_line(error)}"
            ) from error
        return f"\n\n{self._shown(state)}"

    def step(self, parsed: Parsed) -> list[Message] | None:
        command = command_in(parsed.text)
        self.count("commands")
        if command not in self._commands:
            self.count("commands_refused")
        with _LOCK:
            state, _, done = self._game.step(command or "look")
        self._won = bool(state["won"])
        return None if done or self._won else [{"role": "user", "content": self._shown(state)}]

    def reward(self) -> float:
        return float(self._won)

    def close(self) -> None:
        if self._game is not None:
            with _LOCK:
                self._game.close()

    def _shown(self, state: Any) -> str:
        self._commands = list(state["admissible_commands"] or [])
        # The first observation starts with the engine's own title.
        text = str(state["feedback"]).replace("-= Welcome to TextWorld, ALFRED! =-", "").strip()
        return f"{text}\n\nCommands: {', '.join(self._commands)}" if self._show_commands else text


def command_in(text: str) -> str:
    """The last command between action tags, else the last line, on one line and cut to a command's length."""
    tagged = _ACTION.findall(text)
    lines = text.strip().splitlines()
    command = tagged[-1] if tagged else lines[-1] if lines else ""
    return " ".join(command.split())[:_MOST_CHARACTERS]


def open_game(path: str) -> Any:
    """A TextWorld environment of the game, with ALFWorld's names of objects ("fridge 1")."""
    import textworld

    wrappers = []
    if path.endswith(".tw-pddl"):
        from alfworld.agents.utils.misc import Demangler

        class Names(textworld.core.Wrapper):
            def load(self, *arguments: Any, **options: Any) -> None:
                super().load(*arguments, **options)
                names = Demangler(game_infos=self._entity_infos, shuffle=False)
                for info in self._entity_infos.values():
                    info.name = names.demangle_alfred_name(info.id)

        wrappers.append(Names())
    wanted = textworld.EnvInfos(won=True, admissible_commands=True, feedback=True)
    return textworld.start(path, request_infos=wanted, wrappers=wrappers)
