"""Relays on a Kafka in memory, as they ship: one step of a test carries so many records. The columns of Spark make the
same copies (tests/spark/test_relaying.py).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.headers import first_fields
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.relay.process.copying import copier
from connectors.relay.relay import Relay
from connectors.relay.rules import Linking
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic


def make(connection: Connection, topic: Topic, partitions: int) -> None:
    """Create the topic as `ensure_topic` does."""
    for number in range(partitions):
        memory(connection).partitions.setdefault(TopicPartition(str(topic), number), [])


def memory(connection: Connection) -> Any:
    """Return the topics of a Kafka in memory."""
    assert isinstance(connection, MemoryConnection)
    return connection.topics


@contextmanager
def relays_in_memory() -> Iterator[None]:
    """Give a Kafka in memory the parts of a broker that relays need besides."""

    with pytest.MonkeyPatch.context() as monkeypatch:
        for module in ("relay", "letters", "mesh", "bootstrap"):
            monkeypatch.setattr(f"connectors.relay.{module}.ensure_topic", make)
        for module in ("relay", "hub", "mesh"):
            monkeypatch.setattr(f"connectors.relay.{module}.check_may", lambda *_: None)
        yield


class Carrier:
    """A started relay, which knows its positions. Kill it by dropping it."""

    def __init__(self, kind: type[Relay], sites: Sites, direction: Direction, group: str) -> None:
        """Start the relay; raise the error of its start."""
        self.job = kind(sites, direction)
        self.job.begin(lambda: self.positions)
        self._source, self._target = memory(self.job.source), memory(self.job.target)
        names = self.job.select_topics(self._topics()).get(group, [])
        try:
            self.positions = self.job.positions([topic for name in names if (topic := Topic.parse(name))])
        except UnservableGroups as unservable:
            [error] = unservable.errors.values()  # it serves one
            raise error from unservable
        rule = self.job.rule()
        self.sessions = rule.sessions if isinstance(rule, Linking) else {}
        self._copies = copier(rule)
        self.job.target_finder.close()

    def _topics(self) -> list[Topic]:
        names = sorted({place.topic for place in self._source.partitions})
        return [topic for name in names if (topic := Topic.parse(name))]

    @property
    def is_over(self) -> bool:
        """Whether records that it was to read are gone: its query fails, and the relay starts again."""
        source, there = self._source, self._target.partitions
        return not all(
            place in source.partitions
            and self._filled(place) in there
            and source.beginnings.get(place, 0) <= position <= len(source.partitions[place])
            for place, position in self.positions.items()
        )

    @property
    def is_beyond(self) -> bool:
        """Whether the source ends below a position: it has lost its end."""
        logs = self._source.partitions
        return any(position > len(logs[place]) for place, position in self.positions.items())

    def go_back(self, records: int) -> None:
        """Go back by so many records, as a query does whose batch failed."""
        for place, position in self.positions.items():
            self.positions[place] = max(self._source.beginnings.get(place, 0), position - records)

    def _filled(self, place: TopicPartition) -> TopicPartition:
        return TopicPartition(str(self.job.filled(_parsed(place))), place.partition)

    def carry(self, most: int = 1 << 30) -> int:
        """Copy so many records of each partition at most; return the number of written ones."""
        written = 0
        for place, position in () if self.is_over else self.positions.items():
            filled = self._filled(place)
            if place in self._source.away or filled in self._target.away:
                continue
            for record in self._source.partitions[place][position : position + most]:
                for copy in () if (place, record.offset) in self._source.marks else self._copies(record):
                    self._target.append(filled, copy.key, copy.value, copy.headers)
                    written += 1
                self.positions[place] = record.offset + 1
        return written

    def end(self) -> None:
        """End on purpose: a relay of a mesh says farewell."""
        self.job.end(is_stopped=True)


@functools.cache
def _parsed(place: TopicPartition) -> Topic:
    topic = Topic.parse(place.topic)
    assert topic is not None
    return topic


def been_at(record: PlainRecord, at: int) -> set[str]:
    """Return the sites whose relays have copied it here, by its marks."""
    marks: Collection[bytes] = first_fields(record.headers, 1 << 20)[at:]
    return {mark.partition(b"/")[0].decode() for mark in marks if b"/" in mark}
