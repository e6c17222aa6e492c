"""The forward partitions that an engine's loop reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

from kafka.structs import TopicPartition

from connectors.kafka.connection.backlog import find_backlog
from connectors.kafka.connection.connection import Connection
from ordering.base.errors import AbcastError, BrokerUnreachable, KafkaRefused

Starts = dict[TopicPartition, tuple[str, int]]
"""Partitions, each with its group and the first offset to read."""


class ForwardPartitions:
    """The forward partitions of the served groups. The loop is told each partition once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[TopicPartition, str] = {}  # each with its group

    def find(
        self, topics: Mapping[str, Iterable[str]], positions: Mapping[TopicPartition, int]
    ) -> tuple[Starts, dict[str, AbcastError]]:
        """Return where to read the partitions of these groups, by `positions`, and the errors of the other groups.

        Such a group gets no answer, or lacks a right. Raises BrokerUnreachable, KafkaRefused for Kafka as a whole.
        """
        starts: Starts = {}
        lost: dict[str, AbcastError] = {}
        with contextlib.closing(self._connection.consumer()) as consumer:
            for group, names in topics.items():
                try:
                    with self._connection.reachable("READ", " and ".join(names)):
                        backlog = find_backlog(consumer, names, positions)
                except (BrokerUnreachable, KafkaRefused) as error:
                    lost[group] = error
                else:
                    starts |= {partition: (group, offsets.start) for partition, offsets in backlog.items()}
        return starts, lost

    def find_new(
        self, topics: Mapping[str, list[str]], counts: Mapping[str, int]
    ) -> tuple[dict[str, list[str]], Starts, dict[str, AbcastError]]:
        """Return the groups that have grown, their new partitions, and the errors of grown groups that lack a right.

        `counts`: the number of partitions by topic. If Kafka does not answer about a group, a later call returns its
        partitions. Raises like `find`.
        """
        have_grown = {group for place, group in self._places(topics, counts) if place not in self._known}
        if not have_grown:
            return {}, {}, {}
        grown = {group: names for group, names in topics.items() if group in have_grown}
        found, lost = self.find(grown, {})
        refused: dict[str, AbcastError] = {
            group: error for group, error in lost.items() if isinstance(error, KafkaRefused)
        }
        new = {partition: start for partition, start in found.items() if partition not in self._known}
        return {group: names for group, names in grown.items() if group not in refused}, new, refused

    def _places(
        self, topics: Mapping[str, Iterable[str]], counts: Mapping[str, int]
    ) -> Iterator[tuple[TopicPartition, str]]:
        """Yield the partitions of these groups, each with its group. `topics`, `counts`: as in `find_new`."""
        for group, names in topics.items():
            for name in names:
                yield from ((TopicPartition(name, number), group) for number in range(counts.get(name, 0)))

    def add(self, starts: Starts) -> None:
        """Note that the loop reads these partitions."""
        self._known |= {place: group for place, (group, _) in starts.items()}

    def drop(self, group: str) -> None:
        """Note that the loop no longer reads the partitions of the group."""
        self._known = {place: name for place, name in self._known.items() if name != group}
