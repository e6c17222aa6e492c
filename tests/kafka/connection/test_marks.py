"""A log may end with a record that no consumer returns: a transaction's mark. No reader waits for a record there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import confluent_kafka
import pytest

from connectors.kafka.connection import ranges
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import newest_record, read_range
from connectors.kafka.topics.topics import create_topics, new_topic
from connectors.kafka.transport import TRANSPORTS
from connectors.local.broker import EmbeddedBroker
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import BrokerUnreachable
from ordering.base.names import BY_RELAYS, Topic
from tests.kafka.readers import GROUP, READERS, SITE, Reader, fill, place
from tests.kafka.readers import kafka as kafka
from tests.waiting import WAIT


def within(seconds: float, what: Callable[[], object]) -> object:
    """Return the result of `what`. Fail if it takes longer."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(what()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"it has not come to an end within {seconds:g} s"
    return found[0]


@pytest.mark.parametrize("reader", READERS, ids=str)
@pytest.mark.parametrize("marks", [1, 3])
def test_each_reader_comes_to_an_end(kafka: MemoryConnection, reader: Reader, marks: int) -> None:
    """A mark costs no more time: a reader that waits in silence for as long as a broker may take would exceed it."""
    before = within(WAIT, lambda: reader.read(kafka, GROUP))
    for _ in range(marks):
        kafka.topics.mark(place(reader.role))
    started = time.monotonic()
    after = within(WAIT, lambda: reader.read(kafka, GROUP))
    assert time.monotonic() - started < kafka.timeout
    assert after != -1, "the copy tells its source"
    if reader.name not in ("status", "a name's notes"):  # these tell of the time and of positions, too
        assert _plain(after) == _plain(before)


def _plain(found: object) -> object:
    return repr(found) if hasattr(found, "__slots__") else found


def test_the_last_record_is_found_before_the_marks(kafka: MemoryConnection) -> None:
    where = place("data")
    end = len(kafka.topics.partitions[where])
    for _ in range(20):
        kafka.topics.mark(where)
    found = newest_record(kafka, kafka.consumer(), where, 0, end + 20)
    assert found is not None
    assert found.offset == end - 1


def test_a_reader_of_a_range_does_not_wait_for_ever(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that returns nothing any more raises."""
    monkeypatch.setattr(MemoryConsumer, "poll", lambda *_, **__: {})
    monkeypatch.setattr(ranges, "time", SimpleNamespace(monotonic=iter(range(0, 1000, 5)).__next__))
    with pytest.raises(BrokerUnreachable):
        list(read_range(kafka, kafka.consumer(), place("data"), 0, 2))


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.parametrize("name", TRANSPORTS)
class TestOnABroker:
    """Transactions that were committed or aborted, and an open one."""

    @pytest.fixture
    def connection(self, broker: EmbeddedBroker, name: str, monkeypatch: pytest.MonkeyPatch) -> Connection:
        monkeypatch.setattr("connectors.kafka.topics.letter_purge.SETTLED_S", 0.0)
        return Connection(broker.bootstrap_servers, transport=name)

    @pytest.fixture
    def group(self, connection: Connection, name: str) -> str:
        group = f"marks-{name}"
        create_topics(connection, group, [SITE])
        with connection.admin() as admin:
            admin.create_topics([new_topic(Topic(group, role, SITE, "sfo")) for role in BY_RELAYS])
            admin.wait_for_topics([place(role, group).topic for role in BY_RELAYS])
        fill(connection, group)
        return group

    @pytest.fixture
    def producer(self, connection: Connection, group: str) -> Iterator[confluent_kafka.Producer]:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": connection.bootstrap_servers, "transactional.id": group}
        )
        producer.init_transactions(WAIT)
        yield producer
        with contextlib.suppress(confluent_kafka.KafkaException):
            producer.abort_transaction(WAIT)

    def test_each_reader_comes_to_an_end(
        self, connection: Connection, group: str, producer: confluent_kafka.Producer
    ) -> None:
        roles = dict.fromkeys(reader.role for reader in READERS)
        for ends in (producer.commit_transaction, producer.abort_transaction, None):
            producer.begin_transaction()
            for role in roles:
                topic, number = place(role, group)
                producer.produce(topic, b"none of abcast's", b"nobody", number, headers=[])
            producer.flush(WAIT)
            if ends is not None:
                ends(WAIT)
            for reader in READERS:
                if reader.role != "epoch":  # where a stranger's record is told, and costs a line each
                    within(WAIT, lambda reader=reader: reader.read(connection, group))  # type: ignore[misc]
