"""Looks for abcast's topics in one Kafka, again and again, by one connection that it keeps.

A running job asks every second or so. Each look is a full list of the cluster's topics, so it is made at most every
LOOK_S, however often it is asked for. Connecting anew each time (TLS, SASL) would cost the brokers more than the list.
"""

from __future__ import annotations

import contextlib
import threading
import time

from kafka.admin import KafkaAdminClient

from connectors.kafka.connection import Connection
from ordering.names import Topic

LOOK_S = 2.0
"""How old the list may be that `find` returns."""


class TopicFinder:
    """Thread-safe. `close` it; asked again after that, it connects again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._opened = contextlib.ExitStack()
        self._admin: KafkaAdminClient | None = None
        self._found: dict[Topic, int] = {}
        self._found_at = float("-inf")

    def find(self, *, fresh: bool = False) -> list[Topic]:
        """All of abcast's topics in the cluster, sorted by name; with `fresh`, as they are now.

        Raises BrokerUnreachable.
        """
        return list(self.count_partitions(fresh=fresh))

    def count_partitions(self, *, fresh: bool = False) -> dict[Topic, int]:
        """The same, each with the number of its partitions. Raises BrokerUnreachable."""
        with self._lock:
            if fresh or time.monotonic() - self._found_at >= LOOK_S:
                self._found = self._look()
                self._found_at = time.monotonic()
            return self._found

    def _look(self) -> dict[Topic, int]:
        try:
            if self._admin is None:
                self._admin = self._opened.enter_context(self._connection.admin())
            with self._connection.reachable():
                described = self._admin.describe_topics()
        except BaseException:
            self._disconnect()
            raise
        counts = {Topic.parse(each["name"]): len(each["partitions"]) for each in described}
        return {topic: counts[topic] for topic in sorted(filter(None, counts), key=str)}

    def close(self) -> None:
        """Close the connection, if there is one."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        self._admin = None
        self._opened.close()
