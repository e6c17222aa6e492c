"""When a reader of a log that goes on may stop waiting."""

from __future__ import annotations

import time


class Silence:
    """Counts the seconds since something came, and tells when they are enough.

    They count only from when everything was read that stood in the log at the start: a slow broker is not silence, so
    even a `limit` of 0 gives all that is there. If Kafka gives nothing of that for `patience` seconds, it is over too.
    """

    def __init__(self, limit: float | None, patience: float) -> None:
        """`limit`: None, and it never ends."""
        self._limit = limit
        self._patience = patience
        self._position = 0
        self._end_at_start: int | None = None
        self._broken_at = time.monotonic()

    def expect(self, end: int) -> None:
        """Reading begins; the log ends at this offset. The first call counts: what comes later is not waited for."""
        if self._end_at_start is None:
            self._end_at_start = end
            self.broken(time.monotonic())

    def read_up_to(self, position: int) -> None:
        """Everything below this offset was read."""
        if self._position < position and not self._knows_all:
            self.broken(time.monotonic())
        self._position = position

    def broken(self, now: float) -> None:
        """The application had something. `now`: of the monotonic clock."""
        self._broken_at = now

    @property
    def _knows_all(self) -> bool:
        return self._end_at_start is not None and self._position >= self._end_at_start

    @property
    def is_over(self) -> bool:
        """Whether it was silent for long enough."""
        if self._limit is None:
            return False
        limit = self._limit if self._knows_all else max(self._limit, self._patience)
        return time.monotonic() - self._broken_at >= limit
