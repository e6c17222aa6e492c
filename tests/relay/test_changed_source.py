"""A start notices that a relay's source is another log than the one of the copy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import RELAYED_FIELDS, encode_data, forward_headers
from connectors.kafka.codec.headers import first_fields
from connectors.kafka.connection.sites import Direction
from connectors.relay.marks import is_anew, last_copy
from connectors.relay.process.copying import copier
from connectors.relay.rules import Rule, agreed, casts, forward, letters
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic
from ordering.base.records import ENTRY, Data, Source
from tests.changed_logs import CHANGES, Change, change

WAY = Direction("nyc", "sfo")
FORWARD, RELAYED = Topic("g", "forward", "nyc"), Topic("g", "relayed", "sfo", "nyc")
WAYS = {
    FORWARD: RELAYED,
    Topic("g", "inbox", "sfo"): Topic("g", "inbox", "sfo"),
    Topic("g", "cast", "nyc"): Topic("g", "cast", "nyc"),
    Topic("g", "data", "nyc"): Topic("g", "entries", "sfo", "nyc"),
}
RULES: dict[str, Rule] = {
    "forward": forward(WAY),
    "inbox": letters(WAY, ()),
    "cast": casts(WAY, (), of_views=True),
    "data": agreed(WAY),
}
HEARTBEAT = b"nyc/m", b"", forward_headers(1, 1, kind="heartbeat")


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


def relay(source: MemoryConnection, target: MemoryConnection, topic: Topic, rule: Rule, *, early: bool = False) -> None:
    """Copy the whole log. `early`: as the relays of a hub did that did not write AT_MS."""
    make = copier(rule)
    for record in source.topics.partitions[TopicPartition(str(topic), 0)]:
        for copy in make(record):
            headers = copy.headers
            if early:
                headers = [("abcast", b" ".join(first_fields(headers, len(RELAYED_FIELDS))))]
            target.topics.append(TopicPartition(copy.topic, 0), copy.key, copy.value, headers)


def looks_anew(
    topic: Topic, fill_it: Callable[[MemoryConnection], None], how: Change, rule: Rule, *, early: bool = False
) -> bool:
    """Whether a start takes the log for another one after the change."""
    kafka, there = MemoryConnection(), MemoryConnection()
    place, filled = TopicPartition(str(topic), 0), WAYS[topic]
    kafka.topics.partitions[place] = []
    there.topics.partitions[TopicPartition(str(filled), 0)] = []
    fill_it(kafka)
    relay(kafka, there, topic, rule, early=early)
    change(kafka, str(topic), how)
    copy = last_copy(there, str(filled), 0, Source(f"nyc/{topic}", 0, 0))
    with closing(kafka.consumer()) as consumer:
        return is_anew(kafka, consumer, place, copy)


@pytest.mark.parametrize("how", [*CHANGES, list], ids=lambda how: how.__name__)
@pytest.mark.parametrize(("topic", "early"), [*((topic, False) for topic in WAYS), (FORWARD, True)])
def test_a_source_that_has_changed(topic: Topic, early: bool, how: Change) -> None:
    found = looks_anew(topic, lambda kafka: fill(kafka, topic), how, RULES[topic.role], early=early)
    assert found is (how is not list)


@pytest.mark.parametrize("how", [*CHANGES, list], ids=lambda how: how.__name__)
@pytest.mark.parametrize("rule", [forward(WAY), agreed(WAY)], ids=["hub", "isis"])
def test_the_heartbeats_of_one_member_differ_in_their_time(rule: Rule, how: Change) -> None:
    """Else the relay would go on behind the heartbeat that lies where the last copied one lay, and skip messages."""

    def beat(kafka: MemoryConnection) -> None:
        for _ in range(6):
            kafka.topics.append(TopicPartition(str(FORWARD), 0), *HEARTBEAT)

    assert looks_anew(FORWARD, beat, how, rule) is (how is not list)
