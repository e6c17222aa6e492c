"""A member writes packs into FORWARD, once the group takes them, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.client.memory.outbox import Outbox
from connectors.client.tail.go_back_n import BUSY_RECORDS
from connectors.kafka.codec.codec import decode_data, decode_forward
from connectors.kafka.codec.epochs import encode_claim
from connectors.kafka.connection.sending import append
from connectors.kafka.topics.upgrade import upgrade
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.names import ROLES, Topic
from ordering.base.packs import MAX_PACK_BYTES, MAX_PACK_HEADERS_BYTES, MAX_PACK_MESSAGES, unpacked
from ordering.base.records import HEARTBEAT, JOIN, MESSAGES, Data, Forward, Source
from ordering.participant.forward_table import Pending
from tests.client.members import forwarder_of, kill
from tests.waiting import WAIT, eventually

DATA, FORWARD = (TopicPartition(f"abcast.g.{role}.nyc", 0) for role in ("data", "forward"))


@pytest.fixture
def kafka() -> MemoryConnection:
    """Provide a Kafka with a group that begins with packs."""
    connection = MemoryConnection()
    connection.create("g", "nyc")
    upgrade(connection, "g", "nyc")
    return connection


def forwards(kafka: MemoryConnection) -> list[Forward]:
    """Return the records in FORWARD, without heartbeats."""
    read = [
        decode_forward(
            Source(FORWARD.topic, FORWARD.partition, raw.offset), raw.key, raw.value, raw.headers, raw.timestamp
        )
        for raw in kafka.topics.partitions[FORWARD]
    ]
    return [record for record in read if isinstance(record, Forward) and record.kind != HEARTBEAT]


def shapes(kafka: MemoryConnection) -> list[tuple[int, int]]:
    return [(record.local_seqno, record.count) for record in forwards(kafka)]


def ordered(kafka: MemoryConnection) -> list[Data]:
    log = (decode_data(raw.key, raw.value, raw.headers) for raw in kafka.topics.partitions[DATA])
    return [message for record in log if record.seqno for message in unpacked(record)]


@pytest.mark.slow
def test_messages_of_one_call_go_in_packs(kafka: MemoryConnection) -> None:
    """Up to both limits, empty ones too. Each has its receipt, its place and its headers."""
    count = 2 * MAX_PACK_MESSAGES + 1
    with SequencerThread(kafka, "g"), Member("g", "nyc/a", connection=kafka) as a:
        assert a.broadcast_many([b""] * count, {"k": b"v"}).result(WAIT) == count
        assert a.broadcast(b"alone").result(WAIT) == count + 1
        full = [b"x" * (MAX_PACK_BYTES - 9), b""]
        assert a.broadcast_many([*full, b"y", bytes(MAX_PACK_BYTES), b"z"]).result(WAIT) == count + 6
        found = [(each.seqno, each.local_seqno, each.payload, each.headers) for each in a.deliveries(1, timeout=0.5)]
    packs = [(1, MAX_PACK_MESSAGES), (MAX_PACK_MESSAGES + 1, MAX_PACK_MESSAGES), (count, 1), (count + 1, 1)]
    assert shapes(kafka) == [*packs, (count + 2, 2), *((count + n, 1) for n in (4, 5, 6))]
    payloads = [*[b""] * count, b"alone", *full, b"y", bytes(MAX_PACK_BYTES), b"z"]
    headers = [(("k", b"v"),)] * count + [()] * 6
    assert found == [(n + 1, n + 1, *each) for n, each in enumerate(zip(payloads, headers, strict=True))]


def test_an_outbox_is_sent_in_other_packs(kafka: MemoryConnection, tmp_path: Path) -> None:
    """After a kill, the next start packs what it has. The sequencer cuts off messages of an earlier pack."""
    path = tmp_path / "outbox"
    a = Member("g", "nyc/a", connection=kafka, outbox=path)
    with SequencerThread(kafka, "g"):
        a.broadcast(b"0").result(WAIT)
    kill(a)
    with SequencerThread(kafka, "g"):  # DATA tells the format from here on
        a = Member("g", "nyc/a", connection=kafka, outbox=path)
        a.broadcast(b"1").result(WAIT)
    a.broadcast_many([b"2", b"3", b"4"])
    kill(a)
    outbox = Outbox(path, "g", "nyc/a")
    first = outbox.last() + 1
    outbox.append(first, [b"5", b"6"], ())
    assert [each.local_seqno for each in outbox.pending()][-1:] == [first + 1]
    outbox.close()
    with Member("g", "nyc/a", connection=kafka, outbox=path) as again:
        again.broadcast(b"7")
        with SequencerThread(kafka, "g") as sequencer:
            again.wait_ordered(WAIT)
            assert sequencer.state.received["nyc/a"].local_seqno == first + 2
    assert [each.payload for each in ordered(kafka)] == [b"%d" % n for n in range(8)]
    assert [record.count for record in forwards(kafka)][-3:] == [3, 5, 1]


def test_a_running_member_learns_of_an_upgrade() -> None:
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    with Member("g", "nyc/first", connection=kafka) as early:
        early.broadcast_many([b"0", b"1"])
        with SequencerThread(kafka, "g"):
            early.wait_ordered(WAIT)
            a = Member("g", "nyc/a", connection=kafka)
            a.broadcast_many([b"2", b"3"]).result(WAIT)
            upgrade(kafka, "g", "nyc")
            a.broadcast_many([b"4", b"5"]).result(WAIT)
            assert {record.count for record in forwards(kafka)} == {1}
        with SequencerThread(kafka, "g"):
            a.broadcast(b"6").result(WAIT)
            a.broadcast_many([b"7", b"8"]).result(WAIT)
            assert forwards(kafka)[-1].count == 2
            # It began before anybody had sequenced: it can't know that sites do not agree.
            early.broadcast_many([b"9", b"10"]).result(WAIT)
            assert forwards(kafka)[-1].count == 1
            a.close()
    assert [each.payload for each in ordered(kafka)] == [b"%d" % n for n in range(11)]


def test_a_group_made_anew_has_no_packs(kafka: MemoryConnection) -> None:
    """A member of another group keeps the tailer, which has read a seal with packs in the former log."""
    kafka.create("h", "nyc")
    with Member("h", "nyc/a", connection=kafka):
        with Member("g", "nyc/a", connection=kafka) as a:
            for _ in range(2):
                with SequencerThread(kafka, "g"):
                    a.broadcast(b"m").result(WAIT)
        kafka.topics.make_anew(str(Topic("g", role, "nyc")) for role in ROLES)
        with SequencerThread(kafka, "g"):
            pass
        with SequencerThread(kafka, "g"), Member("g", "nyc/b", connection=kafka) as b:
            assert b.broadcast_many([b"1", b"2"]).result(WAIT) == 2


def test_no_packs_where_sites_agree(kafka: MemoryConnection) -> None:
    """Whatever the format that their seals tell."""
    with SequencerThread(kafka, "g"):
        pass
    append(kafka, "abcast.g.epoch.nyc", (None, *encode_claim(1, "isis", 3)))
    a = Member("g", "nyc/a", connection=kafka)
    a.broadcast_many([b"1", b"2"])
    kill(a)
    assert shapes(kafka) == [(1, 1), (2, 1)]


def test_headers_and_control_records_end_a_pack(kafka: MemoryConnection) -> None:
    """A message with other headers goes alone when all are sent again."""
    with SequencerThread(kafka, "g"):
        pass
    a = Member("g", "nyc/a", connection=kafka)
    for headers in ({}, {}, {"k": b"1"}, {"k": b"1"}, {}):
        a.broadcast(b"m", headers)
    queue = a._sending.forwarder._send_queue  # type: ignore[union-attr]
    assert isinstance(next(queue._pending_messages.table.pending()), Pending)
    queue.send_table()
    kill(a)
    assert shapes(kafka)[5:] == [(1, 2), (3, 2), (5, 1)]


def test_large_headers_make_small_packs(kafka: MemoryConnection) -> None:
    """Each message of a pack has them, so they count once for each."""
    size = MAX_PACK_HEADERS_BYTES // 16
    with SequencerThread(kafka, "g"), Member("g", "nyc/a", connection=kafka) as a:
        assert a.broadcast_many([b""] * 33, {"k": bytes(size - 1)}).result(WAIT) == 33
        assert a.broadcast_many([b""] * 16, {"k": bytes(size)}).result(WAIT) == 49
    assert shapes(kafka) == [(1, 16), (17, 16), (33, 1), (34, 15), (49, 1)]


class TestGathering:
    """`FORWARD` is away, so nothing that was sent is acknowledged until it is back."""

    @pytest.fixture
    def a(self, kafka: MemoryConnection, tmp_path: Path) -> Iterator[Member]:
        """Provide a member that may pack, and has sent as many messages as go alone."""
        with SequencerThread(kafka, "g"):
            pass
        a = Member("g", "nyc/a", connection=kafka, outbox=tmp_path / "outbox")
        kafka.topics.take_away(FORWARD.topic)
        self.receipts = [a.broadcast(b"%d" % n) for n in range(BUSY_RECORDS)]
        yield a
        kafka.topics.bring_back(FORWARD.topic)
        if not forwarder_of(a).has_ended:
            with SequencerThread(kafka, "g"):
                a.close(WAIT)

    def test_what_waits_leaves_behind_an_acknowledged_record(self, kafka: MemoryConnection, a: Member) -> None:
        """Each message has its own receipt, headers and place."""
        self.receipts += [a.broadcast(b"%d" % n) for n in range(BUSY_RECORDS, 100)]
        self.receipts += [a.broadcast(b"%d" % n, {"k": b"v"}) for n in range(100, 102)]
        assert len(kafka.topics._in_flight[FORWARD]) == BUSY_RECORDS + 1, "the others can't share a pack with them"
        kafka.topics.bring_back(FORWARD.topic)
        eventually(lambda: sum(record.count for record in forwards(kafka)) == 102)
        packs = [(BUSY_RECORDS + 1, 100 - BUSY_RECORDS), (101, 2)]
        assert shapes(kafka) == [*((n, 1) for n in range(1, BUSY_RECORDS + 1)), *packs]
        with SequencerThread(kafka, "g"):
            assert [receipt.result(WAIT) for receipt in self.receipts] == list(range(1, 103))
        assert [(each.payload, each.headers) for each in ordered(kafka)][99:101] == [
            (b"99", ()),
            (b"100", (("k", b"v"),)),
        ]

    def test_a_full_pack_leaves(self, kafka: MemoryConnection, a: Member) -> None:
        """Each limit, of messages and of bytes, fills one record."""
        for payload, count in ((b"", MAX_PACK_MESSAGES), (bytes(996), (MAX_PACK_BYTES - 1) // 1_000)):
            for _ in range(count):
                before = len(kafka.topics._in_flight[FORWARD])
                a.broadcast(payload)
            assert len(kafka.topics._in_flight[FORWARD]) == before + 1
        a.broadcast(bytes(MAX_PACK_BYTES))
        kafka.topics.bring_back(FORWARD.topic)
        assert [count for _, count in shapes(kafka)][BUSY_RECORDS:] == [MAX_PACK_MESSAGES, count, 1]

    def test_large_headers_fill_a_pack(self, kafka: MemoryConnection, a: Member) -> None:
        """Each message of a pack counts them."""
        for _ in range(33):
            a.broadcast(b"", {"k": bytes(MAX_PACK_HEADERS_BYTES // 16 - 1)})
        assert len(kafka.topics._in_flight[FORWARD]) == BUSY_RECORDS + 2

    def test_no_control_record_overtakes_them(self, kafka: MemoryConnection, a: Member) -> None:
        a.broadcast_many([b"x", b"y"])
        a.broadcast(b"z")
        assert forwarder_of(a).join() is not None
        kafka.topics.bring_back(FORWARD.topic)
        last = BUSY_RECORDS + 4
        assert [(record.kind, record.local_seqno, record.count) for record in forwards(kafka)][BUSY_RECORDS:] == [
            (MESSAGES, last - 3, 3),
            (JOIN, last, 1),
        ]

    def test_they_survive_a_kill(self, kafka: MemoryConnection, a: Member, tmp_path: Path) -> None:
        a.broadcast(b"gathered")
        kill(a)
        kafka.topics.bring_back(FORWARD.topic)
        outbox = tmp_path / "outbox"
        with SequencerThread(kafka, "g"), Member("g", "nyc/a", connection=kafka, outbox=outbox) as again:
            again.wait_ordered(WAIT)
        assert [each.payload for each in ordered(kafka)][BUSY_RECORDS:] == [b"gathered"]

    @pytest.mark.slow
    def test_they_leave_with_the_table_after_a_failure(self, kafka: MemoryConnection, a: Member) -> None:
        """The record that they wait for is never acknowledged."""
        receipts = [a.broadcast(b"x") for _ in range(3)]
        forwarder_of(a)._send_queue.sending._producer.abandon()
        kafka.topics.bring_back(FORWARD.topic)
        with SequencerThread(kafka, "g"):
            assert [receipt.result(WAIT) for receipt in receipts] == [BUSY_RECORDS + n for n in (1, 2, 3)]

    @pytest.mark.slow
    def test_none_gathers_before_the_group_takes_packs(self) -> None:
        kafka = MemoryConnection()
        kafka.create("g", "nyc")
        a = Member("g", "nyc/a", connection=kafka)
        kafka.topics.take_away(FORWARD.topic)
        for _ in range(2 * BUSY_RECORDS):
            a.broadcast(b"x")
        kafka.topics.bring_back(FORWARD.topic)
        assert shapes(kafka) == [(n, 1) for n in range(1, 2 * BUSY_RECORDS + 1)]
        kill(a)
