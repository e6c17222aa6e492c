"""An open transaction holds up the senders of its partition: `status` and `doctor` say so."""

from __future__ import annotations

import json
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import confluent_kafka
import pytest
from kafka.structs import TopicPartition

from connectors.diagnosis.doctor import _transactions
from connectors.diagnosis.status import read_status
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log import open_transactions as module
from connectors.kafka.log.open_transactions import OpenTransaction, open_transactions
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.spark.job import StreamingJob
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.names import ROLES, Role, Topic
from tests.waiting import eventually

FORWARD = TopicPartition("abcast.g.forward.nyc", 0)
WAIT_S = 30.0


def opened(connection: Connection, *places: TopicPartition) -> list[OpenTransaction]:
    with closing(connection.consumer()) as consumer:
        return list(open_transactions(connection, consumer, places))


def test_one_that_is_used_as_it_should_be_is_not_told() -> None:
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    kafka.topics.append(FORWARD, b"nyc/a", b"", forward_headers(5, 1))
    assert opened(kafka, FORWARD) == []
    kafka.topics.transact(FORWARD, [b"", b""])
    assert opened(kafka, FORWARD) == []
    records = kafka.topics.partitions[FORWARD]
    for offset in (1, 2):
        records[offset] = records[offset]._replace(timestamp=records[offset].timestamp - 60_000)
        (found,) = opened(kafka, FORWARD)
        assert (found.topic, found.partition, found.offset) == ("abcast.g.forward.nyc", 0, 1)
        assert 60 <= found.open_s < 90
        kafka.topics.drop(FORWARD.topic, 2)
    kafka.topics.end_transaction(FORWARD, commits=True)
    assert opened(kafka, FORWARD) == []


@pytest.mark.parametrize("role", ROLES)
def test_only_what_counts_once_it_is_committed_is_read_so_on_spark(role: Role) -> None:
    """An open transaction in DATA would hold up a ledger, and none of the members."""
    kafka = MemoryConnection()
    topic = str(Topic("g", role, "nyc", "sfo" if role in ("relayed", "entries") else ""))
    kafka.topics.partitions[TopicPartition(topic, 0)] = []
    job = SimpleNamespace(options=SimpleNamespace(connection=kafka), _batches=SimpleNamespace(begin=lambda *_: 10))
    source = StreamingJob.kafka_source(cast("Any", job), [topic], {})
    assert json.loads(source["startingOffsets"]) == {topic: {"0": 0}}
    committed = role in ("forward", "relayed")
    assert source["kafka.isolation.level"] == ("read_committed" if committed else "read_uncommitted")


@pytest.mark.broker
class TestOnABroker:
    @pytest.fixture
    def hung(self, broker: EmbeddedBroker) -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "hung", "linger.ms": 0}
        )
        producer.init_transactions(WAIT_S)
        return producer

    @pytest.mark.parametrize("transport", ["confluent", "kafka-python"])
    def test_who_it_is_that_holds_up_the_others(
        self,
        broker: EmbeddedBroker,
        hung: confluent_kafka.Producer,
        transport: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The check names an open transaction and the offset that Kafka's command needs, until it ends."""
        monkeypatch.setattr(module, "LONG_S", 0.0)
        connection, group = Connection(broker.bootstrap_servers, transport=transport), f"hung-{transport}"
        create_topics(connection, group, ["nyc"], partitions=2)
        with SequencerThread(connection, group):
            assert _transactions(connection, group, "nyc").is_ok
            hung.begin_transaction()
            topic = str(Topic(group, "forward", "nyc"))
            hung.produce(topic, b"x", b"nyc/hung", 1, headers=dict(forward_headers(5, 1)))
            assert hung.flush(WAIT_S) == 0
            eventually(lambda: read_status(connection, group, "nyc").open_transactions)
            (found,) = read_status(connection, group, "nyc").open_transactions
            assert (found.topic, found.partition, found.offset) == (topic, 1, found.offset)
            check = _transactions(connection, group, "nyc")
            assert check.is_ok is False
            assert f"abort --topic {topic} --partition 1 --start-offset {found.offset}" in check.detail
            hung.abort_transaction(WAIT_S)
            eventually(lambda: not read_status(connection, group, "nyc").open_transactions)
