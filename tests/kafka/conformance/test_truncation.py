"""A log that loses records below its high-water mark: a follower that was not in sync becomes the leader.

The topic allows that (`unclean.leader.election.enable`), which abcast's own do not. A power failure of the only broker,
or of all in-sync ones, does the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.local.broker import EmbeddedBroker
from ordering.base.errors import AbcastError
from tests.kafka.conformance.clusters import BrokerCluster, Cluster, MemoryCluster
from tests.kafka.conformance.reading import fill, out_of_range, read_to
from tests.kafka.polling import read
from tests.waiting import eventually

LEADER, FOLLOWER = 0, 1
PATIENCE_S = 90.0


class LosingCluster(Cluster, Protocol):
    """A cluster that can lose the end of a log."""

    def losing(self, place: TopicPartition) -> contextlib.AbstractContextManager[None]:
        """Lose the records that are appended within the block."""


class LosingMemory(MemoryCluster):
    """`connectors.testing.memory_kafka`."""

    @contextlib.contextmanager
    def losing(self, place: TopicPartition) -> Iterator[None]:
        end = len(self._kafka.partitions[place])
        yield
        self._kafka.truncate(place.topic, end, place.partition)


class LosingBrokers(BrokerCluster):
    """Three brokers. A topic is on two of them."""

    def _create(self, topic: str) -> None:
        settings = {
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": "1",
            "unclean.leader.election.enable": "true",
        }
        with self.connection.admin() as admin:
            admin.create_topics([NewTopic(topic, replica_assignments={0: [LEADER, FOLLOWER]}, topic_configs=settings)])
            admin.wait_for_topics([topic])
        eventually(lambda: self._state(topic) == (LEADER, {LEADER, FOLLOWER}), PATIENCE_S, "both are in sync", 0.2)

    def _state(self, topic: str) -> tuple[int, set[int]]:
        """The partition's leader and its in-sync replicas; no leader if a broker that is stopped was asked."""
        try:
            with self.connection.admin() as admin:
                [found] = admin.describe_topics([topic])
        except (AbcastError, KafkaError):
            return -1, set()
        [partition] = found["partitions"]
        return partition["leader_id"], set(partition["isr_nodes"])

    @contextlib.contextmanager
    def losing(self, place: TopicPartition) -> Iterator[None]:
        pid = self.broker.status().nodes[FOLLOWER].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: self._state(place.topic) == (LEADER, {LEADER}), PATIENCE_S, "one is in sync", 0.2)
            yield
            self.broker.kill(LEADER)
        finally:
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: self._state(place.topic)[0] == FOLLOWER, PATIENCE_S, "the other one leads", 0.2)
        self.broker.start()
        both = (FOLLOWER, {LEADER, FOLLOWER})
        eventually(lambda: self._state(place.topic) == both, PATIENCE_S, "both are in sync again", 0.2)


# A new client of kafka-python may wait too long for the broker that is stopped.
REAL = [pytest.param("confluent", marks=[pytest.mark.broker, pytest.mark.crash, pytest.mark.soak])]


@pytest.fixture(params=["memory", *REAL])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LosingCluster]:
    if request.param == "memory":
        yield LosingMemory()
        return
    with (
        EmbeddedBroker(tmp_path / "cluster", port=0, nodes=3) as brokers,
        contextlib.closing(LosingBrokers(brokers, request.param)) as real,
    ):
        yield real


@pytest.mark.timeout(300)
def test_truncation_amid_transactions(cluster: LosingCluster) -> None:
    """A transaction that loses its marker is open again, for good. Readers of all records go on."""
    place = TopicPartition(cluster.create(), 0)
    with contextlib.closing(cluster.connection.producer()) as producer:
        fill(producer, place, 2)
    cluster.transact(place, [b"2", b"3"], commits=True)
    cluster.transact(place, [b"5", b"6"], commits=None)
    with cluster.losing(place):
        cluster.end_transaction(place, commits=True)
        cluster.transact(place, [b"8"], commits=True)
        with contextlib.closing(cluster.connection.consumer(isolation_level="read_committed")) as committed:
            assert committed.end_offsets([place]) == {place: 10}
    with (
        contextlib.closing(cluster.connection.consumer()) as consumer,
        contextlib.closing(cluster.connection.consumer(isolation_level="read_committed")) as committed,
        contextlib.closing(cluster.connection.producer()) as producer,
    ):
        assert consumer.end_offsets([place]) == {place: 7}
        assert committed.end_offsets([place]) == {place: 5}
        assert [record.offset for record in read_to(committed, place, 0, 5)] == [0, 1, 2, 3]
        out_of_range(consumer, place, 8)
        fill(producer, place, 1)
        assert [record.offset for record in read(consumer, place, 5, 8)] == [5, 6, 7]
        assert committed.end_offsets([place]) == {place: 5}
