"""The time without an item after which a reader of a growing log stops."""

from __future__ import annotations

import time


class Silence:
    """A timer of silence: over when no item has come for `limit` seconds.

    A slow broker is not silence. So `limit` counts only once the reader has read everything that the log had at the
    start: even a `limit` of 0 lets it read all of that. Until then, the timer is over only if Kafka returns nothing for
    `patience` seconds (or `limit`, if that is longer).
    """

    def __init__(self, limit: float | None, patience: float) -> None:
        """Start the timer. `limit` and `patience` are in seconds. With a `limit` of None it is never over."""
        self._limit = limit
        self._patience = patience
        self._position = 0
        self._end_at_start: int | None = None
        self._broken_at = time.monotonic()

    def expect(self, end: int) -> None:
        """Note the log's end offset at the start of reading. Later calls change nothing."""
        if self._end_at_start is None:
            self._end_at_start = end
            self.broken(time.monotonic())

    def read_up_to(self, position: int) -> None:
        """Note that everything below this offset was read."""
        if self._position < position and not self._knows_all:
            self.broken(time.monotonic())
        self._position = position

    def broken(self, now: float) -> None:
        """Note that the application got an item at `now`, in seconds of the monotonic clock."""
        self._broken_at = now

    @property
    def _knows_all(self) -> bool:
        return self._end_at_start is not None and self._position >= self._end_at_start

    @property
    def is_over(self) -> bool:
        """Whether it has been silent for long enough."""
        if self._limit is None:
            return False
        limit = self._limit if self._knows_all else max(self._limit, self._patience)
        return time.monotonic() - self._broken_at >= limit
