"""Reading a group's dead letters: refused FORWARD records, whole, with the reason and their places in FORWARD."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.dead_letter_codec import decode_dead_letter
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.log.data_log import topic_missing
from ordering.base.names import Topic
from ordering.base.records import Headers


class StoredLetter(NamedTuple):
    """A dead letter at `offset` of its topic. `source` is the record's place in FORWARD, `sender` its key.

    `at_ms`: the time of the refusal, by the broker's clock. Sender, payload and headers are unchecked: any bytes.
    """

    offset: int
    at_ms: int
    source: str
    reason: str
    sender: bytes | None
    payload: bytes | None
    headers: Headers


def read_dead_letters(
    connection: Connection, group: str, site: str, *, last: int | None = None, offset: int | None = None
) -> Iterator[StoredLetter]:
    """Yield the dead letters that are still there, oldest first: all, the `last` ones, or the one at `offset`.

    Raises BrokerUnreachable, TopicMissing; HistoryUnavailable if retention drops letters during the read.
    """
    topic = str(Topic(group, "dead-letter", site))
    partition = TopicPartition(topic, 0)
    with closing(connection.consumer()) as consumer:
        with connection.reachable():
            if not consumer.partitions_for_topic(topic):
                raise topic_missing(topic, group, site)
            beginning, end = (
                offsets([partition])[partition] for offsets in (consumer.beginning_offsets, consumer.end_offsets)
            )
        if offset is not None:
            beginning, end = max(beginning, offset), min(end, offset + 1)
        elif last is not None:
            beginning = max(beginning, end - last)
        for record in read_range(connection, consumer, partition, beginning, end):
            source, reason, headers = decode_dead_letter(record.headers)
            yield StoredLetter(record.offset, record.timestamp, source, reason, record.key, record.value, headers)
