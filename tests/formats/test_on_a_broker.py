"""A log of an earlier version in a real Kafka is read, continued, and given a later format."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.diagnosis.status import read_status
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.kafka.topics.upgrade import upgrade
from connectors.local.broker import EmbeddedBroker
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import LaterVersion
from ordering.base.formats import FIRST, NEWEST
from tests.formats.make import kafka_of
from tests.formats.test_earlier import VERSIONS

pytestmark = pytest.mark.broker
GZIP = b"\x1f\x8b"


def renamed(value: bytes, group: str) -> bytes:
    """Replace the fixture's group in a header, or in a snapshot, which is compressed."""
    if value.startswith(GZIP):
        return gzip.compress(renamed(gzip.decompress(value), group))
    named = value.replace(b"abcast.g.", b"abcast.%b." % group.encode())
    return named.replace(b'"group":"g"', b'"group":"%b"' % group.encode())


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
@pytest.mark.parametrize("transport", ["kafka-python", pytest.param("confluent", marks=pytest.mark.soak)])
def test_from_an_earlier_version_to_a_later_format(broker: EmbeddedBroker, version: Path, transport: str) -> None:
    kafka = kafka_of(version / "group.jsonl")
    connection = Connection(broker.bootstrap_servers, transport=transport)
    group = f"formats-{transport}"
    create_topics(connection, group, ["nyc"])
    producer = connection.producer()
    for role in ("forward", "epoch", "data"):
        for record in kafka.topics.partitions[TopicPartition(f"abcast.g.{role}.nyc", 0)]:
            headers = [(name, renamed(value, group)) for name, value in record.headers]
            value = record.value and renamed(record.value, group)
            producer.send(f"abcast.{group}.{role}.nyc", key=record.key, value=value, headers=headers)
    producer.flush(timeout=10)
    producer.close(timeout=10)
    with Member(group, "nyc/dave", connection=connection) as dave:
        with SequencerThread(connection, group, "nyc"):
            assert dave.broadcast(b"1").result(20) == 27
            assert read_status(connection, group, "nyc").format == FIRST.number
            assert upgrade(connection, group, "nyc")[:2] == (FIRST.number, NEWEST.number)
        with SequencerThread(connection, group, "nyc"):
            assert dave.broadcast(b"2").result(20) == 28
            assert read_status(connection, group, "nyc").format == NEWEST.number
            assert len(list(dave.deliveries(from_seqno=1, timeout=2))) == 13
    epochs = connection.producer()
    epochs.send(f"abcast.{group}.epoch.nyc", value=b"9 9.8.7", headers=[("abcast", b"2 format")])
    epochs.flush(timeout=10)
    epochs.close(timeout=10)
    with pytest.raises(LaterVersion, match=r"install abcast 9\.8\.7 or later here"):
        SequencerThread(connection, group, "nyc").__enter__()
