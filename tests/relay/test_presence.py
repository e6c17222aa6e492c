"""A relay's own records between the sites of a mesh, in a Kafka in memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_forward, encode_data
from connectors.kafka.connection.sites import Direction
from connectors.kafka.log.data_log import DataLog
from connectors.relay import presence
from connectors.relay.link_start import find_session_start
from connectors.relay.presence import Presence
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import MemoryFuture
from ordering.base.errors import BrokerUnreachable
from ordering.base.names import Topic
from ordering.base.records import HEARTBEAT, JOIN, LEAVE, LINK_START, REMOTE_VIEW, VIEW, Data, Forward, Link, Source
from ordering.sequencer.links import LinkStart
from ordering.sequencer.sequencer import seal, snapshot
from ordering.sequencer.state import SequencerState

DATA = Topic("g", "data", "far")
RELAYED = Topic("g", "relayed", "here", "far")
BEAT = (HEARTBEAT, 1, 1, b"")


class Ends:
    """The DATA of `far`, and its presence's records for `here`."""

    def __init__(self) -> None:
        self.far, self.here = MemoryConnection(), MemoryConnection()
        self.far.create("g", "far")
        self.here.topics.partitions[TopicPartition(str(RELAYED), 0)] = []
        self.offset = self.seqno = 0
        self.presence = Presence(self.far, self.here, Direction("far", "here"))

    def write(self, *records: Data) -> None:
        producer = self.far.producer()
        for record in records:
            key, value, headers = encode_data(record)
            producer.send(str(DATA), key=key, value=value, headers=headers, partition=0)

    def view(self, epoch: int, seqno: int, view_id: int, *members: str) -> Data:
        body = {"members": [[member, 1] for member in members], "joined": [], "left": [], "suspected": [], "flush": 0}
        return Data(VIEW, epoch, seqno, view_id, payload=json.dumps(body).encode())

    def begin(self, *not_carried: str) -> int:
        """Begin a session at the end of DATA; return its name."""

        def carries(origin: str) -> bool:
            return origin not in not_carried

        with DataLog(self.far, "g", "far") as log:
            everything = dict.fromkeys(("lax", "here"), 10**6)
            ordered = everything | {"far": log.state().own_seqno}
            return self.presence.begin("g", find_session_start(log, ordered, carries), carries)

    def told(self) -> list[tuple[str, int, int, bytes]]:
        """Return the records that `tell` writes."""
        self.presence.tell()
        return self.new()

    def new(self) -> list[tuple[str, int, int, bytes]]:
        """Return the records since the last call: kind, incarnation, local seqno, payload."""
        found = []
        log = self.here.topics.partitions[TopicPartition(str(RELAYED), 0)]
        for record in log[self.offset :]:
            source = Source(str(RELAYED), 0, record.offset)
            read = decode_forward(source, record.key, record.value, record.headers, record.timestamp)
            assert isinstance(read, Forward)
            assert read.sender == "far/abcast.relay"
            assert read.link is None
            found.append((read.kind, read.incarnation, read.local_seqno, read.payload))
        self.offset = len(log)
        return found


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.presence.close()


def own(seqno: int, view_id: int = 0, kind: str = "message") -> Data:
    return Data(kind, 1, seqno, view_id, "far/a", 1, seqno, b"x", Source("abcast.g.forward.far", 0, seqno))


def of(sender: str, seqno: int, link: Link) -> Data:
    return Data("message", 1, seqno, 0, sender, 1, 1, b"x", Source("abcast.g.relayed-lax.far", 0, seqno), link=link)


def test_a_session_says_how_far_each_origin_was_known(ends: Ends) -> None:
    """Count own messages, and messages that came by links; but none that this link does not carry."""
    ends.write(seal(1), own(1), own(2), of("lax/b", 3, Link(5, 7, 8, 6)), of("here/c", 4, Link(5, 7, 9, 2)))
    assert ends.begin("here") == 0
    assert ends.new() == [(LINK_START, 1, 1, LinkStart(1, 4, {"far": 2, "lax": 6}).to_json())]
    ends.write(own(5))
    assert ends.begin("here", "lax") == 1
    assert ends.new() == [(LINK_START, 1, 1, LinkStart(1, 5, {"far": 5}).to_json())]


def test_the_first_session_of_a_silent_group(ends: Ends) -> None:
    ends.write(seal(1), snapshot(SequencerState("g", 1)))
    assert ends.begin() == 0
    assert ends.new() == [(LINK_START, 1, 1, LinkStart(1, 0, {}).to_json())]


def test_a_session_tells_the_view_in_force(ends: Ends) -> None:
    """Its epoch is the current one, no lower than that of the view's decision, and the query brings the next view."""
    ends.write(seal(1), own(1, kind=JOIN), ends.view(1, 2, 1, "far/a"), seal(2))
    ends.begin()
    (kind, *_), view = ends.new()
    assert kind == LINK_START
    assert view == (REMOTE_VIEW, 2, 1, b'{"members": [["far/a", 1]]}')


def test_a_relay_beats_for_a_group_that_has_a_view(ends: Ends) -> None:
    ends.write(seal(1), own(1, kind=JOIN), ends.view(1, 2, 1, "far/a"))
    ends.begin()
    ends.new()
    assert [ends.told() for _ in range(3)] == [[BEAT]] * 3
    ends.presence.farewell()
    assert ends.new() == [(LEAVE, 1, 1, b"")]


def test_of_a_group_that_never_had_a_view_it_speaks_now_and_then(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat shows that the link is there."""
    ends.write(seal(1), own(1))
    ends.begin()
    ends.new()
    assert [ends.told() for _ in range(3)] == [[BEAT], [], []]
    monkeypatch.setattr(presence, "QUIET_BEAT_S", 0.0)
    assert ends.told() == [BEAT]
    ends.presence.farewell()
    assert ends.new() == []


@pytest.mark.parametrize("behind", [0, 1, 2, 7])
def test_a_first_view_is_noticed(ends: Ends, behind: int) -> None:
    """Also if takeovers have followed before the relay looks. It writes its first heartbeat a second later."""
    ends.write(seal(1), own(1))
    ends.begin()
    ends.told()
    ends.new()
    ends.write(own(2), ends.view(1, 3, 1, "far/a"), *(seal(epoch) for epoch in range(2, 2 + behind)))
    assert [ends.told() for _ in range(3)] == [[], [BEAT], [BEAT]]


def test_the_query_starts_anew(ends: Ends) -> None:
    """A presence may begin several sessions of a group; the views that it has noticed stay noticed."""
    ends.write(seal(1), own(1))
    ends.begin()
    ends.told()
    ends.write(own(2, kind=JOIN), ends.view(1, 3, 1, "far/a"))
    assert ends.begin() == 2
    assert [kind for kind, *_ in ends.new()] == [LINK_START, REMOTE_VIEW]
    assert ends.told() == [BEAT]


def test_a_group_whose_view_is_known_keeps_no_connection(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[DataLog]()
    closed = list[DataLog]()
    close = DataLog.close

    class Noted(DataLog):
        def __init__(self, *of: Any) -> None:
            super().__init__(*of)
            opened.append(self)

        def close(self) -> None:
            closed.append(self)
            close(self)

    monkeypatch.setattr(presence, "DataLog", Noted)
    ends.write(seal(1), own(1))
    ends.begin()
    ends.told()
    assert (len(opened), closed) == (1, [])
    ends.write(own(2, kind=JOIN), ends.view(1, 3, 1, "far/a"))
    ends.told()
    assert closed == opened
    ends.begin()
    assert ends.new()[-1] == (REMOTE_VIEW, 1, 1, b'{"members": [["far/a", 1]]}')
    assert ends.told() == [BEAT]
    assert len(opened) == 1


class Refusing:
    """A producer whose `send` fails for some groups, after a while."""

    def __init__(self, made: Any, groups: Collection[str], waits_s: float) -> None:
        self.made, self.groups, self.waits_s, self.now = made, groups, waits_s, 1_000.0

    def send(self, topic: str, **record: Any) -> Any:
        if Topic.of(topic).group in self.groups:
            self.now += self.waits_s
            raise KafkaTimeoutError
        return self.made.send(topic, **record)

    def close(self, timeout: float) -> None:
        self.made.close(timeout)


@pytest.mark.parametrize("waits_s", [0.0, 10.0])
def test_heartbeats_that_kafka_does_not_take_stop_no_others(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, waits_s: float
) -> None:
    """An error that took a timeout ends the round: the next one is without that group."""
    logs = ends.here.topics.partitions
    for group in "abcde":
        logs[TopicPartition(f"abcast.{group}.relayed-far.here", 0)] = []
        ends.presence._groups[group] = presence._Group(None)
    broken: Any = Refusing(ends.presence._producer, "bd", waits_s)
    ends.presence._producer = broken
    monkeypatch.setattr(presence, "time", SimpleNamespace(monotonic=lambda: broken.now))
    beating = ["a"] if waits_s else ["a", "c", "e"]
    errors = ends.presence.tell()
    assert {group: type(error) for group, error in errors.items()} == dict.fromkeys(
        ["b"] if waits_s else ["b", "d"], BrokerUnreachable
    )
    assert [Topic.of(place.topic).group for place, log in logs.items() if log] == beating
    for group in errors:
        ends.presence.drop(group)
    broken.groups = ()
    assert not ends.presence.tell()
    assert len(logs[TopicPartition("abcast.e.relayed-far.here", 0)]) == (1 if waits_s else 2)


def test_a_beginning_waits_no_longer_than_for_an_answer(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """No group has a heartbeat until then."""
    waits = list[float]()

    def get(_: MemoryFuture, timeout: float) -> None:
        waits.append(timeout)
        raise KafkaTimeoutError

    monkeypatch.setattr(MemoryFuture, "get", get)
    ends.write(seal(1))
    with pytest.raises(BrokerUnreachable):
        ends.begin()
    assert waits == [ends.here.timeout]
