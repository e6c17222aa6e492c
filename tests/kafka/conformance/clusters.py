"""Kafkas under test: the one in memory, and a real broker through each library.

A `Cluster` gives what a case can't do through `connectors.kafka.transport.seam`: topics, retention, transactions.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Sequence
from typing import Protocol

import confluent_kafka
from kafka.admin import NewTopic
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.testing.memory_kafka import MemoryConnection
from tests.waiting import WAIT

PARTITIONS = 3
_numbers = itertools.count(1)


class Cluster(Protocol):
    """A Kafka, and the acts of its operator."""

    connection: Connection

    def create(self) -> str:
        """Create a topic of PARTITIONS; return its name."""

    def recreate(self, topic: str) -> None:
        """Delete the topic and create it again."""

    def delete(self, topic: str) -> None:
        """Delete the topic."""

    def delete_records(self, place: TopicPartition, below: int) -> None:
        """Delete the records below the offset, as retention does."""

    def transact(self, place: TopicPartition, values: Sequence[bytes], *, commits: bool | None) -> None:
        """Append the records in one transaction. It commits, aborts or, for None, stays open."""


class MemoryCluster:
    """`connectors.testing.memory_kafka`."""

    def __init__(self) -> None:
        self.connection: Connection
        self._memory = self.connection = MemoryConnection(timeout=1.0)
        self._kafka = self._memory.topics

    def create(self) -> str:
        """Create a topic."""
        topic = f"conformance-{next(_numbers)}"
        self._kafka.partitions |= {TopicPartition(topic, number): [] for number in range(PARTITIONS)}
        return topic

    def recreate(self, topic: str) -> None:
        """Recreate it."""
        self._kafka.make_anew([topic])

    def delete(self, topic: str) -> None:
        """Delete it."""
        self._kafka.delete(topic)

    def delete_records(self, place: TopicPartition, below: int) -> None:
        """Delete records."""
        with self.connection.admin() as admin:
            admin.delete_records({place: below})

    def transact(self, place: TopicPartition, values: Sequence[bytes], *, commits: bool | None) -> None:
        """Append a transaction."""
        if commits is None:
            self._kafka.open[place] = len(self._kafka.partitions[place])
        for value in values:
            stored = self._kafka.append(place, None, value, [])
            if commits is False:
                self._kafka.aborted.add((place, stored.offset))
        if commits is not None:
            self._kafka.mark(place)


class BrokerCluster:
    """A real broker, through one of the libraries."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._open: list[confluent_kafka.Producer] = []

    def create(self) -> str:
        """Create a topic."""
        topic = f"conformance-{next(_numbers)}-{time.time_ns()}"
        self._create(topic)
        return topic

    def recreate(self, topic: str) -> None:
        """Recreate it, as soon as the broker has forgotten the old one."""
        self.delete(topic)
        self._create(topic)

    def delete(self, topic: str) -> None:
        """Delete it, and wait until the broker has forgotten it."""
        with self.connection.admin() as admin:
            admin.delete_topics([topic])
            deadline = time.monotonic() + WAIT
            while topic in admin.list_topics():
                assert time.monotonic() < deadline, "the topic is still there"
                time.sleep(0.05)

    def _create(self, topic: str) -> None:
        with self.connection.admin() as admin:
            settings = {"message.timestamp.type": "LogAppendTime"}
            admin.create_topics([NewTopic(topic, PARTITIONS, 1, topic_configs=settings)])
            admin.wait_for_topics([topic])

    def delete_records(self, place: TopicPartition, below: int) -> None:
        """Delete records."""
        with self.connection.admin() as admin:
            admin.delete_records({place: below})

    def transact(self, place: TopicPartition, values: Sequence[bytes], *, commits: bool | None) -> None:
        """Append a transaction."""
        settings = {"bootstrap.servers": self.connection.bootstrap_servers, "transactional.id": f"t{time.time_ns()}"}
        producer = confluent_kafka.Producer(settings)
        producer.init_transactions(WAIT)
        producer.begin_transaction()
        for value in values:
            producer.produce(place.topic, value, partition=place.partition)
        producer.flush(WAIT)
        if commits is None:
            self._open.append(producer)
            return
        (producer.commit_transaction if commits else producer.abort_transaction)(WAIT)
        with (
            contextlib.closing(self.connection.consumer()) as consumer,
            contextlib.closing(self.connection.consumer(isolation_level="read_committed")) as committed,
        ):
            deadline = time.monotonic() + WAIT
            while committed.end_offsets([place]) != consumer.end_offsets([place]):  # the broker writes the marker later
                assert time.monotonic() < deadline, "the transaction has no marker"
                time.sleep(0.02)

    def close(self) -> None:
        """Abort the transactions that are open."""
        for producer in self._open:
            producer.abort_transaction(WAIT)
