"""What a relay says for itself, in which case, to a Kafka in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from kafka.structs import TopicPartition

from connectors.codec import decode_forward, encode_data
from connectors.herald import Herald
from connectors.sites import Direction
from ordering.names import Topic
from ordering.records import HEARTBEAT, JOIN, LEAVE, REMOTE_VIEW, VIEW, Data, Forward, Source
from ordering.sequencer import seal
from tests.memory_kafka import MemoryConnection

DATA = Topic("g", "data", "far")
RELAYED = Topic("g", "relayed", "here", "far")


class Ends:
    """The DATA of `far`, and what its herald says to `here`."""

    def __init__(self) -> None:
        self.far, self.here = MemoryConnection(), MemoryConnection()
        self.far.create("g", "far")
        self.here.topics.partitions[TopicPartition(str(RELAYED), 0)] = []
        self.offset = self.seqno = 0
        self.herald = Herald(self.far, self.here, Direction("far", "here"), ["g"])

    def write(self, *records: Data) -> None:
        producer = self.far.producer()
        for record in records:
            key, value, headers = encode_data(record)
            producer.send(str(DATA), key=key, value=value, headers=headers, partition=0)

    def view(self, epoch: int, view_id: int, *members: str, seqno: int = 0) -> Data:
        self.seqno = seqno or self.seqno + 1
        body = {"members": [[member, 1] for member in members], "joined": [], "left": [], "suspected": [], "flush": 0}
        return Data(VIEW, epoch, self.seqno, view_id, payload=json.dumps(body).encode())

    def told(self, copied: int) -> list[tuple[str, int, int, list[str]]]:
        """What `tell` says: kind, incarnation, local seqno, members."""
        self.herald.tell({str(DATA): copied})
        return self.new()

    def new(self) -> list[tuple[str, int, int, list[str]]]:
        found = []
        log = self.here.topics.partitions[TopicPartition(str(RELAYED), 0)]
        for record in log[self.offset :]:
            source = Source(str(RELAYED), 0, record.offset)
            read = decode_forward(source, record.key, record.value, record.headers, sites=["far", "here"])
            assert isinstance(read, Forward)
            lives = json.loads(read.payload)["members"] if read.payload else []
            found.append((read.kind, read.incarnation, read.local_seqno, [address for address, _ in lives]))
        self.offset = len(log)
        return found


BEAT = (HEARTBEAT, 1, 1, list[str]())


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.herald.close()


def test_a_group_that_never_had_a_view_is_not_spoken_of(ends: Ends) -> None:
    ends.write(seal(1), Data("message", 1, 1, 0, "far/a", 1, 1, b"x", Source("t", 0, 0)))
    assert ends.told(2) == []
    ends.herald.farewell()
    assert ends.new() == []


def test_the_view_in_force_is_told_once_it_is_copied(ends: Ends) -> None:
    """Again after a takeover, with its epoch; the news bring all others."""
    ends.write(seal(1), Data(JOIN, 1, 1, 0, "far/a", 1, 1, b"", Source("t", 0, 0)), ends.view(1, 1, "far/a", seqno=2))
    assert ends.told(2) == [BEAT]
    assert ends.told(3) == [(REMOTE_VIEW, 1, 1, ["far/a"]), BEAT]
    ends.write(ends.view(1, 2, "far/a", "far/b"))
    assert ends.told(4) == [BEAT]
    ends.write(seal(2), ends.view(1, 3, "far/fenced"))
    assert ends.told(5) == [BEAT]
    assert ends.told(6) == [(REMOTE_VIEW, 2, 2, ["far/a", "far/b"]), BEAT]
    assert ends.told(6) == [BEAT]
    ends.herald.farewell()
    assert ends.new() == [(LEAVE, 1, 1, [])]


def test_a_heartbeat_says_how_far_the_news_are_copied(ends: Ends) -> None:
    ends.write(seal(1), ends.view(1, 1, "far/a"))
    for copied in (0, 2):
        ends.told(copied)
    log = ends.here.topics.partitions[TopicPartition(str(RELAYED), 0)]
    marks = [dict(record.headers).get("abcast-relayed-from") for record in log]
    assert marks == [None, None, f"far/{DATA}-0:1".encode()]
