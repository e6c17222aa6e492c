"""A number for all random choices within one action, so that dropping another action changes none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Takes choices off a number, digit by digit."""

    def __init__(self, number: int) -> None:
        self.number = number

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1."""
        self.number, rest = divmod(self.number, limit)
        return rest

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def shuffle(self, items: list[T]) -> None:
        for index in range(len(items) - 1, 0, -1):
            other = self.below(index + 1)
            items[index], items[other] = items[other], items[index]
