"""The list of items that an application has asked for (`Stream.batches`), while it grows; or a single item.

Invariant. The items are the next ones of the log, in its order, and none of them is in hand before the list is handed
out. `place` is behind the last of them, and behind the records after it that have nothing for the application.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

ALWAYS_NEW_S = 0.1
"""Seconds after which a list is handed out although each look at the log has found new items."""


class Gathering:
    """The list of one stream. For the thread that iterates."""

    __slots__ = ("_due_at", "_wait_s", "items", "most", "place")

    def __init__(self) -> None:
        self.most = 0
        """The most items of the list; 0 while the application asks for single items."""
        self.items: list[Any] = []
        self.place = (0, 0)
        """The place to hand out with the list, as `Bookmark.hand_out` takes it."""
        self._wait_s = self._due_at = 0.0

    def ask(self, most: int, wait_s: float) -> None:
        """Ask for a list of at most `most` items, up to `wait_s` seconds after its first item; 0: for single items."""
        self.most, self._wait_s = most, wait_s

    def add(self, items: Sequence[Any], place: tuple[int, int]) -> None:
        """Add the next items, and the place behind them. The time of a list begins with its first item."""
        self.items += items
        self.place = place
        if self.items and not self._due_at:
            self._due_at = time.monotonic() + self._wait_s

    @property
    def is_full(self) -> bool:
        """Whether it has all the items that were asked for."""
        return len(self.items) >= (self.most or 1)

    def is_due(self, *, has_news: bool) -> bool:
        """Whether to hand it out. `has_news` tells whether the last look at the log has found anything."""
        return bool(self.items) and time.monotonic() >= self._due_at + (ALWAYS_NEW_S if has_news else 0.0)

    def patience(self, limit: float) -> float:
        """Return the seconds to wait for new records: at most `limit`, and not beyond the time of a list."""
        return min(limit, max(0.0, self._due_at - time.monotonic())) if self.items else limit

    def completed(self) -> list[Any]:
        """Return the list, and begin the next one."""
        items, self.items, self._due_at = self.items, [], 0.0
        return items
