"""A table of each topic's readers, for tests that put hostile records into a log."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.client.casts.cast_keeper import settled_in
from connectors.client.memory.member_memory import MemberMemory
from connectors.diagnosis.casts import _read_casts, _read_data
from connectors.diagnosis.check import check_data
from connectors.diagnosis.dead_letters import read_dead_letters
from connectors.diagnosis.status import read_status
from connectors.kafka.codec.dead_letter_codec import dead_letter_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.entries import last_state
from connectors.kafka.log.sign_of_life import read_signs
from connectors.kafka.topics import letter_purge
from connectors.kafka.topics.letter_bases import read_noted
from connectors.kafka.topics.letter_purge import purge_letters
from connectors.relay.letter_copies import _newest_of_relays
from connectors.relay.marks import is_anew, last_copy
from connectors.relay.presence import _Group
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import PositionLost
from ordering.base.names import BY_RELAYS, Address, Role, Topic
from ordering.base.records import DeadLetter, Source
from ordering.checker.cast_checker import CastChecker
from ordering.checker.checker import Checker
from tests.waiting import WAIT

GROUP, SITE = "g", "nyc"
LETTER = DeadLetter(Source("t", 0, 0), "a reason")
_numbers = itertools.count(1)


class Reader(NamedTuple):
    """`read` returns at the log's end; it may raise only an error that is right for that topic."""

    name: str
    role: Role
    read: Callable[[Connection, str], object]

    def __str__(self) -> str:
        return f"{self.role}: {self.name}"


def place(role: Role, group: str = GROUP) -> TopicPartition:
    """Return the partition of that role that the readers below read."""
    return TopicPartition(str(Topic(group, role, SITE, "sfo" if role in BY_RELAYS else "")), 0)


def _member(connection: Connection, group: str, **options: Any) -> Member:
    return Member(group, f"{SITE}/new{next(_numbers)}", connection=connection, **options)


def _deliveries(connection: Connection, group: str) -> list[int]:
    with _member(connection, group) as member:
        return [delivery.seqno for delivery in member.deliveries(from_seqno=1, timeout=0.0)]


def _own_position(connection: Connection, group: str) -> list[int]:
    """Return the first deliveries of a name, which looks for its own notes in the memory topic."""
    with _member(connection, group) as member:
        return [delivery.seqno for delivery in member.deliveries(timeout=0.0)]


def _casts(connection: Connection, group: str) -> list[object]:
    with _member(connection, group, casts=True) as member:
        return list(member.deliveries(from_seqno=1, timeout=0.0))


def _inbox(connection: Connection, group: str) -> list[bytes]:
    with Member(group, f"{SITE}/bob", connection=connection) as bob:
        return [letter.payload for letter in bob.inbox(timeout=0.0, from_beginning=True)]


def _log(read: Callable[[DataLog], object]) -> Callable[[Connection, str], object]:
    def run(connection: Connection, group: str) -> object:
        with DataLog(connection, group, SITE) as log:
            return read(log)

    return run


def _with_consumer(read: Callable[..., object]) -> Callable[[Connection, str], object]:
    def run(connection: Connection, group: str) -> object:
        with contextlib.closing(connection.consumer()) as consumer:
            return read(connection, consumer, group)

    return run


def _look(log: DataLog) -> bool:
    group = _Group(log)
    group.look()
    return group.had_view


def _relayed(connection: Connection, group: str) -> object:
    return last_copy(connection, place("relayed", group).topic, 0, Source(f"sfo/abcast.{group}.forward.sfo", 0, 0))


def _copied(role: Role) -> Callable[[Connection, str], object]:
    """Return a reader as a relay: of a topic that it fills, and of the topic that it fills it from."""

    def run(connection: Connection, group: str) -> bool:
        there = place(role, group)
        made_of = [
            last_copy(connection, there.topic, 0, Source(source, 0, 0))
            for source in (f"sfo/abcast.{group}.{role}.sfo", f"sfo/abcast.{group}.forward.sfo", "", "nyc/x")
        ]
        with contextlib.closing(connection.consumer()) as consumer:
            end = int(consumer.end_offsets([there])[there])
            _newest_of_relays(connection, consumer, there, 0, end)
            return any(is_anew(connection, consumer, there, copy) for copy in made_of)

    return run


def _memory(connection: Connection, group: str) -> object:
    """Read a name's position and letters, as a stranger has set them, and a sequencer's sign of life."""
    with contextlib.closing(MemberMemory(connection, group, Address(SITE, "alice"))) as memory:
        with contextlib.suppress(PositionLost):
            memory.position()
        memory.taken(), memory.numbers.latest(), memory.letters_taken(place("inbox", group))
    return read_signs(connection, [group], SITE, [place("forward", group)])


READERS = (
    *(Reader("copies", role, _copied(role)) for role in ("inbox", "cast", "relayed", "entries")),
    Reader("a member's memory", "memory", _memory),
    Reader("status", "forward", lambda connection, group: read_status(connection, group, SITE).lag),
    Reader("status", "data", lambda connection, group: read_status(connection, group, SITE).last_seqno),
    Reader("deliveries", "data", _deliveries),
    Reader("state", "data", _log(DataLog.state)),
    Reader("records", "data", _log(lambda log: [*log.records(0, log.end())])),
    Reader("is it a copy", "data", _log(DataLog.is_copy)),
    Reader("some seconds back", "data", _log(lambda log: log.offset_before_the_end(60))),
    Reader("the last entry", "data", _log(lambda log: last_state(log, log.end()))),
    Reader("had it a view", "data", _log(_look)),
    Reader("casts that were settled", "data", lambda connection, group: settled_in(connection, group, SITE, 1)),
    Reader("check", "data", lambda connection, group: check_data(Checker(), connection, group, SITE)),
    Reader("check of casts", "data", lambda connection, group: _read_data(CastChecker(), connection, group, SITE)),
    # `below` is an offset, and a mark takes one.
    Reader("claims", "epoch", _log(lambda log: replace(log.epochs.read(), below=0))),
    Reader("status", "epoch", lambda connection, group: read_status(connection, group, SITE).sequencer),
    Reader("an inbox", "inbox", _inbox),
    Reader(
        "a purge", "inbox", lambda connection, group: purge_letters(connection, group, SITE, letters_s=0, dry_run=True)
    ),
    Reader(
        "what purges noted", "memory", _with_consumer(lambda c, consumer, group: read_noted(c, consumer, group, SITE))
    ),
    Reader("a name's notes", "memory", _own_position),
    Reader("deliveries", "cast", _casts),
    Reader("check", "cast", lambda connection, group: _read_casts(CastChecker(), connection, group)),
    Reader("dead letters", "dead-letter", lambda connection, group: [*read_dead_letters(connection, group, SITE)]),
    Reader("the last of a source", "relayed", _relayed),
    Reader("status", "relayed", lambda connection, group: read_status(connection, group, SITE).relays),
)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    """Return a Kafka in memory with a record in each topic of the group. No sequencer runs any more."""
    kafka = MemoryConnection()
    kafka.create(GROUP, SITE)
    for role in BY_RELAYS:
        kafka.topics.partitions[place(role)] = []
    monkeypatch.setattr(letter_purge, "SETTLED_S", 0.0)
    fill(kafka, GROUP)
    return kafka


def fill(connection: Connection, group: str) -> None:
    """Let members of the group write records of each kind."""
    with SequencerThread(connection, group, SITE), contextlib.ExitStack() as members:
        alice, bob = (
            members.enter_context(Member(group, f"{SITE}/{name}", connection=connection, casts=True))
            for name in ("alice", "bob")
        )
        for number in range(3):
            alice.broadcast(b"%d" % number).result(WAIT)
            alice.broadcast(b"f%d" % number, order="fifo").result(WAIT)
            alice.send(str(bob.address), b"l%d" % number).result(WAIT)
    producer = connection.producer()
    producer.send(place("dead-letter", group).topic, b"x", b"k", dead_letter_headers(LETTER, ()), 0).get(WAIT)
    mark = f"sfo/abcast.{group}.forward.sfo-0:7"
    line = f"2 message 1 1 {mark} -"
    producer.send(place("relayed", group).topic, b"x", b"sfo/carol", [("abcast", line.encode())], 0).get(WAIT)
    producer.close(timeout=WAIT)
