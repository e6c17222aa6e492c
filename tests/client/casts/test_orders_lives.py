"""Casts of incarnations that go on, that end, or that an earlier process has begun."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.client.deliveries import merged_deliveries
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.memory.outbox import Outbox
from connectors.client.tail import cast_hub, merged_log, sharing
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.headers import depends_of
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog, Start
from connectors.testing import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import Blocked, HistoryUnavailable, ProtocolViolation, Superseded
from ordering.base.names import Topic
from ordering.base.reader import Reader
from ordering.base.records import EPOCH, FLUSH_OK, JOIN, MESSAGE, Forward
from ordering.participant.forward_table import Pending, carried_over, control_headers
from tests.client.members import forwarder_of, kill, with_casts
from tests.waiting import WAIT, eventually

pytestmark = pytest.mark.parametrize("connection", ["memory"], indirect=True)


pytestmark = pytest.mark.usefixtures("sequencer")


def drop_messages(sequencer: SequencerThread, kind: str = MESSAGE) -> list[Forward]:
    """Drop all further messages, or records of this kind; return them."""
    dropped: list[Forward] = []

    def drop(record: Forward) -> bool:
        if record.kind == kind:
            dropped.append(record)
        return record.kind == kind

    sequencer.drop = drop
    return dropped


def payloads(member: Member, count: int) -> list[bytes]:
    """Return the first payloads. They are counted: before casts are read, silence would end a run too early."""
    return [each.payload for each in itertools.islice(member.deliveries(timeout=WAIT), count)]


def test_a_member_that_ends_leaves_the_others_of_its_process_alone(
    connection: Connection, flushing: str, sequencer: SequencerThread
) -> None:
    """A cast that waits when another process takes its name is dropped, and ends no thread that others use."""
    with with_casts(connection, flushing, "a") as a, with_casts(connection, flushing, "b") as b:
        for each in (a, b):
            each.connect(timeout=WAIT)
        dropped = drop_messages(sequencer)
        lost = a.broadcast(b"total")
        eventually(lambda: dropped)
        waits = a.broadcast(b"causal", order="causal")
        forwarder = a._sending.forwarder
        assert forwarder is not None
        forwarder._end(Superseded("another process has started"))
        with pytest.raises(Superseded):
            waits.result(WAIT)
        sequencer.drop = lambda _: False  # the total message comes late, and would let the cast go
        headers = forward_headers(forwarder.incarnation, lost.message_id.local_seqno)
        forwarder._send_queue.sending.send(forwarder._send_queue._topic, b"nyc/a", b"total", headers)
        seqno = b.broadcast_sync(b"behind it", timeout=WAIT)
        assert b.broadcast(b"goes on", order="causal").result(WAIT) == 1
        assert seqno > 0


def test_a_hub_keeps_nothing_of_a_member_that_was_closed(connection: Connection, group: str) -> None:
    """A process may open a member for each of its users, for years, beside one that stays open."""
    with with_casts(connection, group, "a") as a:
        a.connect(timeout=WAIT)
        hub = a._sending.hub
        assert hub is not None
        with with_casts(connection, group, "b") as older:
            older.connect(timeout=WAIT)
            with with_casts(connection, group, "b") as newer:
                newer.connect(timeout=WAIT)
                known = {each._sending.forwarder.participant.member for each in (a, older, newer)}  # type: ignore[union-attr]
                eventually(lambda: set(hub.begins) == known)
                with contextlib.suppress(Superseded):
                    older.close()
                assert newer.broadcast(b"x", order="fifo").result(WAIT) == 1
                assert payloads(newer, 1) == [b"x"]
                source = newer._source(True)  # a thread begins to deliver just then
                assert source.may_open(WAIT)
        assert [member.address for member in hub.begins] == ["nyc/a"]
        with contextlib.closing(source):
            assert source.open(1).ready is not None


def test_a_cast_waits_for_what_an_outbox_has_kept(
    connection: Connection, flushing: str, sequencer: SequencerThread, tmp_path: Path
) -> None:
    dropped = drop_messages(sequencer)
    killed = with_casts(connection, flushing, "a", outbox=tmp_path / "outbox")
    for text in (b"1", b"2"):
        killed.broadcast(text)
    eventually(lambda: len(dropped) == 2)
    kill(killed)
    sequencer.drop = lambda _: False
    with (
        with_casts(connection, flushing, "b") as b,
        with_casts(connection, flushing, "a", outbox=tmp_path / "outbox") as a,
    ):
        b.connect(timeout=WAIT)
        a.connect(timeout=WAIT)
        assert a.broadcast(b"3", order="causal").result(WAIT) == 1
        assert payloads(a, 1) == [b"3"]


def test_a_life_that_goes_on_in_a_view_casts_from_the_next_view_on(
    connection: Connection, flushing: str, tmp_path: Path
) -> None:
    """Under its old numbers, all members would take its casts for duplicates."""
    with with_casts(connection, flushing, "b") as b:
        b.connect(timeout=WAIT)
        killed = with_casts(connection, flushing, "a", outbox=tmp_path / "outbox")
        killed.connect(timeout=WAIT)
        for _ in range(3):
            killed.broadcast(b"old", order="fifo").result(WAIT)
        kill(killed)
        with with_casts(connection, flushing, "a", outbox=tmp_path / "outbox") as a:
            a.connect(timeout=WAIT)
            assert a.incarnation == killed.incarnation
            with pytest.raises(Blocked, match="earlier process"):
                a.broadcast(b"lost", order="fifo", timeout=0.1)
            with with_casts(connection, flushing, "c") as c:
                c.connect(timeout=WAIT)
                assert a.broadcast(b"new", order="causal", timeout=WAIT).result(WAIT) == 4
                seen = b.deliveries(timeout=WAIT)
                assert [next(seen).payload for _ in range(4)] == [b"old"] * 3 + [b"new"]


def test_what_depends_on_casts_moves_up_with_what_the_earlier_life_has_sent(
    connection: Connection, flushing: str, sequencer: SequencerThread, tmp_path: Path
) -> None:
    """The view lets a message leave before the messages ahead of its JOIN are taken out of the table."""
    dropped = drop_messages(sequencer)
    killed = with_casts(connection, flushing, "a", outbox=tmp_path / "o")
    for text in (b"1", b"2"):
        killed.broadcast(text)
    eventually(lambda: len(dropped) == 2)
    kill(killed)
    first, second = dropped
    outbox = Outbox(tmp_path / "o", flushing, "nyc/a")
    carried = [carried_over(entry, first.incarnation) for entry in outbox.pending()]
    outbox.begin(first.incarnation + 1, [Pending(1, b"", control_headers(JOIN)), *carried])
    outbox.close()
    joins = drop_messages(sequencer, JOIN)
    with with_casts(connection, flushing, "a", outbox=tmp_path / "o") as a:
        eventually(lambda: joins)
        forwarder = forwarder_of(a)
        queue, hub = forwarder._send_queue, forwarder.hub
        assert hub is not None
        with forwarder._shared.tailer(flushing, "nyc").notifying:
            headers = forward_headers(first.incarnation, first.local_seqno)
            queue.sending.send(queue._topic, b"nyc/a", first.payload, headers)
            sequencer.drop = lambda _: False
            with forwarder.changed:
                queue.send_table()
            eventually(lambda: hub.receiver.index_of(forwarder._identity) is not None)
            a.broadcast(b"cast", order="fifo").result(WAIT)
            receipt = a.broadcast(b"3")
        receipt.result(WAIT)
        assert receipt.message_id.local_seqno == 3
        with DataLog(connection, flushing, "nyc") as log:
            records = [stored.data for stored in log.records(0, log.end()) if stored.data.kind == MESSAGE]
        assert [(record.payload, depends_of(record.headers) is not None) for record in records] == [
            (first.payload, False),
            (second.payload, False),
            (b"3", True),
        ]


@pytest.mark.slow
def test_a_life_that_goes_on_in_no_view_has_casts_of_its_own(
    connection: Connection, group: str, tmp_path: Path
) -> None:
    with with_casts(connection, group, "b") as b:
        for start in range(3):
            killed = with_casts(connection, group, "a", outbox=tmp_path / "outbox")
            killed.broadcast(b"total").result(WAIT)
            assert killed.broadcast(b"%d" % start, order="fifo").result(WAIT) == 1
            kill(killed)
        casts = [each for each in itertools.islice(b.deliveries(timeout=WAIT), 6) if each.order == "fifo"]
        assert [each.payload for each in casts] == [b"0", b"1", b"2"]
        assert len({each.incarnation for each in casts}) == 3


def test_retention_has_dropped_the_first_casts(
    connection: Connection, flushing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Total messages that depend on them do not wait; casts are given from the first view on that has them all."""
    monkeypatch.setattr(merged_deliveries, "MARGIN_MS", 0)
    assert isinstance(connection, MemoryConnection)
    with with_casts(connection, flushing, "a") as a:
        a.connect(timeout=WAIT)
        a.broadcast(b"lost", order="causal")
        a.broadcast(b"1").result(WAIT)
        for number in range(2):
            place = TopicPartition(str(Topic(flushing, "cast", "nyc")), number)
            connection.topics.beginnings[place] = len(connection.topics.partitions[place])
        a.broadcast(b"not given", order="causal").result(WAIT)
        a.broadcast(b"2").result(WAIT)
        time.sleep(0.01)  # a later time
        with with_casts(connection, flushing, "late") as late:
            late.connect(timeout=WAIT)
            a.broadcast(b"given", order="causal").result(WAIT)
            a.broadcast(b"3").result(WAIT)
            with with_casts(connection, flushing, "reader") as reader:
                assert payloads(reader, 4) == [b"1", b"2", b"given", b"3"]


def test_retention_has_dropped_casts_behind_the_beginning(
    connection: Connection, flushing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader begins at a seqno that is older than the oldest cast: no message waits for a dropped one."""
    monkeypatch.setattr(merged_deliveries, "MARGIN_MS", 0)
    monkeypatch.setattr(merged_log, "STALL_S", 0.5)
    assert isinstance(connection, MemoryConnection)
    with contextlib.ExitStack() as closing:
        a, b, c, reader = (closing.enter_context(with_casts(connection, flushing, name)) for name in "abcr")
        a.connect(timeout=WAIT)
        first = a.broadcast(b"1").result(WAIT)
        b.connect(timeout=WAIT)
        a.broadcast(b"lost", order="causal")
        a.broadcast(b"2").result(WAIT)
        for number in range(2):
            place = TopicPartition(str(Topic(flushing, "cast", "nyc")), number)
            connection.topics.beginnings[place] = len(connection.topics.partitions[place])
        a.broadcast(b"not given", order="causal").result(WAIT)
        a.broadcast(b"3").result(WAIT)
        time.sleep(0.01)  # a later time
        c.connect(timeout=WAIT)
        a.broadcast(b"given", order="causal").result(WAIT)
        a.broadcast(b"4").result(WAIT)
        read = itertools.islice(reader.deliveries(from_seqno=first, timeout=WAIT), 5)
        assert [each.payload for each in read] == [b"1", b"2", b"3", b"given", b"4"]


@pytest.mark.slow
@pytest.mark.parametrize("has_answered", [False, True])
def test_retention_has_dropped_the_beginning_of_a_flush(
    connection: Connection, flushing: str, sequencer: SequencerThread, has_answered: bool
) -> None:
    """The sequencer was away in the middle of a flush. A new process begins when the flush has ended: before that, it
    can't know how many casts the members have delivered.
    """
    assert isinstance(connection, MemoryConnection)
    topics, data = connection.topics, Topic(flushing, "data", "nyc")
    with contextlib.ExitStack() as to_stop, contextlib.ExitStack() as to_close:
        a, b = (to_close.enter_context(with_casts(connection, flushing, name, resend_after_s=0.2)) for name in "ab")
        for each in (a, b):
            each.connect(timeout=WAIT)
        for number in range(3):
            a.broadcast(b"%d" % number, order="causal").result(WAIT)
        sequencer.drop = lambda record: record.kind == FLUSH_OK and (not has_answered or record.sender == "nyc/b")
        late = to_close.enter_context(with_casts(connection, flushing, "late"))
        late._sending.start().join()
        eventually(lambda: sequencer.state.membership.flush.id, WAIT, "a flush runs")
        eventually(lambda: len(sequencer.state.membership.flush.answered) == has_answered, WAIT, "the answers")
        sequencer.__exit__(None, None, None)
        other = SequencerThread(connection, flushing, drop=lambda record: record.kind == FLUSH_OK)
        to_stop.enter_context(other)
        with DataLog(connection, flushing, "nyc") as log:
            seals = [each.offset for each in log.records(0, log.end()) if each.data.kind == EPOCH]
        topics.drop(str(data), seals[-1])  # the snapshot of the takeover
        elsewhere = MemoryConnection(topics=topics, timeout=11)  # as another process has it
        new = to_close.enter_context(with_casts(elsewhere, flushing, "new"))
        joins = threading.Thread(target=lambda: new.connect(timeout=WAIT))
        joins.start()
        time.sleep(0.3)
        other.drop = lambda _: False
        joins.join(WAIT)
        a.broadcast(b"a's", order="causal", timeout=WAIT).result(WAIT)
        new.broadcast(b"new", order="causal", timeout=WAIT).result(WAIT)
        assert set(payloads(new, 2)) == {b"a's", b"new"}


@pytest.mark.slow
def test_a_flush_that_does_not_end_and_whose_beginning_is_gone(
    connection: Connection, flushing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cast_hub, "FLUSH_S", 0.2)

    def gone(*_: object) -> None:
        raise HistoryUnavailable("retention has dropped it.")

    monkeypatch.setattr(DataLog, "outside_of_a_flush", gone)
    assert isinstance(connection, MemoryConnection)
    elsewhere = MemoryConnection(topics=connection.topics, timeout=11)
    with with_casts(connection, flushing, "a") as a, with_casts(elsewhere, flushing, "b") as b:
        a.connect(timeout=WAIT)
        with a.flush(timeout=WAIT), pytest.raises(Blocked, match="has lost its beginning"):
            b.connect(timeout=WAIT)
        b.connect(timeout=WAIT)


def test_a_start_in_a_flush_that_reads_from_before_the_view(
    connection: Connection, flushing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records without a seqno, and repeated ones in a copy, let the search for the flush's start go back too far."""
    monkeypatch.setattr(DataLog, "outside_of_a_flush", lambda log, _: (Start(0, Reader()), log.state(0)))
    assert isinstance(connection, MemoryConnection)
    elsewhere = MemoryConnection(topics=connection.topics, timeout=11)
    with with_casts(connection, flushing, "a") as a, with_casts(elsewhere, flushing, "b") as b:
        a.connect(timeout=WAIT)
        for _ in range(3):
            a.broadcast(b"before", order="causal", timeout=WAIT).result(WAIT)
        with a.flush(timeout=WAIT):
            b._sending.start()
        b.connect(timeout=WAIT)
        b.broadcast(b"behind", order="causal", timeout=5.0).result(WAIT)


@pytest.mark.parametrize("casts", [True, False])
def test_a_position_that_data_does_not_reach(connection: Connection, group: str, casts: bool) -> None:
    """A reader whose position is behind the end of new topics raises, instead of missing messages in silence."""
    with Member(group, "nyc/a", connection=connection, casts=casts) as a:
        a.broadcast(b"1").result(WAIT)
        with contextlib.closing(MemberMemory(connection, group, a.address)) as memory:
            memory.remember_taken(500, 0)
        with pytest.raises(ProtocolViolation, match="after seqno 500"):
            next(a.deliveries(timeout=0.1))
        assert next(a.deliveries(1, timeout=WAIT)).payload == b"1"
    assert (os.getpid(), connection) not in sharing._open


@pytest.mark.slow
def test_a_causal_cast_waits_for_the_view_that_was_asked_for(
    connection: Connection, flushing: str, sequencer: SequencerThread
) -> None:
    """A member that was suspected joins again by itself, and its application has made no mistake."""
    sequencer.drop = lambda record: record.kind == JOIN
    with with_casts(connection, flushing, "a", resend_after_s=0.2) as a:
        a._sending.start().join()
        with pytest.raises(Blocked, match="has asked to join"):
            a.broadcast(b"1", order="causal", timeout=0.1)
        sequencer.drop = lambda _: False
        assert a.broadcast(b"2", order="causal", timeout=WAIT).result(WAIT) == 1


@pytest.mark.slow
def test_an_application_that_never_ceases_to_send_holds_up_no_flush(
    connection: Connection, flushing: str, sequencer: SequencerThread
) -> None:
    """Once block() has returned, the member takes no more casts, and the flush waits only for the earlier ones."""
    with (
        with_casts(connection, flushing, "a", resend_after_s=0.2) as a,
        with_casts(connection, flushing, "b") as b,
    ):
        a.connect(timeout=WAIT)
        dropped = drop_messages(sequencer)
        a.broadcast(b"total")
        eventually(lambda: dropped)
        a.broadcast(b"causal", order="causal")  # waits for the total one
        joining = threading.Thread(target=lambda: b.connect(timeout=WAIT))
        joining.start()
        eventually(lambda: forwarder_of(a)._lifecycle.is_silent)
        assert not a._sending.known.view or len(a._sending.known.view.members) == 1
        for order in ("fifo", "total"):
            with pytest.raises(Blocked, match="flush"):
                a.broadcast(b"more", order=order, timeout=0.1)
        sequencer.drop = lambda _: False
        joining.join(WAIT)
        assert a.broadcast(b"more", order="fifo", timeout=WAIT).result(WAIT) == 2
        stream = a.deliveries(timeout=WAIT)
        assert [next(stream).payload for _ in range(3)] == [b"total", b"causal", b"more"]


def test_casts_of_a_newer_process_end_the_older_one(connection: Connection, group: str) -> None:
    """Without a JOIN or an ordered message, the casts alone tell of the newer process."""
    older = with_casts(connection, group, "a")
    older.broadcast(b"1", order="fifo").result(WAIT)
    with with_casts(connection, group, "a") as newer, with_casts(connection, group, "b") as b:
        for text in (b"2", b"3"):
            newer.broadcast(text, order="fifo").result(WAIT)
        eventually(lambda: older._sending.forwarder is None or older._sending.forwarder.has_ended)
        with pytest.raises(Superseded, match="Members ignore this process's casts now"):
            older.broadcast(b"lost", order="fifo")
        older.close()
        assert newer.broadcast(b"4", order="fifo").result(WAIT) == 3
        assert payloads(b, 4) == [b"1", b"2", b"3", b"4"]


def test_nothing_waits_for_a_hub_that_was_closed(connection: Connection, flushing: str) -> None:
    with with_casts(connection, flushing, "a") as a:
        a.connect(timeout=WAIT)
        forwarder = a._sending.forwarder
        assert forwarder is not None
        assert forwarder.hub is not None
        hub = forwarder.hub
    eventually(lambda: hub._stopping.is_set())
    with pytest.raises(Exception, match="waits for casts that it depends on"):
        hub.wait_for_seqno(10_000, None)
