"""The producers that all members of a process share, on one connection.

Invariant. A producer that somebody uses is not closed. Whoever has lost a record changes to another one, and only he
does: what others have sent by the old one is on its way still. So a member that may not write to its topic does not
hold up its neighbours. The new one is for all who come or change later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from connectors.kafka.transport import Producer


class Producers:
    """Thread-safe. `close` it, when nobody uses any of them."""

    def __init__(self, opened: Callable[[], Producer]) -> None:
        """`opened`: opens one. Raises BrokerUnreachable, here and below."""
        self._opened = opened
        self._lock = threading.Lock()
        self._current: Producer | None = None
        self._users: dict[int, int] = {}  # of each producer, by its identity

    def lease(self, instead_of: Producer | None = None) -> Producer:
        """A producer to send by, until it is released; another one than that. Raises BrokerUnreachable."""
        unused = None
        with self._lock:
            if self._current is None or self._current is instead_of:
                fresh = self._opened()
                unused, self._current = self._unused(self._current), fresh
            leased = self._current
            self._users[id(leased)] = self._users.get(id(leased), 0) + 1
        if unused is not None:
            unused.abandon()
        return leased

    def release(self, producer: Producer) -> None:
        """It is not used any more by one who has leased it."""
        with self._lock:
            self._users[id(producer)] -= 1
            unused = self._unused(producer) if producer is not self._current else None
        if unused is not None:
            unused.abandon()

    def close(self) -> None:
        """End what is left."""
        with self._lock:
            current, self._current = self._current, None
        if current is not None:
            current.abandon()

    def _unused(self, producer: Producer | None) -> Producer | None:
        """It, if nobody uses it any more; then it is forgotten."""
        if producer is None or self._users.get(id(producer)):
            return None
        self._users.pop(id(producer), None)
        return producer
