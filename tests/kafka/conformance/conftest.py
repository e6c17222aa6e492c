"""The Kafkas, and clients of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.transport import TRANSPORTS, Consumer, Producer
from tests.kafka.conformance.clusters import BrokerCluster, Cluster, MemoryCluster

MEMORY = "memory"
REAL = [pytest.param(name, marks=pytest.mark.broker) for name in TRANSPORTS]


@pytest.fixture(params=[MEMORY, *REAL])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == MEMORY:
        yield MemoryCluster()
        return
    with contextlib.closing(BrokerCluster(request.getfixturevalue("broker"), request.param)) as real:
        yield real


@pytest.fixture
def topic(cluster: Cluster) -> str:
    return cluster.create()


@pytest.fixture
def place(topic: str) -> TopicPartition:
    return TopicPartition(topic, 0)


@pytest.fixture
def producer(cluster: Cluster) -> Iterator[Producer]:
    producer = cluster.connection.producer(linger_ms=5)
    yield producer
    producer.abandon()


@pytest.fixture
def consumer(cluster: Cluster) -> Iterator[Consumer]:
    with contextlib.closing(cluster.connection.consumer()) as consumer:
        yield consumer


@pytest.fixture
def committed(cluster: Cluster) -> Iterator[Consumer]:
    """A consumer of committed records."""
    with contextlib.closing(cluster.connection.consumer(isolation_level="read_committed")) as consumer:
        yield consumer
