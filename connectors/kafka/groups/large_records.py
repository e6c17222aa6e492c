"""Records that no job could hold: a few kilobytes, compressed, may be gigabytes to the library that Spark reads with.

The reader that inflates in pieces (`transport.inflating`) finds the record that ended a query. The next query takes the
records before it, and the one after that begins behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import UNREAD_HEADER
from connectors.kafka.connection.backlog import Backlog
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.groups.unservable_groups import each_apart
from connectors.kafka.transport import Consumer, Record, kafka_python
from ordering.base.names import Topic

HELD_BYTES = 64 * 1024 * 1024
"""Bytes of records that are kept before one that is too large."""

Skips = Callable[[TopicPartition, Sequence[Record], Record], bool]
"""Whether a partition may be read on behind a record that is too large, given the records before it."""


class Large(NamedTuple):
    """Large records found. `starts`: where to begin in a partition, behind large records that may be skipped.

    `before`: a partition's start, and the offset of a large record behind it that has to wait.
    """

    starts: dict[TopicPartition, int]
    before: dict[TopicPartition, tuple[int, int]]


def find_large(
    connection: Connection, backlog: Mapping[TopicPartition, Backlog], most: int, isolation: str, skips: Skips
) -> Large:
    """Find large records among the next `most` of each partition. `isolation`: the consumer's isolation level.

    Raises as `each_apart` what reading a group's partitions, or `skips`, raises; BrokerUnreachable.
    """
    found = Large({}, {})
    with connection.reachable():
        consumer = kafka_python.consumer(connection, isolation_level=isolation)

    def look(places: Iterable[TopicPartition]) -> None:
        for place in places:
            _, start, end = backlog[place]
            _look(connection, consumer, place, (start, min(end, start + most)), skips, found)

    of_groups: dict[str, list[TopicPartition]] = {}
    for place in sorted(backlog):
        of_groups.setdefault(topic.group if (topic := Topic.parse(place.topic)) else "", []).append(place)
    with closing(consumer):
        each_apart(of_groups, look)
    return found


def _look(
    connection: Connection,
    consumer: Consumer,
    place: TopicPartition,
    between: tuple[int, int],
    skips: Skips,
    found: Large,
) -> None:
    start, held, size = between[0], list[Record](), 0
    for record in read_range(connection, consumer, place, *between):
        if all(name != UNREAD_HEADER for name, _ in record.headers):
            size += len(record.value or b"") + sum(len(value or b"") for _, value in record.headers)
            if size <= HELD_BYTES:
                held.append(record)
        elif size <= HELD_BYTES and skips(place, held, record):
            found.starts[place] = start = record.offset + 1
            held, size = [], 0
        else:
            found.before[place] = start, record.offset
            return
