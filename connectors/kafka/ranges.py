"""Reading ranges of offsets of one partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors.kafka.connection import Connection
from connectors.kafka.transport import Consumer
from ordering.errors import HistoryUnavailable

_LARGEST_STEP = 32_768
"""By so many records a window grows at most: what is read beyond what is looked for is read in vain."""


def read_range(
    connection: Connection, consumer: Consumer, partition: TopicPartition, start: int, end: int
) -> Iterator[Any]:
    """The records with `start` <= offset < `end`, in order. The consumer reads nothing else meanwhile.

    Raises BrokerUnreachable; HistoryUnavailable if retention drops records before they are read.
    """
    if start >= end:
        return
    consumer.assign([partition])
    consumer.seek(partition, start)
    position = start
    while position < end:
        try:
            with connection.reachable("READ", partition.topic):
                polled = consumer.poll(timeout_ms=1000)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise HistoryUnavailable(
                f"retention has dropped offset {position} of {partition.topic} before it was read: try again."
            ) from error
        for record in polled.get(partition, ()):
            position = record.offset + 1
            if position > end:
                break
            yield record
    consumer.rest()


def windows_back(beginning: int, end: int, first: int) -> Iterator[tuple[int, int]]:
    """Ranges of offsets (from, below) that lead from `end` back to `beginning`: `first` records, then more and more."""
    window, below = first, end
    while below > beginning:
        start = max(beginning, end - window)
        yield start, below
        window, below = min(window * 4, window + _LARGEST_STEP), start
