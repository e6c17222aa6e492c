"""The shortest history that still breaks a promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def drop_actions(all_actions: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return as few of the actions as still fail: leave out half of them at a time, then a quarter …"""
    actions = list(all_actions)
    size = max(1, len(actions) // 2)
    while True:
        index, before = 0, len(actions)
        while index < len(actions):
            shorter = actions[:index] + actions[index + size :]
            if fails(shorter):
                actions = shorter
            else:
                index += size
        if size == 1 and len(actions) == before:
            return actions
        size = max(1, size // 2)
