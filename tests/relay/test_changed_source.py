"""A start notices that a relay's source is another log than the one of the copy."""

from __future__ import annotations

from contextlib import closing

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import encode_data, forward_headers
from connectors.relay.marks import _place_of_mark, is_anew, last_copy
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic
from ordering.base.records import ENTRY, Data, Source
from tests.changed_logs import CHANGES, Change, change

WAYS = {
    Topic("g", "forward", "nyc"): Topic("g", "relayed", "sfo", "nyc"),
    Topic("g", "inbox", "sfo"): Topic("g", "inbox", "sfo"),
    Topic("g", "cast", "nyc"): Topic("g", "cast", "nyc"),
    Topic("g", "data", "nyc"): Topic("g", "entries", "sfo", "nyc"),
}


def fill(kafka: MemoryConnection, topic: Topic) -> None:
    """Append heartbeats of several members, letters, casts and entries with similar headers and values."""
    place = TopicPartition(str(topic), 0)
    for number in range(6):
        key: bytes | None = b"nyc/m%d" % number
        value, headers = b"", forward_headers(1, 1, kind="heartbeat")
        if topic.role == "inbox":
            key, headers = b"sfo/r", [("abcast", b"2 letter 1 %d nyc/m" % number)]
        elif topic.role == "cast":
            headers = [("abcast", b"2 cast 1 %d fifo - - -" % number)]
        elif topic.role == "data":
            key, value, headers = encode_data(Data(ENTRY, 1, local_seqno=number))
        kafka.topics.append(place, key, value, headers)


def relay(source: MemoryConnection, target: MemoryConnection, topic: Topic, filled: Topic) -> None:
    """Copy the whole log, each record with its source."""
    at = _place_of_mark(str(filled))
    for record in source.topics.partitions[TopicPartition(str(topic), 0)]:
        name, text = record.headers[0]
        fields = text.split(b" ")[:at]
        fields += [b"-"] * (at - len(fields)) + [b"nyc/%s-0:%d" % (str(topic).encode(), record.offset)]
        target.topics.append(TopicPartition(str(filled), 0), record.key, record.value, [(name, b" ".join(fields))])


@pytest.mark.parametrize("how", [*CHANGES, list], ids=lambda how: how.__name__)
@pytest.mark.parametrize("topic", WAYS, ids=lambda topic: topic.role)
def test_a_source_that_has_changed(topic: Topic, how: Change) -> None:
    kafka, there = MemoryConnection(), MemoryConnection()
    place, filled = TopicPartition(str(topic), 0), WAYS[topic]
    kafka.topics.partitions[place] = []
    there.topics.partitions[TopicPartition(str(filled), 0)] = []
    fill(kafka, topic)
    relay(kafka, there, topic, filled)
    change(kafka, str(topic), how)
    copy = last_copy(there, str(filled), 0, Source(f"nyc/{topic}", 0, 0))
    with closing(kafka.consumer()) as consumer:
        assert is_anew(kafka, consumer, place, copy) is (how is not list)
