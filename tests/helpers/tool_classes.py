"""Tool classes as users write them for TRL's environment_factory."""

from __future__ import annotations

import time


class Shop:
    """A shop that sells apples; the reward is the share of the money spent."""

    def __init__(self) -> None:
        self._spent = 0

    def reset(self, **row) -> str | None:
        self._row = row
        self._spent = 0
        return " You have 10 dollars."

    def buy(self, item: str, count: int = 1) -> str:
        """Buys an item.

        Args:
            item: What to buy.
            count: How many.
        """
        if item != "apple":
            raise ValueError(f"no {item} here")
        self._spent += count
        return f"{count} bought"

    def get_reward(self) -> float:
        return self._spent / 10

    def _private(self) -> None:
        raise AssertionError("not a tool")


class Troubled:
    """Each tool fails in its own way."""

    def reset(self, question: str) -> None:
        self.question = question

    def leave(self) -> str:
        """Leaves the interpreter."""
        raise SystemExit(1)

    def hang(self, seconds: float) -> str:
        """Hangs.

        Args:
            seconds: How long.
        """
        time.sleep(seconds)
        return "woke"

    async def later(self) -> str:
        """Answers from a coroutine."""
        return "later"

    def long(self) -> str:
        """Says much."""
        return "\\boxed{7}" * 1000

    def unreachable(self) -> str:
        """Its server is down."""
        raise ConnectionRefusedError("nothing listens on port 9")


class Untyped:
    def reset(self, **row) -> None: ...

    def buy(self, item):
        """Buys."""


class NoReset:
    def buy(self) -> str:
        """Buys."""
        return ""


class NoTools:
    def reset(self, **row) -> None: ...


class NeedsArguments(NoTools):
    def __init__(self, goods: list) -> None: ...


class BadReset(Shop):
    def reset(self, **row):
        raise KeyError("goods")


class BadReward(Shop):
    def get_reward(self):
        return "much"


class Echo(NoTools):
    def echo(self, text: str) -> str:
        """Says what it is told.

        Args:
            text: What to say.
        """
        return text


class ByPython(NoTools):
    """The calculator of model=tiny_tools, in a separate Python process."""

    seconds = 0.0

    def calculate(self, expression: str) -> str:
        """Calculates.

        Args:
            expression: Like 12 * 3.
        """
        from environments.sandbox.process import Limits, run_code

        return run_code(
            f"import time\ntime.sleep({self.seconds})\nprint({expression})", Limits(seconds=60)
        ).text


class Slowly(ByPython):
    seconds = 30.0


class ServedUntil(NoTools):
    """A calculator whose server goes down after the calls of about one step."""

    calls = 0

    def calculate(self, expression: str) -> str:
        """Calculates.

        Args:
            expression: Like 12 * 3.
        """
        type(self).calls += 1
        if self.calls > 12:
            raise ConnectionRefusedError("nothing listens on port 9")
        return str(eval(expression))
