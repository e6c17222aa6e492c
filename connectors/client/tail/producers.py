"""The producers that all members of a process share, on one connection.

Invariant. A leased producer is not closed. A member that has lost a record changes to a new producer, and no other
member does: records of the others are still in flight by the old one. So a member that may not write to its topic does
not hold up the others. Later leases get the new producer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from connectors.kafka.transport import Producer


class Producers:
    """A pool with one current producer, and earlier ones that are still leased. Thread-safe.

    `close` it when no lease is left.
    """

    def __init__(self, open_producer: Callable[[], Producer]) -> None:
        """Open nothing yet. `open_producer` raises BrokerUnreachable."""
        self._open_producer = open_producer
        self._lock = threading.Lock()
        self._current: Producer | None = None
        self._users: dict[int, int] = {}  # the count of leases by the producer's `id`

    def lease(self, instead_of: Producer | None = None) -> Producer:
        """Return a producer, other than `instead_of`, to use until it is released.

        Opens one if there is none, or `instead_of` is the current one. Raises BrokerUnreachable, KafkaRefused.
        """
        unused = None
        with self._lock:
            if self._current is None or self._current is instead_of:
                fresh = self._open_producer()
                unused, self._current = self._unused(self._current), fresh
            leased = self._current
            self._users[id(leased)] = self._users.get(id(leased), 0) + 1
        if unused is not None:
            unused.abandon()
        return leased

    def release(self, producer: Producer) -> None:
        """End one lease of a producer."""
        with self._lock:
            self._users[id(producer)] -= 1
            unused = self._unused(producer) if producer is not self._current else None
        if unused is not None:
            unused.abandon()

    def close(self) -> None:
        """Close the current producer."""
        with self._lock:
            current, self._current = self._current, None
        if current is not None:
            current.abandon()

    def _unused(self, producer: Producer | None) -> Producer | None:
        """Return and forget the producer if no lease is left; else None."""
        if producer is None or self._users.get(id(producer)):
            return None
        self._users.pop(id(producer), None)
        return producer
