"""Heartbeats wait behind nothing: neither a full buffer, nor a slow broker, nor a member's lock. In memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors import Member
from connectors.client.tail.heartbeats import Heartbeat, Heartbeats
from connectors.client.tail.producers import Producers
from connectors.testing.memory_clients import MemoryProducer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import WRITES, MemoryFuture
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import AbcastError
from tests.client.members import forwarder_of
from tests.waiting import WAIT, eventually

FORWARD = TopicPartition("abcast.g.forward.nyc", 0)
BIG = b"x" * 1000


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryConnection]:
    """Yield a Kafka with a group and its sequencer; heartbeats are frequent."""
    monkeypatch.setattr("connectors.client.tail.heartbeats.HEARTBEAT_S", 0.02)
    monkeypatch.setattr("connectors.client.tail.heartbeats.CHANGE_S", 0.1)
    connection = MemoryConnection()
    connection.create("g", "nyc")
    with SequencerThread(connection, "g"):
        yield connection


def heard(kafka: MemoryConnection, name: str) -> int:
    """Count a member's heartbeats in FORWARD."""
    found = list(kafka.topics.partitions[FORWARD])
    beats = [record for record in found if b"heartbeat" in dict(record.headers).get("abcast", b"")]
    return sum(record.key == name.encode() for record in beats)


def is_heard_on(kafka: MemoryConnection, *names: str) -> None:
    before = [heard(kafka, name) for name in names]
    eventually(lambda: all(heard(kafka, name) >= n + 5 for name, n in zip(names, before, strict=True)), timeout=5)


@pytest.mark.parametrize(("of", "name"), [(Heartbeats, "add"), (threading.Thread, "start")], ids=["before", "within"])
def test_they_begin_after_ctrl_c(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, of: type[Any], name: str
) -> None:
    really, raised = getattr(of, name), list[bool]()

    def interrupted(self: Any, *arguments: Any) -> None:
        is_theirs = isinstance(self, Heartbeats) or self.name == "abcast-heartbeats"
        if is_theirs and not raised:
            raised.append(True)
            raise KeyboardInterrupt
        really(self, *arguments)

    monkeypatch.setattr(of, name, interrupted)
    with Member("g", "nyc/a", connection=kafka) as a:
        with pytest.raises(KeyboardInterrupt):
            a.connect(timeout=WAIT)
        a.connect(timeout=WAIT)
        is_heard_on(kafka, "nyc/a")


def queued(producer: MemoryProducer, full: set[int], _: threading.Event) -> MemoryFuture | None:
    """Never complete a record behind a large one, as with a quota or a slow link."""
    return MemoryFuture(FORWARD) if id(producer) in full else None


def waits_for_room(_: MemoryProducer, full: set[int], let_go: threading.Event) -> MemoryFuture | None:
    """Block as librdkafka does where its queue is full, under the member's lock."""
    if full:
        let_go.wait(WAIT)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("slow", [queued, waits_for_room])
def test_heartbeats_wait_behind_no_message(
    kafka: MemoryConnection,
    monkeypatch: pytest.MonkeyPatch,
    slow: Callable[[MemoryProducer, set[int], threading.Event], MemoryFuture | None],
) -> None:
    """Heartbeats of the sender and of others in its process overtake its messages."""
    send, full, let_go = MemoryProducer.send, set[int](), threading.Event()

    def sending(producer: MemoryProducer, topic: str, *values: Any, **named: Any) -> MemoryFuture:
        if BIG in (*values, *named.values()):
            full.add(id(producer))
        is_message = id(producer) in full
        return (slow(producer, full, let_go) if is_message else None) or send(producer, topic, *values, **named)

    a, b = Member("g", "nyc/a", connection=kafka), Member("g", "nyc/b", connection=kafka)
    a.connect()
    b.connect()
    monkeypatch.setattr(MemoryProducer, "send", sending)
    broadcast = threading.Thread(target=a.broadcast, args=(BIG,), daemon=True)
    broadcast.start()
    try:
        eventually(lambda: full)
        is_heard_on(kafka, "nyc/a", "nyc/b")
    finally:
        let_go.set()
        broadcast.join(WAIT)
        for member in (a, b):
            with contextlib.suppress(AbcastError):
                member.close(timeout=0.1)


@pytest.mark.slow
def test_of_each_member_one_is_on_its_way(kafka: MemoryConnection) -> None:
    """After an outage of an hour one heartbeat of each member comes."""
    with Member("g", "nyc/a", connection=kafka) as a:
        a.connect()
        is_heard_on(kafka, "nyc/a")
        kafka.topics.take_away(FORWARD.topic, WRITES)
        eventually(lambda: kafka.topics._in_flight.get(FORWARD))
        threading.Event().wait(0.2)
        beats = [record for _, record in kafka.topics._in_flight[FORWARD] if record[0] == b"nyc/a"]
        assert len(beats) == 1
        kafka.topics.bring_back(FORWARD.topic)
        is_heard_on(kafka, "nyc/a")


class Alive:
    """A member that sends heartbeats until the test ends it."""

    def __init__(self) -> None:
        self.is_over = False

    def heartbeat(self) -> Heartbeat | None:
        return None if self.is_over else Heartbeat(FORWARD.topic, b"nyc/a", [("abcast", b"heartbeat")])


@pytest.mark.slow
def test_a_producer_that_takes_nothing_is_changed(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer is replaced, at most now and then; the last one is given back."""
    broken, opened, send = set[int](), list[MemoryProducer](), MemoryProducer.send

    def sending(producer: MemoryProducer, topic: str, *values: Any, **named: Any) -> MemoryFuture:
        if id(producer) in broken:
            raise KafkaError("it takes nothing more")
        return send(producer, topic, *values, **named)

    def opening() -> MemoryProducer:
        opened.append(kafka.producer())
        return opened[-1]

    monkeypatch.setattr(MemoryProducer, "send", sending)
    producers, alive = Producers(opening), Alive()
    heartbeats = Heartbeats(producers)
    heartbeats.add(alive)
    is_heard_on(kafka, "nyc/a")
    assert len(opened) == 1
    broken.add(id(opened[0]))
    is_heard_on(kafka, "nyc/a")
    kafka.topics.refuse(FORWARD.topic, 1)
    eventually(lambda: len(opened) == 3)
    is_heard_on(kafka, "nyc/a")
    kafka.topics.refuse(FORWARD.topic, 1_000)
    threading.Event().wait(0.5)
    assert 4 <= len(opened) <= 10
    alive.is_over = True
    eventually(lambda: not any(producers._users.values()))
    heartbeats.close()
    producers.close()


def test_a_life_that_has_ended_is_heard_no_more(kafka: MemoryConnection) -> None:
    """The shared heartbeat producer closes with the last member."""
    with Member("g", "nyc/a", connection=kafka) as a:
        a.connect()
        is_heard_on(kafka, "nyc/a")
        forwarder, shared = forwarder_of(a), a._shared
    assert forwarder.heartbeat() is None
    assert shared._heartbeat_producers._current is None
