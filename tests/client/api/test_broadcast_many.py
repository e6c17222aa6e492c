"""`broadcast_many`: several messages accepted as one, with one receipt."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from connectors import AsyncMember, Member
from connectors.client.memory.outbox import Outbox
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.settings import change_settings
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import (
    Blocked,
    EnvironmentProblem,
    Excluded,
    ForwardTableFull,
    HistoryUnavailable,
    NotOrderedInTime,
    UsageError,
)
from ordering.base.records import MAX_PAYLOAD_BYTES
from ordering.membership.membership import ReceivedRow
from ordering.sequencer.state import SequencerState
from tests.client.casts.test_orders import texts
from tests.client.conftest import ALSO_ON_A_BROKER
from tests.client.members import forwarder_of, kill, with_casts
from tests.waiting import WAIT, eventually


def payloads(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def delivered(connection: Connection, group: str) -> list[bytes]:
    with Member(group, "nyc/reader", connection=connection) as reader:
        return [delivery.payload for delivery in reader.deliveries(1, timeout=0.5)]


@pytest.mark.slow
@ALSO_ON_A_BROKER
def test_one_receipt_for_all(connection: Connection, group: str, sequencer: SequencerThread) -> None:
    """While a thread sends single messages, the messages of one call have consecutive local seqnos, in their order."""
    with Member(group, "nyc/a", connection=connection) as a:
        stop = threading.Event()

        def send_single() -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                a.broadcast(b"single %d" % number).result(WAIT)

        sending = threading.Thread(target=send_single)
        sending.start()
        receipts = [a.broadcast_many(iter(payloads(100, first)), {"k": b"v"}) for first in range(0, 500, 100)]
        seqnos = [receipt.result(WAIT) for receipt in receipts]
        stop.set()
        sending.join(WAIT)
        assert a.wait_ordered(WAIT)
        by_seqno = {delivery.seqno: delivery for delivery in a.deliveries(1, timeout=0.5)}
        many = [delivery for delivery in by_seqno.values() if delivery.headers]
        assert [delivery.payload for delivery in many] == payloads(500)
        assert len(by_seqno) > 500
        for at, (receipt, seqno) in enumerate(zip(receipts, seqnos, strict=True)):
            last = by_seqno[seqno]
            assert (last.sender, last.incarnation, last.local_seqno) == receipt.message_id
            locals_ = [delivery.local_seqno for delivery in many[100 * at : 100 * (at + 1)]]
            assert locals_ == list(range(last.local_seqno - 99, last.local_seqno + 1))


class TestRoom:
    @pytest.mark.slow
    def test_all_or_none_enter_the_table(self, connection: Connection, group: str) -> None:
        with Member(group, "nyc/a", connection=connection, max_pending_records=5) as a:
            a.broadcast_many(payloads(3))
            with pytest.raises(ForwardTableFull, match=r"3 messages of nyc/a wait .* no room for 3 messages more"):
                a.broadcast_many(payloads(3), timeout=0.05)
            assert len(forwarder_of(a)._pending_messages.table) == 3
            waiting = threading.Thread(target=a.broadcast_many, args=(payloads(5, 3),))
            waiting.start()
            with SequencerThread(connection, group):
                waiting.join(WAIT)
                a.wait_ordered(WAIT)
        assert delivered(connection, group) == payloads(8)

    def test_more_than_there_ever_is(self, connection: Connection, group: str) -> None:
        limits: Any = {"max_pending_records": 5, "max_pending_bytes": 100}
        with Member(group, "nyc/a", connection=connection, **limits) as a:
            for many in (payloads(6), [b"x" * 60, b"x" * 41]):
                with pytest.raises(UsageError, match="limits"):
                    a.broadcast_many(many)
            with pytest.raises(UsageError, match="limits"):
                a.broadcast_many([b"x" * 45] * 2, {"key": b"eight.."})
            assert not forwarder_of(a).has_pending
            with SequencerThread(connection, group):
                assert a.broadcast_many([b"x" * 101]).result(WAIT) == 1, "an empty table takes any single message"
                assert a.broadcast_many([b"x" * 50] * 2).result(WAIT) == 3


class TestOutbox:
    @pytest.mark.slow
    def test_a_kill_before_they_are_ordered(self, connection: Connection, group: str, tmp_path: Path) -> None:
        outbox = tmp_path / "a.outbox"
        a = Member(group, "nyc/a", connection=connection, outbox=outbox)
        a.broadcast(b"0")
        receipt = a.broadcast_many(payloads(9, 1), {"k": b"v"})
        kill(a)
        with pytest.raises(NotOrderedInTime):
            receipt.result(0)
        with SequencerThread(connection, group), Member(group, "nyc/a", connection=connection, outbox=outbox) as again:
            assert again.broadcast_many(payloads(5, 10)).result(WAIT) == 15
        assert delivered(connection, group) == payloads(15)

    def test_one_step(self, tmp_path: Path) -> None:
        """A row that can't be written undoes those before it."""
        outbox = Outbox(tmp_path / "a.outbox", "g", "nyc/a")
        outbox.begin(7)
        outbox.append(3, [b"3"], ())
        with pytest.raises(EnvironmentProblem):
            outbox.append(4, [b"4", object()], ())  # type: ignore[list-item]
        assert [row.local_seqno for row in outbox.pending()] == [3]
        outbox.append(4, payloads(2), (("k", b"v"),))
        outbox.close()
        outbox = Outbox(tmp_path / "a.outbox", "g", "nyc/a")
        assert [(row.local_seqno, row.payload) for row in outbox.pending()] == [(3, b"3"), (4, b"0"), (5, b"1")]
        outbox.close()


class TestFlush:
    @pytest.mark.slow
    def test_none_is_taken_in_a_flush(self, connection: Connection, group: str, sequencer: SequencerThread) -> None:
        with Member(group, "nyc/a", connection=connection) as a, Member(group, "nyc/b", connection=connection) as b:
            a.connect()
            b.connect()
            with a.flush(WAIT):
                with pytest.raises(Blocked):
                    b.broadcast_many(payloads(3), timeout=0.05)
                with pytest.raises(UsageError, match="flush"):
                    a.broadcast_many(payloads(3))
            b.broadcast_many(payloads(3)).result(WAIT)
            assert [delivery.payload for delivery in a.deliveries(1, timeout=0.3)] == payloads(3)

    @pytest.mark.slow
    def test_those_taken_before_it_are_inside_their_view(self, connection: Connection, group: str) -> None:
        change_settings(connection, group, "nyc", flush=True)
        sent = payloads(200)

        def block() -> None:
            b.broadcast_many(sent)

        with SequencerThread(connection, group), Member(group, "nyc/b", connection=connection, block=block) as b:
            b.connect()
            before = b.view
            assert before is not None
            with Member(group, "nyc/a", connection=connection) as a:
                a.connect(timeout=WAIT)
                views = {d.view_id for d in a.deliveries(1, timeout=0.3) if d.payload in sent}
            assert views == {before.view_id}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"closed": True}, {"flush": True}])
def test_a_receipt_moves_with_its_messages(
    connection: Connection, group: str, sequencer: SequencerThread, settings: Any
) -> None:
    """The group takes the member for dead, and has ordered some messages: the next incarnation sends the rest."""
    change_settings(connection, group, "nyc", suspect_after_ms=1_500, **settings)
    with Member(group, "nyc/a", connection=connection) as a, Member(group, "nyc/b", connection=connection) as b:
        a.connect()
        b.connect()
        old = b.incarnation
        sequencer.drop = lambda forward: (
            (forward.sender, forward.incarnation) == ("nyc/b", old) and forward.payload not in payloads(7)
        )
        receipt = b.broadcast_many(payloads(20))
        eventually(lambda: b.incarnation != old and b.view is not None, what="b is back")
        sequencer.drop = lambda _: False
        seqno = receipt.result(WAIT)
        assert receipt.message_id.incarnation == b.incarnation
        found = [delivery for delivery in a.deliveries(1, timeout=0.5) if delivery.sender == "nyc/b"]
        assert [delivery.payload for delivery in found] == payloads(20)
        assert found[-1].seqno == seqno
        assert {delivery.incarnation for delivery in found} == {old, b.incarnation}


def test_retention_has_dropped_the_answer(connection: Connection, group: str) -> None:
    """DATA no longer tells the seqnos: the receipt fails only if the last message is among those."""
    with Member(group, "nyc/a", connection=connection) as a:
        receipt = a.broadcast_many(payloads(3))
        pending_messages, gone = forwarder_of(a)._pending_messages, HistoryUnavailable("retention has dropped it.")
        for ordered, is_settled in ((2, False), (3, True)):
            with a._incarnations.changed:
                received = {"nyc/a": ReceivedRow(forwarder_of(a).incarnation, ordered)}
                pending_messages.catch_up(gone, SequencerState(group, epoch=1, seqno=9, received=received))
            assert receipt.done() is is_settled
        with pytest.raises(HistoryUnavailable, match="is ordered, but DATA no longer tells its seqno"):
            receipt.result(0)


def test_a_receipt_fails_with_its_incarnation(connection: Connection, group: str) -> None:
    with contextlib.suppress(NotOrderedInTime), Member(group, "nyc/a", connection=connection) as a:
        receipt = a.broadcast_many(payloads(3))
        forwarder_of(a).fail(Excluded("taken for dead"))
        with pytest.raises(Excluded):
            receipt.result(0)
        with pytest.raises(Excluded):
            a.broadcast_many(payloads(3))


def test_with_casts(connection: Connection, flushing: str, sequencer: SequencerThread) -> None:
    """Causal casts before and behind them keep their places."""
    with with_casts(connection, flushing, "a") as a, with_casts(connection, flushing, "b") as b:
        a.connect()
        b.connect()
        a.broadcast(b"before", order="causal")
        receipt = a.broadcast_many(payloads(5))
        a.broadcast(b"behind", order="causal")
        expected = ["causal before", *(f"total {number}" for number in range(5)), "causal behind"]
        assert texts(b.deliveries(timeout=WAIT), 7) == expected
        assert receipt.result(WAIT) > 0


def test_misuse(connection: Connection, group: str, sequencer: SequencerThread) -> None:
    with Member(group, "nyc/a", connection=connection) as a:
        for bad in (b"bytes", bytearray(b"x"), "text", 3, None):
            with pytest.raises(UsageError, match="payloads are a list"):
                a.broadcast_many(bad)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="no payload"):
            a.broadcast_many([])
        for third in ("text", 3, b"x" * (MAX_PAYLOAD_BYTES + 1)):
            with pytest.raises(UsageError, match="payload 3: "):
                a.broadcast_many([b"1", b"2", third, b"4"])
        with pytest.raises(UsageError, match="header"):
            a.broadcast_many([b"1"], [("abcast", b"x")])
        with pytest.raises(UsageError, match="timeout"):
            a.broadcast_many([b"1"], timeout="soon")  # type: ignore[arg-type]
        assert a.broadcast_many([b"1"]).result(WAIT) == 1
        change_settings(connection, group, "nyc", closed=True)
        with Member(group, "nyc/b", connection=connection) as b, pytest.raises(UsageError, match="closed"):
            b.broadcast_many([b"1"])
    with pytest.raises(UsageError, match="closed"):
        a.broadcast_many([b"1"])


def test_serializer_and_asyncio() -> None:
    kafka = MemoryConnection()
    kafka.create("g", "nyc")

    async def work() -> None:
        async with AsyncMember("g", "nyc/a", connection=kafka, serializer=str.encode, deserializer=bytes.decode) as a:
            receipt = await a.broadcast_many(["one", "two"])
            assert await receipt == 2
            assert [delivery.value async for delivery in a.deliveries(timeout=0)] == ["one", "two"]

    with SequencerThread(kafka, "g", "nyc"):
        asyncio.run(asyncio.wait_for(work(), WAIT))
