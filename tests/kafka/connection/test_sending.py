"""Write a record and wait for it."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.connection.ranges import read_range
from connectors.kafka.connection.sending import append, append_all
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import MemoryFuture
from ordering.base.errors import BrokerUnreachable, HistoryUnavailable, KafkaRefused

TOPIC = "abcast.g.forward.nyc"


@pytest.fixture
def kafka() -> MemoryConnection:
    connection = MemoryConnection()
    connection.create("g", "nyc", partitions=2)
    return connection


def test_the_offset_is_told(kafka: MemoryConnection) -> None:
    producer = kafka.producer()
    assert append(kafka, TOPIC, (None, b"1", [])) == 0
    assert append(kafka, TOPIC, (None, b"2", [("name", b"value")]), producer=producer) == 1
    [_, record] = read_range(kafka, kafka.consumer(), TopicPartition(TOPIC, 0), 0, 2)
    assert (record.value, record.headers) == (b"2", [("name", b"value")])


def test_an_offset_that_kafka_does_not_tell_is_none(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFuture, "get", lambda sent, timeout: MemoryFuture(sent.topic_partition))
    with pytest.raises(BrokerUnreachable, match=f"does not tell the offset of a record in {TOPIC}: try again"):
        append(kafka, TOPIC, (None, b"1", []))


def test_a_topic_that_takes_no_such_record_is_named(kafka: MemoryConnection) -> None:
    kafka.topics.limits[TOPIC] = 10
    with pytest.raises(KafkaRefused, match=rf"^{TOPIC} takes no record of 11 bytes: raise its max.message.bytes"):
        append(kafka, TOPIC, (None, bytes(11), []))
    with pytest.raises(KafkaRefused, match=rf"^{TOPIC} takes no record of 12 bytes: raise its max.message.bytes"):
        append_all(kafka, [(TOPIC, (None, bytes(size), [])) for size in (1, 12)])


def test_without_a_partition_the_key_tells_it(kafka: MemoryConnection) -> None:
    append(kafka, TOPIC, (b"a", b"", []), partition=None)
    assert [len(kafka.topics.partitions[TopicPartition(TOPIC, number)]) for number in (0, 1)] == [1, 0]


def test_a_range_ends_before_its_end_and_tells_what_retention_took(kafka: MemoryConnection) -> None:
    for number in range(5):
        append(kafka, TOPIC, (None, b"%d" % number, []))
    partition, consumer = TopicPartition(TOPIC, 0), kafka.consumer()
    assert [record.offset for record in read_range(kafka, consumer, partition, 1, 4)] == [1, 2, 3]
    assert list(read_range(kafka, consumer, partition, 4, 4)) == []
    kafka.topics.drop(TOPIC, 3)
    with pytest.raises(HistoryUnavailable, match="retention has dropped offset 1"):
        list(read_range(kafka, consumer, partition, 1, 4))
