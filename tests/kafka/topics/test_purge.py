"""Purging FORWARD and dead letters deletes records that are never read again, and no others."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from types import SimpleNamespace

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.client.memory.incarnation_numbers import IncarnationNumbers
from connectors.diagnosis.check import check_data
from connectors.kafka.codec.epochs import Move, encode_move
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.purge import considered, purge_group
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.names import Topic
from ordering.checker.checker import Checker
from ordering.sequencer import sequencer

SITE = "nyc"
DAY_S = 86_400.0


def broadcast(connection: Connection, group: str, count: int, name: str = "alice") -> None:
    with Member(group, f"{SITE}/{name}", connection=connection) as alice:
        for receipt in [alice.broadcast(b"%d" % number) for number in range(count)]:
            receipt.result(20)


def span(connection: Connection, topic: Topic) -> tuple[int, int]:
    """Return the first offset and the end."""
    partition = TopicPartition(str(topic), 0)
    consumer = connection.consumer()
    try:
        return consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
    finally:
        consumer.close()


@pytest.fixture
def _snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each batch with a snapshot, and write only messages into FORWARD."""
    monkeypatch.setattr(IncarnationNumbers, "broker_ms", 0)
    monkeypatch.setattr(sequencer, "SNAPSHOT_EVERY_RECORDS", 1)
    monkeypatch.setattr(sequencer, "SNAPSHOT_RECORDS_PER_SENDER", 0)


def order_six(connection: Connection, group: str) -> None:
    """Order six messages; the snapshot of the last batch counts five of them."""
    with SequencerThread(connection, group, SITE):
        broadcast(connection, group, 5)
        broadcast(connection, group, 1)


@pytest.mark.broker
@pytest.mark.usefixtures("_snapshots")
def test_what_was_considered_goes_and_the_order_goes_on(broker: EmbeddedBroker) -> None:
    connection, group = Connection(broker.bootstrap_servers), "purge-1"
    forward, dead = Topic(group, "forward", SITE), Topic(group, "dead-letter", SITE)
    create_topics(connection, group, [SITE])
    append(connection, str(dead), (None, b"x", []))
    order_six(connection, group)
    with closing(connection.producer()) as producer:  # what nobody has considered
        for number in range(3):
            producer.send(str(forward), key=b"nyc/bob", value=b"%d" % number, headers=[("abcast", b"2 message 1 1")])
    [letters, planned] = purge_group(connection, group, SITE, dead_letters_s=DAY_S, dry_run=True)
    assert (letters.records, planned.records) == (0, 5)
    assert span(connection, forward) == (0, 9)
    [letters, done] = purge_group(connection, group, SITE, dead_letters_s=DAY_S)
    assert (letters.records, done.records) == (0, 5)
    assert span(connection, forward) == (5, 9)
    assert span(connection, dead) == (0, 1)
    [again, _] = purge_group(connection, group, SITE, dead_letters_s=DAY_S)[::-1]
    assert again.records == 0

    with SequencerThread(connection, group, SITE):
        broadcast(connection, group, 2)
    with DataLog(connection, group, SITE) as data:
        state = data.state()
    assert state.seqno == 6 + 1 + 2, "of bob's three, two repeat the first"
    checker = Checker()
    check_data(checker, connection, group, SITE)
    assert checker.finish() == []
    time.sleep(0.01)
    assert sum(each.records for each in purge_group(connection, group, SITE, dead_letters_s=0.001)) >= 1
    assert span(connection, dead) == (1, 1)


@pytest.mark.usefixtures("_snapshots")
class TestWhatIsLeftAlone:
    """Records that another reader may need are kept. In memory."""

    @pytest.fixture
    def kafka(self) -> MemoryConnection:
        kafka = MemoryConnection()
        kafka.create("g", SITE)
        order_six(kafka, "g")
        return kafka

    @staticmethod
    def considered(kafka: MemoryConnection) -> dict[TopicPartition, int]:
        topics = (Topic.parse(place.topic) for place in kafka.topics.partitions)
        return considered(kafka, "g", SITE, [topic for topic in topics if topic is not None])

    def test_a_group_of_one_site(self, kafka: MemoryConnection) -> None:
        assert self.considered(kafka) == {TopicPartition("abcast.g.forward.nyc", 0): 5}

    def test_the_home_of_a_hub(self, kafka: MemoryConnection) -> None:
        """The home may change, and a former or later home needs the records of its FORWARD."""
        kafka.topics.partitions[TopicPartition(str(Topic("g", "relayed", SITE, "sfo")), 0)] = []
        assert self.considered(kafka) == {}

    def test_a_topic_that_is_gone(self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        """DATA still has the position of the deleted topic. The dead letters are purged all the same."""
        dead, deleted = TopicPartition(str(Topic("g", "dead-letter", SITE)), 0), dict[TopicPartition, int]()
        append(kafka, dead.topic, (None, b"x", []))
        del kafka.topics.partitions[TopicPartition(str(Topic("g", "forward", SITE)), 0)]
        admin = SimpleNamespace(
            list_topics=lambda: [place.topic for place in kafka.topics.partitions],
            describe_log_dirs=lambda _: [],
            delete_records=deleted.update,
        )
        monkeypatch.setattr(MemoryConnection, "admin", lambda _: nullcontext(admin))
        time.sleep(0.01)
        [purged] = purge_group(kafka, "g", SITE, dead_letters_s=0.001)
        assert (purged.records, deleted) == (1, {dead: 1})

    def test_a_home_that_has_moved(self, kafka: MemoryConnection) -> None:
        append(kafka, str(Topic("g", "epoch", SITE)), (None, *encode_move(Move("sfo", 7))))
        assert self.considered(kafka) == {}

    def test_a_group_without_a_sequencer(self) -> None:
        kafka = MemoryConnection()
        kafka.create("g", SITE)
        assert self.considered(kafka) == {}

    def test_what_no_snapshot_counts(self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        """A successor would read them again, to find that they were decided."""
        monkeypatch.setattr(sequencer, "SNAPSHOT_EVERY_RECORDS", 1000)
        with SequencerThread(kafka, "g", SITE):
            broadcast(kafka, "g", 3, "bob")
        assert self.considered(kafka) == {TopicPartition("abcast.g.forward.nyc", 0): 5}

    def test_sites_that_agree(self, kafka: MemoryConnection) -> None:
        """Sites that agree order by reference to FORWARD."""
        headers = [("abcast", b"2 claim")]
        kafka.producer().send(str(Topic("g", "epoch", SITE)), value=b"0 host 7 isis", headers=headers)
        assert self.considered(kafka) == {}
