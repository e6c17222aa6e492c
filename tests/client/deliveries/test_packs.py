"""Applications get the messages of packs as any others, wherever a run begins or stops. In memory."""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.client.deliveries.deliveries import delivery_of, places_of
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.values.delivery import Delivery
from connectors.diagnosis.report import check_group
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog, Start
from connectors.kafka.log.effective import Effective, Messages
from connectors.takeover.same_forward import changed_inputs, newest_records
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import ProtocolViolation, Superseded
from ordering.base.packs import MAX_PACK_MESSAGES, unpacked
from ordering.base.reader import Reader
from ordering.base.records import MESSAGE, MESSAGES, Data, Partition, Source
from ordering.sequencer.packing import pack_of
from tests.client.deliveries.test_batches import open_run, take_all
from tests.client.members import with_casts
from tests.packed import pack_log, packed
from tests.waiting import WAIT

PLACE = TopicPartition("abcast.g.data.nyc", 0)


def message(seqno: int, sender: str = "nyc/a", local_seqno: int = 0, incarnation: int = 5) -> Data:
    source = Source("abcast.g.forward.nyc", 0, seqno)
    return Data(MESSAGE, 1, seqno, 0, sender, incarnation, local_seqno or seqno, b"m%d" % seqno, source, (), 9)


def stored(records: list[Data]) -> list[PlainRecord]:
    found = []
    for offset, record in enumerate(records):
        key, value, headers = encode_data(record)
        found.append(PlainRecord(PLACE.topic, 0, offset, 5, key, value, headers))
    return found


class _Polls:
    def __init__(self, records: list[PlainRecord]) -> None:
        self._pieces = [records]

    def assign(self, _: object) -> None: ...

    def seek(self, *_: object) -> None: ...

    def position(self, _: object) -> int:
        return 0

    def poll(self, **_: object) -> dict[TopicPartition, list[PlainRecord]]:
        return {PLACE: self._pieces.pop(0)} if self._pieces else {}


def read_all(records: list[Data], last_seqno: int) -> tuple[list[Effective], DataCursor]:
    polls = _Polls(stored(records))
    cursor = DataCursor(polls, PLACE, Start(0, Reader(1, last_seqno)))  # type: ignore[arg-type]
    taken = list(cursor.poll(0.0))
    while cursor._pending:
        taken += cursor.poll(0.0)
    return taken, cursor


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("has_others", [False, True])
def test_a_cursor_begins_anywhere_in_a_pack(seed: int, has_others: bool) -> None:
    log: list[Data] = [message(seqno) for seqno in range(1, 60)]
    if has_others:
        log[20] = Data("flush-completed", 1, 21, payload=b"{}")
    with_packs = packed(log, random.Random(seed), 9)
    for last_seqno in range(60):
        taken, cursor = read_all(with_packs, last_seqno)
        plain, _ = read_all(log, last_seqno)
        assert [each._replace(offset=0) for each in taken] == [each._replace(offset=0) for each in plain]
        assert (cursor.position, cursor.reader.last_seqno) == (len(with_packs), max(59, last_seqno))


def test_a_poll_gives_little_more_than_a_thousand_messages() -> None:
    packs = [pack_of([message(n * 600 + k) for k in range(1, 601)]) for n in range(10)]
    cursor = DataCursor(_Polls(stored(packs)), PLACE, Start(0, Reader(1, 0)))  # type: ignore[arg-type]
    polled = [(cursor.poll(0.0), cursor.position) for _ in range(5)]
    assert [(isinstance(taken, Messages), len(taken), at) for taken, at in polled] == [
        (True, 1200, 2 * n) for n in range(1, 6)
    ]


def test_a_place_inside_of_a_pack_is_the_pack() -> None:
    taken, _ = read_all([message(1), pack_of([message(2), message(3), message(4)]), message(5)], 0)
    messages = Messages.of(taken)
    wanted = [(1, 1), (2, 1), (3, 1), (4, 2), (5, 3)]
    assert [(seqno, offset) for seqno, offset, _ in places_of(messages)] == wanted
    assert [what for _, _, what in places_of(messages)] == list(map(delivery_of, taken))


def test_a_pack_that_no_sequencer_writes_stops_its_readers_each_time() -> None:
    bad = replace(message(1), kind=MESSAGES, payload=b"\x01", count=MAX_PACK_MESSAGES)
    cursor = DataCursor(_Polls(stored([bad])), PLACE, Start(0, Reader(1, 0)))  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(ProtocolViolation, match=r"abcast\.g\.data\.nyc at offset 0: the lengths in the pack"):
            cursor.poll(0.0)


def test_what_comes_before_a_bad_pack_is_read() -> None:
    bad = replace(message(4), kind=MESSAGES, payload=b"\x01", count=2)
    records = [message(1), pack_of([message(2), message(3)]), bad]
    cursor = DataCursor(_Polls(stored(records)), PLACE, Start(0, Reader(1, 0)))  # type: ignore[arg-type]
    assert [each.seqno for each in cursor.poll(0.0)] == [1, 2, 3]
    assert cursor.position == 2
    for _ in range(2):
        with pytest.raises(ProtocolViolation, match="at offset 2: the lengths in the pack"):
            cursor.poll(0.0)


@pytest.fixture
def kafka() -> MemoryConnection:
    """Return a Kafka with the messages and views of a group, before they are packed."""
    connection = MemoryConnection()
    connection.create("g", "nyc")
    with SequencerThread(connection, "g", "nyc"), Member("g", "nyc/alice", connection=connection) as alice:
        for number in range(40):
            alice.broadcast(b"%d" % number)
            if number in (3, 20):
                alice.wait_ordered(WAIT)
                with Member("g", f"nyc/guest-{number}", connection=connection) as guest:
                    guest.connect(timeout=WAIT)
                    guest.broadcast(b"hello")
    return connection


@pytest.mark.parametrize("kind", ["deliveries", "events"])
@pytest.mark.parametrize("seed", range(5))
def test_lists_and_items_in_turns(kafka: MemoryConnection, kind: str, seed: int) -> None:
    """Runs end and go on anywhere, also in a pack: the application gets what it gets of single messages."""
    with contextlib.ExitStack() as closing:
        carol = closing.enter_context(Member("g", "nyc/carol", connection=kafka))
        wanted = list(open_run(carol, kind))

        def member() -> Member:
            return closing.enter_context(Member("g", "nyc/bob", connection=kafka))

        pack_log(kafka, "g", "nyc", seed)
        found = take_all(member, kind, random.Random(seed))
        assert list(map(_without_times, found)) == list(map(_without_times, wanted))
    assert check_group("g", kafka, names=["nyc"]).anomalies == []


def _without_times(item: Any) -> Any:
    return item._replace(forwarded_at_ms=0, sequenced_at_ms=0) if isinstance(item, Delivery) else item


@pytest.mark.slow
def test_all_orders_go_on_in_a_pack(kafka: MemoryConnection) -> None:
    """A run of all orders that stops in a pack is followed by one that begins there."""
    pack_log(kafka, "g", "nyc", 3)
    with SequencerThread(kafka, "g", "nyc"), with_casts(kafka, "g", "dave") as dave:
        found: list[int] = []
        for most in itertools.repeat(3):
            run = dave.deliveries(from_seqno=1 if not found else found[-1] + 1, timeout=0)
            part = [each.seqno for each in itertools.islice(run, most)]
            run.close()
            found += part
            if not part:
                break
        assert found == [each.seqno for each in dave.deliveries(from_seqno=1, timeout=0)]


def test_positions_in_a_pack_do_not_depend_on_casts(kafka: MemoryConnection) -> None:
    """An operator may drop what the commit says beside the offset: so the offset alone must skip no message."""
    pack_log(kafka, "g", "nyc", 3)
    with (
        SequencerThread(kafka, "g", "nyc"),
        with_casts(kafka, "g", "dave") as dave,
        Member("g", "nyc/erin", connection=kafka) as erin,
    ):
        wanted = _positions(kafka, erin)
        assert len({offset for _, offset in wanted}) < len(wanted)
        assert _positions(kafka, dave) == wanted


def _positions(kafka: MemoryConnection, member: Member) -> list[tuple[int, int]]:
    """Return the seqno and the offset that the member commits after each message."""
    found = []
    with contextlib.closing(MemberMemory(kafka, "g", member.address)) as memory:
        for _ in range(20):
            run = member.deliveries(timeout=WAIT)
            next(run), next(run)  # the second one is in hand, and not taken
            run.close()
            found.append((memory.position(), memory._offsets.at(PLACE).offset))
    return found


@pytest.mark.parametrize("outbox", [False, True])
def test_a_sender_finds_its_own_messages_in_a_pack(kafka: MemoryConnection, tmp_path: Path, outbox: bool) -> None:
    with DataLog(kafka, "g", "nyc") as log:
        state = log.state()
    path = tmp_path / "outbox.db" if outbox else None
    with Member("g", "nyc/erin", connection=kafka, outbox=path) as erin:
        receipts = [erin.broadcast(b"%d" % n) for n in range(1, 6)]
        incarnation = receipts[0].message_id.incarnation
        source = Source("abcast.g.forward.nyc", 0, 10_000)
        sent = [
            Data(MESSAGE, state.epoch, state.seqno + n, state.view, "nyc/erin", incarnation, n, b"%d" % n, source)
            for n in range(1, 6)
        ]
        for record in (sent[0], pack_of(sent[1:4]), pack_of(sent[2:5])):
            kafka.topics.append(PLACE, *encode_data(record))
        assert [receipt.result(WAIT) for receipt in receipts] == [each.seqno for each in sent]
        erin.wait_ordered(0)


@pytest.mark.parametrize("at", range(5))
def test_another_message_in_a_pack_ends_its_sender(kafka: MemoryConnection, at: int) -> None:
    """Two processes that share an incarnation: the messages before it are ordered, and this one is not the sender's."""
    with DataLog(kafka, "g", "nyc") as log:
        state = log.state()
    with contextlib.suppress(Superseded), Member("g", "nyc/erin", connection=kafka) as erin:
        receipts = [erin.broadcast(b"%d" % n) for n in range(5)]
        incarnation, source = receipts[0].message_id.incarnation, Source("abcast.g.forward.nyc", 0, 10_000)
        pack = [
            Data(MESSAGE, state.epoch, state.seqno + n, state.view, "nyc/erin", incarnation, n, payload, source)
            for n, payload in enumerate((b"other" if n == at else b"%d" % n for n in range(5)), 1)
        ]
        kafka.topics.append(PLACE, *encode_data(pack_of(pack)))
        assert [receipt.result(WAIT) for receipt in receipts[:at]] == [each.seqno for each in pack[:at]]
        with pytest.raises(Superseded):
            receipts[at].result(WAIT)


def test_the_log_tells_where_a_message_stands(kafka: MemoryConnection) -> None:
    pack_log(kafka, "g", "nyc", 1)
    with DataLog(kafka, "g", "nyc") as log:
        state, end = log.state(), log.end()
        assert state.counted
        for seqno in range(1, state.seqno + 1):
            start = log.after(seqno - 1)
            found = [
                (each.seqno, record.offset)
                for record in log.records(start.offset, end)
                for each in unpacked(record.data)
                if each.seqno == seqno
            ]
            assert found
            assert found[0][1] >= start.offset


def test_forward_is_the_log_that_a_pack_was_made_from(kafka: MemoryConnection) -> None:
    forward = TopicPartition("abcast.g.forward.nyc", 0)
    pack_log(kafka, "g", "nyc", 1)
    with DataLog(kafka, "g", "nyc") as log, contextlib.closing(kafka.consumer()) as consumer:
        assert changed_inputs(log, consumer, {forward.topic}, newest_records(log, log.end())) == set()
        stored = kafka.topics.partitions[forward]
        stored[:] = [stored[0]._replace(offset=offset) for offset in range(len(stored))]
        assert changed_inputs(log, consumer, {forward.topic}, newest_records(log, log.end())) == {Partition(*forward)}
