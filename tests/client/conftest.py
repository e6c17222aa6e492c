"""Run the tests of members in memory in the fast suite, and on a real broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.settings import change_settings
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.testing import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread

_numbers = itertools.count(1)

ON_A_BROKER = pytest.mark.parametrize("connection", [pytest.param("broker", marks=pytest.mark.broker)], indirect=True)
"""Tests that kill a process, or are too slow for the fast suite."""

ALSO_ON_A_BROKER = pytest.mark.parametrize(
    "connection", ["memory", pytest.param("broker", marks=pytest.mark.broker)], indirect=True
)
"""The test of each kind that uses the most of Kafka: the same in memory and on a broker, in `make test`."""


@pytest.fixture(params=["memory", pytest.param("broker", marks=[pytest.mark.broker, pytest.mark.soak])])
def connection(request: pytest.FixtureRequest) -> Connection:
    """Run every test that asks for a connection in memory, and in the soak on a broker, too.

    Members do the same on both. That Kafka does as the one in memory is for `tests/testing`, for
    `tests/kafka/transport/test_transport.py`, and for the tests with `ON_A_BROKER` or `ALSO_ON_A_BROKER`.
    """
    if request.param == "memory":
        return MemoryConnection()
    broker: EmbeddedBroker = request.getfixturevalue("broker")
    return Connection(broker.bootstrap_servers)


@pytest.fixture
def group(connection: Connection) -> str:
    """A new group at the site nyc, of two partitions."""
    name = f"group-{next(_numbers)}"
    if isinstance(connection, MemoryConnection):
        connection.create(name, "nyc", partitions=2)
    else:
        create_topics(connection, name, ["nyc"], partitions=2)
    return name


@pytest.fixture
def sequencer(connection: Connection, group: str) -> Iterator[SequencerThread]:
    """Order the group's messages."""
    with SequencerThread(connection, group) as running:
        yield running


@pytest.fixture
def flushing(connection: Connection, group: str) -> str:
    """A group with flush: its views separate messages of all orders."""
    change_settings(connection, group, "nyc", flush=True)
    return group
