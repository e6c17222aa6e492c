"""Kafkas under test: the one in memory, and a real broker through each library.

A `Cluster` gives what a case can't do through `connectors.kafka.transport.seam`: topics, retention, transactions.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import confluent_kafka
from kafka.admin import ConfigResource, NewTopic
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.local.broker import EmbeddedBroker
from connectors.testing.memory_kafka import MemoryConnection
from tests.kafka.polling import read
from tests.waiting import WAIT, eventually

PARTITIONS = 3
BEFORE_THE_MARKER_S = 0.02
"""Between a transaction's last record and its marker: more than a tick of the broker's clock."""
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

    def end_transaction(self, place: TopicPartition, *, commits: bool) -> None:
        """End the newest transaction, which is open."""

    def set_limit(self, topic: str, max_bytes: int) -> None:
        """Reject larger records from now on."""

    def compact(self, topic: str) -> None:
        """Compact the topic, whose partition 0 has records of one key; a record of another key is the last."""

    def stopped(self, place: TopicPartition) -> AbstractContextManager[None]:
        """Take requests for the partition within the block, and handle them behind it."""


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
        self._kafka.transact(place, values)
        if commits is not None:
            time.sleep(BEFORE_THE_MARKER_S)
            self._kafka.end_transaction(place, commits=commits)

    def end_transaction(self, place: TopicPartition, *, commits: bool) -> None:
        """End a transaction."""
        self._kafka.end_transaction(place, commits=commits)

    def set_limit(self, topic: str, max_bytes: int) -> None:
        """Set the limit."""
        self._kafka.limits[topic] = max_bytes

    def compact(self, topic: str) -> None:
        """Compact it."""
        self._kafka.compact(TopicPartition(topic, 0))

    @contextlib.contextmanager
    def stopped(self, place: TopicPartition) -> Iterator[None]:
        """Take the partition away."""
        self._kafka.take_away(place.topic, partition=place.partition)
        self._kafka.takes_abandoned = True
        yield
        self._kafka.bring_back(place.topic, place.partition)


class BrokerCluster:
    """A real broker, through one of the libraries."""

    def __init__(self, broker: EmbeddedBroker, transport: str) -> None:
        self.broker = broker
        self.connection = Connection(broker.bootstrap_servers, transport=transport)
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
        self._open.append(producer)
        if commits is not None:
            time.sleep(BEFORE_THE_MARKER_S)
            self.end_transaction(place, commits=commits)

    def end_transaction(self, place: TopicPartition, *, commits: bool) -> None:
        """End a transaction, and wait for its marker, unless another one is open."""
        producer = self._open.pop()
        (producer.commit_transaction if commits else producer.abort_transaction)(WAIT)
        if self._open:
            return
        with (
            contextlib.closing(self.connection.consumer()) as consumer,
            contextlib.closing(self.connection.consumer(isolation_level="read_committed")) as committed,
        ):
            deadline = time.monotonic() + WAIT
            while committed.end_offsets([place]) != consumer.end_offsets([place]):  # the broker writes the marker later
                assert time.monotonic() < deadline, "the transaction has no marker"
                time.sleep(0.02)

    def set_limit(self, topic: str, max_bytes: int) -> None:
        """Set the limit."""
        self._configure(topic, {"max.message.bytes": str(max_bytes)})

    def _configure(self, topic: str, settings: dict[str, str]) -> None:
        with self.connection.admin() as admin:
            admin.alter_configs([ConfigResource("topic", topic, settings)])

    def compact(self, topic: str) -> None:
        """Compact it: the broker looks every 15 s for logs to clean, and spares the newest segment."""
        small = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0.0", "cleanup.policy": "compact"}
        self._configure(topic, small)
        place = TopicPartition(topic, 0)
        with (
            contextlib.closing(self.connection.producer()) as producer,
            contextlib.closing(self.connection.consumer()) as consumer,
        ):
            producer.send(topic, b"last", b"the newest segment", partition=0).get(WAIT)
            eventually(lambda: read(consumer, place, 0, 1)[0].offset > 0, WAIT, "the first record is gone", 0.5)

    @contextlib.contextmanager
    def stopped(self, place: TopicPartition) -> Iterator[None]:
        """Stop the broker's process."""
        [node] = self.broker.status().nodes
        assert node.pid is not None
        os.kill(node.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(node.pid, signal.SIGCONT)

    def close(self) -> None:
        """Abort the transactions that are open."""
        for producer in self._open:
            producer.abort_transaction(WAIT)
