"""Read ranges of offsets of one partition."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from kafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.transport import Consumer, Record
from ordering.base.errors import OvertakenByRetention

_POLL_MS = 200
_LITTLE_BYTES = 32 * 1024
_LARGEST_STEP = 32_768
"""The most records by which a window grows: all that are read beyond the one searched for are read in vain."""


def a_few_records(connection: Connection) -> Consumer:
    """Return a consumer for few records here and there: it fetches little beyond them. Raises as `consumer`."""
    return connection.consumer(max_partition_fetch_bytes=_LITTLE_BYTES)


def read_range(
    connection: Connection, consumer: Consumer, partition: TopicPartition, start: int, end: int
) -> Iterator[Any]:
    """Yield the records with `start` <= offset < `end`, in order. The consumer is assigned to this partition alone, and
    can read nothing else until the last record is taken.

    There need not be a record right below `end`: a transaction's marker may lie there.

    Raises BrokerUnreachable, also if nothing arrives for `connection.timeout`; KafkaRefused; OvertakenByRetention if
    the log does not have the next offset any more.
    """
    if start >= end:
        return
    consumer.assign([partition])
    consumer.seek(partition, start)
    position, patient_until = start, time.monotonic() + connection.timeout
    while position < end:
        try:
            with connection.reachable("READ", partition.topic):
                polled = consumer.poll(timeout_ms=_POLL_MS)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise OvertakenByRetention(
                f"retention has dropped offset {position} of {partition.topic} before it was read: try again."
            ) from error
        is_silent = consumer.position(partition) == position
        if is_silent and time.monotonic() > patient_until:
            raise connection.unreachable(connection.timeout, partition.topic)
        position = consumer.position(partition)
        for record in polled.get(partition, ()):
            if record.offset >= end:
                break
            yield record
        if not is_silent:  # counted from here: the caller may take long over the records
            patient_until = time.monotonic() + connection.timeout
    consumer.rest()


def newest_record(
    connection: Connection, consumer: Consumer, partition: TopicPartition, beginning: int, end: int
) -> Record | None:
    """Return the last record below `end`, or None. Raises as `read_range`."""
    for start, below in windows_back(beginning, end, 1):
        records = list(read_range(connection, consumer, partition, start, below))
        if records:
            newest: Record = records[-1]
            return newest
    return None


def windows_back(beginning: int, end: int, first: int) -> Iterator[tuple[int, int]]:
    """Yield ranges (from, below) that lead from `end` back to `beginning`: `first` records, then ever more."""
    window, below = first, end
    while below > beginning:
        start = max(beginning, end - window)
        yield start, below
        window, below = min(window * 2, window + _LARGEST_STEP), start
