"""The list of items that an application has asked for (`Stream.batches`), while it grows; or a single item.

Invariant. The items are the next ones of the log, in its order, and none of them is in hand before the list is handed
out. `place` is behind the last of them, and behind the records after it that have nothing for the application.

A list in another form (`form`) grows as parts that are still as they were read. So its memory is that of the records,
and is bounded in bytes, too.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

ALWAYS_NEW_S = 0.1
"""Seconds after which a list is handed out although each look at the log has found new items."""


MOST_BYTES = 64 * 1024 * 1024
"""A list in another form is full with so many bytes of payloads and headers; one read may go beyond it."""

Form = Callable[[Sequence[Any]], Any]
"""A function that makes what the application gets of the parts of a list."""


class Gathering:
    """The list of one stream. For the thread that iterates."""

    __slots__ = ("_bytes", "_due_at", "_parts", "_wait_s", "count", "form", "most", "place")

    def __init__(self) -> None:
        self.most = 0
        """The most items of the list; 0 while the application asks for single items."""
        self.count = 0
        """The number of items in the list."""
        self.form: Form | None = None
        """Makes the list in another form; None for a list of the items."""
        self._parts: list[Sequence[Any]] = []
        self._bytes = 0
        self.place = (0, 0)
        """The place to hand out with the list, as `Bookmark.hand_out` takes it."""
        self._wait_s = self._due_at = 0.0

    def ask(self, most: int, wait_s: float) -> None:
        """Ask for a list of at most `most` items, up to `wait_s` seconds after its first item; 0: for single items."""
        self.most, self._wait_s = most, wait_s

    def add(self, items: Sequence[Any], place: tuple[int, int], size_bytes: int = 0) -> None:
        """Add the next items, and the place behind them. The time of a list begins with its first item.

        `size_bytes`: their size; 0 if it is not to count.
        """
        if items:
            self._parts.append(items)
            self.count += len(items)
            self._bytes += size_bytes
        self.place = place
        if self.count and not self._due_at:
            self._due_at = time.monotonic() + self._wait_s

    @property
    def is_full(self) -> bool:
        """Whether it has all the items that were asked for."""
        return self.count >= (self.most or 1) or self._bytes >= MOST_BYTES

    def is_due(self, *, has_news: bool) -> bool:
        """Whether to hand it out. `has_news` tells whether the last look at the log has found anything."""
        return self.count > 0 and time.monotonic() >= self._due_at + (ALWAYS_NEW_S if has_news else 0.0)

    def patience(self, limit: float) -> float:
        """Return the seconds to wait for new records: at most `limit`, and not beyond the time of a list."""
        return min(limit, max(0.0, self._due_at - time.monotonic())) if self.count else limit

    def completed(self) -> Any:
        """Return the list, or its form, and begin the next one."""
        parts, self._parts = self._parts, []
        self.count, self._bytes, self._due_at = 0, 0, 0.0
        return self.form(parts) if self.form is not None else list(itertools.chain.from_iterable(parts))
