"""Append records to topics, and wait until Kafka has stored them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka.errors import MessageSizeTooLargeError

from connectors.kafka.connection.connection import Connection
from connectors.kafka.transport import Producer, Sent
from ordering.base.errors import BrokerUnreachable, KafkaRefused

Record = tuple[bytes | None, bytes, list[tuple[str, bytes]]]
"""The key, the value and the headers of a record, as `connectors.kafka.codec.codec` encodes them."""

WRITTEN_S = 30.0
"""The seconds within which Kafka must have stored a record, unless the caller gives another limit."""
_CLOSED_S = 10.0
_UNDER_WAY = 1000
"""The most records on their way to Kafka at once."""


@contextmanager
def producing(connection: Connection, **settings: Any) -> Iterator[Producer]:
    """Open a producer, closed at the end. Raises BrokerUnreachable."""
    producer = connection.producer(**settings)
    try:
        yield producer
    finally:
        producer.close(timeout=_CLOSED_S)


def append_all(connection: Connection, records: Iterable[tuple[str, Record]]) -> None:
    """Append records, each to partition 0 of its topic, and wait until Kafka has stored all of them.

    Raises BrokerUnreachable, KafkaRefused: then some may be stored.
    """
    under_way = deque[tuple[str, bytes, Sent]]()

    def await_first() -> None:
        topic, value, sent = under_way.popleft()
        with _writing(connection, topic, value):
            sent.get(timeout=WRITTEN_S)

    with producing(connection) as producer:
        for topic, (key, value, headers) in records:
            with _writing(connection, topic, value):
                sent = producer.send(topic, key=key, value=value, headers=headers, partition=0)
            under_way.append((topic, value, sent))
            if len(under_way) >= _UNDER_WAY:
                await_first()
        while under_way:
            await_first()


def append(
    connection: Connection,
    topic: str,
    record: Record,
    *,
    partition: int | None = 0,
    producer: Producer | None = None,
    timeout_s: float = WRITTEN_S,
) -> int:
    """Append one record and wait until Kafka has stored it; return its offset.

    With `partition=None` the key chooses one. Without a `producer` one is opened for this record. Raises KafkaRefused;
    BrokerUnreachable, also if Kafka stores the record and does not tell where: it was sent twice, and the broker has
    forgotten the first time.
    """
    if producer is None:
        with producing(connection) as own:
            return append(connection, topic, record, partition=partition, producer=own)
    key, value, headers = record
    with _writing(connection, topic, value):
        sent = producer.send(topic, key=key, value=value, headers=headers, partition=partition)
        offset = int(sent.get(timeout=timeout_s).offset)
    if offset < 0:
        raise BrokerUnreachable(f"Kafka does not tell the offset of a record in {topic}: try again.")
    return offset


@contextmanager
def _writing(connection: Connection, topic: str, value: bytes) -> Iterator[None]:
    """Turn errors as `Connection.reachable` does, and a record that the topic does not take into KafkaRefused."""
    with connection.reachable("WRITE", topic):
        try:
            yield
        except MessageSizeTooLargeError:
            raise KafkaRefused(
                f"{topic} takes no record of {len(value or b'')} bytes: raise its max.message.bytes, and start again."
            ) from None
