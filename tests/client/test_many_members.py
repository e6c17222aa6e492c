"""Many members in one process: they share their connections and threads."""

from __future__ import annotations

import contextlib
import threading
import time

from connectors import Member
from connectors.client.producers import Producers
from connectors.client.sharing import share
from connectors.kafka.connection import Connection
from connectors.testing.memory_kafka import MemoryConnection, MemoryProducer
from connectors.testing.tiny_sequencer import TinySequencer

WAIT = 30.0
MEMBERS = 200
THREADS = 20


def test_200_members(connection: Connection, group: str) -> None:
    """They are there in 3 s, have their first receipts in 10 s, and share their threads."""
    with TinySequencer(connection, group), contextlib.ExitStack() as closing:
        before = threading.active_count()
        started = time.monotonic()
        members = [Member(group, f"nyc/{number}", connection=connection) for number in range(MEMBERS)]
        for member in members:
            closing.callback(member.close)
        constructed = time.monotonic() - started
        receipts = [member.broadcast(b"x") for member in members]
        seqnos = {receipt.result(WAIT) for receipt in receipts}
        ordered = time.monotonic() - started - constructed
        threads = threading.active_count() - before
        print(f"{MEMBERS} members: constructed in {constructed:.2f} s, ordered in {ordered:.2f} s, {threads} threads")
        assert seqnos == set(range(1, MEMBERS + 1))
        assert constructed < 3
        assert ordered < 10
        assert threads <= THREADS


def test_what_is_shared_is_closed_with_the_last_member() -> None:
    connection = MemoryConnection()
    connection.create("g", "nyc")
    with TinySequencer(connection, "g"):
        before = set(threading.enumerate())
        with Member("g", "nyc/a", connection=connection) as a, Member("g", "nyc/b", connection=connection) as b:
            assert a.broadcast(b"x").result(WAIT) == 1
            stream = b.deliveries(timeout=5)
            assert next(stream).payload == b"x"
            a.close()
            assert b.broadcast(b"y").result(WAIT) == 2
            assert next(stream).payload == b"y"
        assert set(threading.enumerate()) <= before
        shared = share(connection)
        assert shared.users == 1
        shared.release()


class TestProducers:
    """In memory: producers that count."""

    def test_who_has_lost_a_record_changes_alone(self) -> None:
        kafka = MemoryConnection()
        closed: list[MemoryProducer] = []
        producers = Producers(kafka.producer)
        first, same = producers.lease(), producers.lease()
        assert isinstance(first, MemoryProducer)
        assert same is first
        first.abandon = lambda: closed.append(first)  # type: ignore[method-assign]
        second = producers.lease(instead_of=first)
        assert second is not first
        assert producers.lease(instead_of=first) is second, "one new producer is enough for all who have lost a record"
        producers.release(first)
        assert not closed, "the other one sends by it"
        producers.release(same)
        assert closed == [first]
