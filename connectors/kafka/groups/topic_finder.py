"""Find abcast's topics in one Kafka repeatedly, by a connection that it keeps.

A running job asks every second or so. Each look is a full list of the cluster's topics, so the list is cached. A new
connection each time (TLS, SASL) would cost the brokers more than the list.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any

from kafka.admin import KafkaAdminClient

from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from ordering.base.errors import BrokerUnreachable
from ordering.base.names import Topic

LEADERLESS_S = 3.0
"""A partition without a leader for this long counts as away: an election takes less."""
_LOOK_SOON_S = 1.0
"""The list's greatest age while a partition has no leader."""
_DOUBTED_S = 2.0
"""The list's greatest age while something waits for Kafka."""
LOOK_S = 10.0
"""The seconds between two looks of a caller that looks by itself (`connectors.ledger.casts.places`)."""


class TopicFinder:
    """Finds topics. Thread-safe. `close` it; a later question connects again."""

    def __init__(
        self, connection: Connection, groups: GroupChoice = ALL_GROUPS, look_every_s: float = LOOK_EVERY_S
    ) -> None:
        """Find topics of these groups only. `look_every_s`: the list's greatest age."""
        self._connection = connection
        self._groups = groups
        self._look_every_s = look_every_s
        self._lock = threading.Lock()
        self._opened = contextlib.ExitStack()
        self._admin: KafkaAdminClient | None = None
        self._found: dict[Topic, int] = {}
        self._found_at = float("-inf")
        self._leaderless: dict[Topic, float] = {}  # since when

    def find(self, *, fresh: bool = False) -> list[Topic]:
        """Return all topics of its groups in the cluster, sorted by name; with `fresh`, as they are now.

        Raises BrokerUnreachable.
        """
        return list(self.count_partitions(fresh=fresh))

    def count_partitions(self, *, fresh: bool = False) -> dict[Topic, int]:
        """Return the topics of `find`, with the number of partitions of each. Raises BrokerUnreachable."""
        with self._lock:
            may_be_old_s = min(self._look_every_s, _LOOK_SOON_S) if self._leaderless else self._look_every_s
            if fresh or time.monotonic() - self._found_at >= may_be_old_s:
                self._found = self._look()
                self._found_at = time.monotonic()
            return self._found

    def leaderless(self) -> list[Topic]:
        """Return the topics, of any group, with a partition away as of the last look, sorted by name."""
        with self._lock:
            now = time.monotonic()
            return sorted((topic for topic, since in self._leaderless.items() if now - since >= LEADERLESS_S), key=str)

    def doubt(self) -> None:
        """Make the next `find` look, unless its list is younger than 2 s. Call this when something waits for Kafka."""
        with self._lock:
            if time.monotonic() - self._found_at >= min(self._look_every_s, _DOUBTED_S):
                self._found_at = float("-inf")

    def has_changed(self) -> bool:
        """Look now, after a failure; return whether the topics have changed since the last look.

        False if no broker answers.
        """
        with self._lock:
            before = self._found
            try:
                self._found = self._look()
            except BrokerUnreachable:
                return False
            self._found_at = time.monotonic()
            return self._found != before

    def _look(self) -> dict[Topic, int]:
        try:
            if self._admin is None:
                self._admin = self._opened.enter_context(self._connection.admin())
            with self._connection.reachable():
                described = self._admin.describe_topics()
        except BaseException:
            self._disconnect()
            raise
        now = time.monotonic()
        gone = {Topic.parse(each["name"]) for each in described if any(map(_is_leaderless, each["partitions"]))}
        self._leaderless = {topic: self._leaderless.get(topic, now) for topic in gone if topic is not None}
        counts = {Topic.parse(each["name"]): len(each["partitions"]) for each in described}
        chosen = [topic for topic in counts if topic is not None and self._groups.has(topic.group)]
        return {topic: counts[topic] for topic in sorted(chosen, key=str)}

    def close(self) -> None:
        """Close the connection, if there is one."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        self._admin = None
        self._opened.close()


def _is_leaderless(partition: Mapping[str, Any]) -> bool:
    return int(partition["leader_id"]) < 0
