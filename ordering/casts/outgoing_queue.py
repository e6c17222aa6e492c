"""The queue of messages that are not sent yet, in the order in which they leave.

Invariant. `totals` counts the queued messages that go to the forward table. At most one FLUSH_OK is queued. A
control record always fits in: only messages of the application wait for room.
"""

from __future__ import annotations

from collections import deque

from ordering.base.records import FLUSH_OK, Headers
from ordering.casts.casts import TOTAL

QueuedMessage = tuple[str, str, bytes, Headers]
"""Order, kind, payload and headers."""


class OutgoingQueue:
    """A queue of messages; it has room for `max_records` messages of the application."""

    def __init__(self, max_records: int) -> None:
        self.max_records = max_records
        self.entries: deque[QueuedMessage] = deque()
        self.totals = 0

    @property
    def has_room(self) -> bool:
        """Whether one more message may wait."""
        return len(self.entries) < self.max_records

    def put(self, order: str, kind: str, payload: bytes, headers: Headers) -> None:
        """Put a message at the end, even if there is no room."""
        self.entries.append((order, kind, payload, headers))
        self.totals += order == TOTAL

    def put_flush_ok(self, flush_id: int, *, first: bool) -> None:
        """Put FLUSH_OK at the end, or before all others if `first`, in place of an earlier one."""
        self.drop_flush_ok()
        (self.entries.appendleft if first else self.entries.append)((TOTAL, FLUSH_OK, b"%d" % flush_id, ()))
        self.totals += 1

    def drop_flush_ok(self) -> None:
        """Drop the queued FLUSH_OK, if there is one."""
        self._keep([entry for entry in self.entries if entry[1] != FLUSH_OK])

    def drop_casts(self) -> None:
        """Drop all casts."""
        self._keep([entry for entry in self.entries if entry[0] == TOTAL])

    def _keep(self, entries: list[QueuedMessage]) -> None:
        self.entries = deque(entries)
        self.totals = sum(entry[0] == TOTAL for entry in entries)
