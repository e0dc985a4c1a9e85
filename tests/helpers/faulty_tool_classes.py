"""Tool classes with one fault each, as a user's first attempts have them."""

from __future__ import annotations

import sys

import numpy as np


class Plain:
    def reset(self, **row) -> None: ...

    def go(self) -> str:
        """Goes."""
        return "gone"


class ExitsAtOnce(Plain):
    def __init__(self) -> None:
        sys.exit("not today")


class AnyNumber(Plain):
    def go(self, *places: str) -> str:
        """Goes.

        Args:
            places: Where to.
        """
        return "gone"


class AnyNames(Plain):
    def go(self, **places: str) -> str:
        """Goes.

        Args:
            places: Where to.
        """
        return "gone"


class ByPosition(Plain):
    def go(self, place: str, /) -> str:
        """Goes.

        Args:
            place: Where to.
        """
        return "gone"


def logged(method):
    """A decorator without functools.wraps, but with what a schema needs."""

    def wrapper(self, place: str) -> str:
        """Goes.

        Args:
            place: Where to.
        """
        return method(self, place)

    return wrapper


class OtherNames(Plain):
    walk = Plain.go

    @logged
    def run(self, place: str) -> str:
        return f"ran to {place}"


class Unspeakable(Exception):
    """Its text cannot be read."""

    def __str__(self) -> str:
        sys.exit("no words")


class Raises(Plain):
    def go(self) -> str:
        """Goes."""
        raise Unspeakable

    def get_reward(self) -> float:
        raise Unspeakable


class TooLarge(Plain):
    def get_reward(self):
        return 10**5000


class TwoNumbers(Plain):
    def get_reward(self):
        return np.array([1.0, 2.0])


class Words(Plain):
    def get_reward(self):
        return "1\n2"


class Half(Plain):
    def get_reward(self):
        return np.float32(0.5)


class Nothing(Plain):
    def get_reward(self):
        return None
