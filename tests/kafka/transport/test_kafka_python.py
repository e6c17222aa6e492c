"""Our producer on kafka-python makes the library's own checks before it takes a record, and takes fewer turns."""

from __future__ import annotations

import time

import pytest
from kafka.errors import UnknownTopicOrPartitionError

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics, delete_topics, find_topics
from connectors.kafka.transport.kafka_python import _Producer
from connectors.local.broker import EmbeddedBroker
from tests.waiting import WAIT, eventually


class Metadata:
    """A cluster whose topic goes away between two looks."""

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return {0}

    def topics(self) -> set[str]:
        return set()


def test_a_topic_that_goes_away_meanwhile_takes_no_record() -> None:
    """A record that is taken without a partition would never be sent."""
    producer = object.__new__(_Producer)
    producer._closed, producer._metadata, producer._transaction_manager = False, Metadata(), None
    producer.config = {"max_request_size": 1 << 20, "api_version": (3, 0), "partitioner": None}
    try:
        with pytest.raises(UnknownTopicOrPartitionError, match="gone"):
            producer.send("gone", b"v", b"k", [])
    finally:
        producer._closed = True  # it has nothing to close


@pytest.mark.broker
def test_a_record_of_a_deleted_topic_keeps_no_thread_busy(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer's thread waits between two answers of the broker; a topic of this name takes the record."""
    connection, topic = Connection(broker.bootstrap_servers, transport="kafka-python"), "abcast.turns.forward.nyc"
    create_topics(connection, "turns", ["nyc"])
    producer = connection.producer()
    assert isinstance(producer, _Producer)
    try:
        producer.send(topic, b"v", b"k").get(WAIT)
        delete_topics(connection, [each for each in find_topics(connection) if each.group == "turns"])
        sender, turns = producer._sender, list[float]()
        turn = sender.run_once

        def counted() -> None:
            turns.append(time.monotonic())
            turn()

        monkeypatch.setattr(sender, "run_once", counted)
        sent = producer.send(topic, b"v", b"k")
        eventually(lambda: turns and time.monotonic() > turns[0] + 1.0)
        assert len(turns) < 300, "the library takes thousands"
        create_topics(connection, "turns", ["nyc"])
        sent.get(WAIT)
    finally:
        producer.abandon()
