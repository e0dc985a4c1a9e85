"""ALFWorld: the loop on a recorded game and, where TextWorld is installed, on a small game made here."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from environments import alfworld
from environments.alfworld import AlfworldConfig, command_in, generate
from rl.errors import Stopped, UserError
from rl.rollouts import Parsed, Problem
from tests.helpers.recorded_game import RecordedGame


def turn(environment, text: str):
    return environment.step(Parsed("", text, text, "stop"))


@pytest.fixture
def game(monkeypatch: pytest.MonkeyPatch) -> RecordedGame:
    recorded = RecordedGame()
    monkeypatch.setattr(alfworld, "open_game", lambda path: recorded)
    return recorded


PROBLEM = Problem("g1", "Act.", "done", "en", "alfworld", extra={"game": "g1.tw-pddl"})


def test_a_game_that_is_won(game: RecordedGame):
    environment = AlfworldConfig(name="alfworld").make(lambda parsed: [])
    assert environment.start(PROBLEM).startswith("\n\n-= Bedroom =-\nYou've just entered a bedroom.")
    (message,) = turn(environment, "I need the key.\n<action>take keycard</action>")
    assert message["role"] == "user" and message["content"].startswith("You pick up the keycard")
    assert message["content"].endswith(
        "Commands: examine chest, go west, inventory, look, unlock chest with keycard"
    )
    assert environment.reward() == 0.0
    assert turn(environment, "<action>unlock chest with keycard</action>") is None
    assert environment.reward() == 1.0 and environment.counts == {"commands": 2}
    environment.close()
    assert game.closed


def test_a_command_that_the_game_does_not_know_is_counted(game: RecordedGame):
    environment = AlfworldConfig(name="alfworld", show_commands=False).make(lambda parsed: [])
    environment.start(PROBLEM)
    (message,) = turn(environment, "fly")
    assert message["content"] == "That's not a verb I recognise."
    assert environment.counts == {"commands": 1, "commands_refused": 1} and environment.reward() == 0.0
    turn(environment, "")  # no command: the game is asked to look
    assert environment.counts == {"commands": 2, "commands_refused": 2}


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("<action>go north</action>", "go north"),
        ("<action>a</action> no, <action> b\n c </action>", "b c"),
        ("<action>open it", "open it"),
        ("I think.\ngo north\n", "go north"),
        ("", ""),
        ("x" * 500, "x" * 200),
    ],
)
def test_the_command_of_a_turn(text: str, command: str):
    assert command_in(text) == command


@pytest.mark.skipif(importlib.util.find_spec("alfworld") is not None, reason="alfworld is installed")
def test_what_is_missing_is_said_in_one_line():
    with pytest.raises(UserError, match=r"alfworld not installed; type pip install 'tanka-rl\[alfworld\]'"):
        AlfworldConfig(name="alfworld").check()


def test_games_come_from_the_folder_in_an_order_of_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(UserError, match="run alfworld-download, and set ALFWORLD_DATA"):
        generate("train", 1, 0, "en")
    for name, solvable in (("a", True), ("b", True), ("c", False), ("d-movable", True), ("e", True)):
        folder = tmp_path / "json_2.1.1" / "train" / name / "trial"
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text(json.dumps({"solvable": solvable}))
    orders = {tuple(problem.id for problem in generate("train", 3, seed, "en")) for seed in range(20)}
    assert {name for order in orders for name in order} == {"a/trial", "b/trial", "e/trial"} and len(
        orders
    ) > 1
    first = generate("train", 1, 3, "en")[0]
    assert first == generate("train", 3, 3, "en")[0] and Path(first.extra["game"]).is_file()
    with pytest.raises(UserError, match="has 3 solvable games"):
        generate("train", 4, 0, "en")
    (tmp_path / "json_2.1.1/train/a/trial/game.tw-pddl").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        generate("train", 3, 0, "en")


def test_a_problem_without_a_game_ends_the_run(monkeypatch: pytest.MonkeyPatch):
    environment = AlfworldConfig(name="alfworld").make(lambda parsed: [])
    with pytest.raises(Stopped, match="type data=alfworld"):
        environment.start(Problem("p", "?", "1", "en", "gsm8k"))
    environment.close()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("textworld") is None, reason="TextWorld is not installed")
def test_a_small_textworld_game(tmp_path: Path):
    import textworld

    options = textworld.GameOptions()
    options.nb_rooms, options.nb_objects, options.quest_length, options.seeds = 2, 4, 2, 3
    options.path = str(tmp_path / "game.z8")
    path, made = textworld.make(options)
    environment = AlfworldConfig(name="alfworld").make(lambda parsed: [])
    environment.start(Problem("g", "Act.", "done", "en", "test", extra={"game": path}))
    for command in made.metadata["walkthrough"]:
        assert environment.reward() == 0.0
        shown = turn(environment, f"<action>{command}</action>")
    assert shown is None and environment.reward() == 1.0 and environment.counts == {"commands": 2}
    environment.close()
