"""A recorded session of a small TextWorld game: what the engine showed after each command."""

from __future__ import annotations

from typing import Any

COMMANDS = ["examine chest", "go west", "inventory", "look", "take keycard"]
UNLOCK = "unlock chest with keycard"
START = "\n\n-= Bedroom =-\nYou've just entered a bedroom. You make out a chest.\n\nThere is a keycard on the floor.\n\n"
ANSWERS = {
    "look": (START, COMMANDS, False),
    "fly": ("\nThat's not a verb I recognise.\n", COMMANDS, False),
    "take keycard": ("\nYou pick up the keycard from the ground.\n", [*COMMANDS[:-1], UNLOCK], False),
    UNLOCK: ("\nYou unlock the chest.\n\n*** The End ***\n", [], True),
}


class RecordedGame:
    """Answers as TextWorld's environment did."""

    def __init__(self) -> None:
        self.closed = False

    def reset(self) -> dict[str, Any]:
        return {"feedback": START, "admissible_commands": COMMANDS, "won": False}

    def step(self, command: str) -> tuple[dict[str, Any], int, bool]:
        text, commands, won = ANSWERS[command]
        return {"feedback": text, "admissible_commands": commands, "won": won}, int(won), won

    def close(self) -> None:
        self.closed = True
