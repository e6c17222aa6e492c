"""FIFO, causal, total and synchronous messages behind one call, on the real client and the real core."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError

from connectors import Delivery, Member
from connectors.client.deliveries import merged_deliveries
from connectors.client.tail.cast_hub import CastHub
from connectors.client.values.silence import Silence
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.settings import change_settings
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import AbcastError, CastMissing, KafkaRefused, UsageError
from ordering.casts.casts import Cast, OrderedRecord
from ordering.casts.delivery_status import DeliveryStatus
from tests.client.conftest import ALSO_ON_A_BROKER
from tests.client.members import kill, with_casts
from tests.waiting import WAIT, eventually

pytestmark = pytest.mark.usefixtures("sequencer")


def texts(stream: Iterator[Delivery], count: int) -> list[str]:
    """The next deliveries, each with its order."""
    return [f"{each.order} {each.payload.decode()}" for each in (next(stream) for _ in range(count))]


def test_fifo_in_an_open_group(connection: Connection, group: str) -> None:
    """Without a JOIN, each sender's casts come in order, with no seqno, among the total messages."""
    with contextlib.ExitStack() as closing:
        a, b = (closing.enter_context(with_casts(connection, group, name)) for name in "ab")
        receipts = [a.broadcast(b"%d" % number, [("n", b"v")], order="fifo") for number in range(200)]
        assert [receipt.result(WAIT) for receipt in receipts] == list(range(1, 201))
        seqno = b.broadcast(b"total").result(WAIT)
        seen = list(itertools.islice(b.deliveries(timeout=WAIT), 201))
        casts = [each for each in seen if each.order == "fifo"]
        assert [each.payload for each in casts] == [b"%d" % number for number in range(200)]
        assert {(each.seqno, each.sender, each.view_id, each.headers) for each in casts} == {
            (0, "nyc/a", 0, (("n", b"v"),))
        }
        assert [(each.seqno, each.payload) for each in seen if each.order == "total"] == [(seqno, b"total")]


@pytest.mark.slow
def test_with_a_timeout_of_0_casts_that_are_there_come_first(connection: Connection, group: str) -> None:
    """Casts are in other topics than DATA. The end of DATA says nothing about the ends of these topics."""
    with contextlib.ExitStack() as closing:
        a, b = (closing.enter_context(with_casts(connection, group, name)) for name in "ab")
        receipts = [a.broadcast(b"%d" % number, order="fifo") for number in range(2_000)]
        assert [receipt.result(WAIT) for receipt in receipts] == list(range(1, 2_001))
        assert [each.local_seqno for each in b.deliveries(timeout=0)] == list(range(1, 2_001))
        assert list(b.deliveries(timeout=0)) == []


def test_from_any_seqno(connection: Connection, group: str) -> None:
    """DATA has snapshots between the messages, so a seqno tells no exact offset."""
    with contextlib.ExitStack() as closing:
        a, b = (closing.enter_context(with_casts(connection, group, name)) for name in "ab")
        for receipt in [a.broadcast(b"%d" % number) for number in range(1, 9)]:
            receipt.result(WAIT)
        for first in range(1, 9):
            seen = list(itertools.islice(b.deliveries(from_seqno=first, timeout=WAIT), 9 - first))
            assert [(each.seqno, each.payload) for each in seen] == [(n, b"%d" % n) for n in range(first, 9)]


def test_causal_order_is_refused_without_a_view(connection: Connection, group: str) -> None:
    with with_casts(connection, group, "a") as a:
        with pytest.raises(UsageError, match="causal order needs a view"):
            a.broadcast(b"m", order="causal")
        a.connect(timeout=WAIT)  # a view, but no flush that ends it
        with pytest.raises(UsageError, match="causal order needs a view"):
            a.broadcast(b"m", order="causal")
        assert a.broadcast(b"m", order="fifo").result(WAIT) == 1


@pytest.mark.parametrize("casts_of_others", [False, True], ids=["others without casts", "others with casts"])
@pytest.mark.parametrize("flush", ["never", "given up", "always"])
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_members_of_any_group_deliver(
    connection: Connection, group: str, *, closed: bool, flush: str, casts_of_others: bool
) -> None:
    """A member that has connected delivers casts from its first view on, under any settings past and present."""
    change_settings(connection, group, "nyc", flush=flush != "never", closed=closed)
    with contextlib.ExitStack() as closing:
        other = closing.enter_context(Member(group, "nyc/other", connection=connection, casts=casts_of_others))
        other.connect(timeout=WAIT)
        if flush == "given up":
            change_settings(connection, group, "nyc", flush=False)
        a, b = (closing.enter_context(with_casts(connection, group, name)) for name in "ab")
        for each in (a, b):
            each.connect(timeout=WAIT)
        orders = ["total", "fifo", *(["causal"] if flush == "always" else [])]
        other.broadcast(b"first").result(WAIT)
        for order in orders:
            a.broadcast(order.encode(), order=order).result(WAIT)  # type: ignore[call-overload]
        for each in (a, b):
            seen = texts(each.deliveries(timeout=WAIT), 1 + len(orders))
            assert sorted(seen) == sorted(["total first", *(f"{order} {order}" for order in orders)])
        if flush != "always":
            with pytest.raises(UsageError, match="causal order needs a view"):
                a.broadcast(b"m", order="causal")


@pytest.mark.slow
def test_deliveries_end_in_time_where_the_first_view_does_not_come(
    connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub waits, say, for a cast that the view depends on. `close`, and a timeout, end the stream all the same."""
    monkeypatch.setattr(CastHub, "_note_begins", lambda *_: None)
    impatient = replace(connection, timeout=3.0)  # a stream that has read nothing waits as long, whatever its `timeout`
    with with_casts(impatient, group, "a") as a, with_casts(connection, group, "b") as b:
        for each in (a, b):
            each.connect(timeout=WAIT)
        began = time.monotonic()
        assert list(a.deliveries(timeout=0.5)) == []
        assert time.monotonic() - began < merged_deliveries.BEGIN_TIMEOUT_S
        # Another member: the limit of the first began with its first stream.
        monkeypatch.setattr(merged_deliveries, "BEGIN_TIMEOUT_S", 0.0)
        with pytest.raises(AbcastError, match="the first view of nyc/b was not delivered"):
            next(b.deliveries())


def test_deliveries_raise_what_ended_the_hub_before_the_first_view(
    connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CastMissing("seqno 24 waits for a cast")

    monkeypatch.setattr(CastHub, "_note_begins", lambda *_: None)
    a = with_casts(connection, group, "a")
    try:
        a.connect(timeout=WAIT)
        stream = a.deliveries()
        monkeypatch.setattr(CastHub, "_poll", fail)
        with pytest.raises(CastMissing, match="seqno 24"):
            next(stream)
    finally:
        kill(a)


def test_other_refusals(connection: Connection, group: str) -> None:
    with Member(group, "nyc/a", connection=connection) as a:
        with pytest.raises(UsageError, match="casts=True"):
            a.broadcast(b"m", order="fifo")
        with pytest.raises(UsageError, match="no order 'random'"):
            a.broadcast(b"m", order="random")  # type: ignore[call-overload]


@pytest.mark.slow
def test_causal_order_across_members(connection: Connection, flushing: str) -> None:
    """Deposit and cheque: b sends when it has delivered what a sent; c delivers them in that order. All orders mix."""
    with contextlib.ExitStack() as closing:
        a, b, c = (closing.enter_context(with_casts(connection, flushing, name)) for name in "abc")
        for each in (a, b, c):
            each.connect(timeout=WAIT)
        streams = {name: each.deliveries(timeout=WAIT) for name, each in (("a", a), ("b", b), ("c", c))}
        a.broadcast(b"deposit", order="causal")
        assert texts(streams["b"], 1) == ["causal deposit"]
        b.broadcast(b"cheque", order="causal")
        assert texts(streams["c"], 2) == ["causal deposit", "causal cheque"]
        c.broadcast(b"statement")
        assert texts(streams["a"], 3) == ["causal deposit", "causal cheque", "total statement"]
        a.broadcast(b"complaint", order="causal")
        a.broadcast(b"letter", order="fifo")
        assert texts(streams["b"], 4) == ["causal cheque", "total statement", "causal complaint", "fifo letter"]
        assert texts(streams["c"], 3) == ["total statement", "causal complaint", "fifo letter"]


@pytest.mark.slow
@ALSO_ON_A_BROKER
def test_a_chain_through_all_orders(connection: Connection, flushing: str) -> None:
    """Two members answer each other, in an order after another: every member has the chain as it was."""
    with contextlib.ExitStack() as closing:
        a, b, c = (closing.enter_context(with_casts(connection, flushing, name)) for name in "abc")
        for each in (a, b, c):
            each.connect(timeout=WAIT)
        streams = [each.deliveries(timeout=WAIT) for each in (a, b)]
        orders = ["causal", "total", "causal", "causal", "total", "total", "causal"] * 3
        for number, order in enumerate(orders):
            sender = (a, b)[number % 2]
            sender.broadcast(b"%d" % number, order=order)  # type: ignore[call-overload]
            expected = f"{order} {number}"
            assert [texts(stream, 1) for stream in streams] == [[expected], [expected]]
        assert texts(c.deliveries(timeout=WAIT), len(orders)) == [f"{order} {n}" for n, order in enumerate(orders)]


def test_own_messages_of_all_orders(connection: Connection, flushing: str) -> None:
    """A sender that never waits: each pair of orders keeps its promise, and every receipt is settled."""
    with contextlib.ExitStack() as closing:
        a, b = (closing.enter_context(with_casts(connection, flushing, name)) for name in "ab")
        for each in (a, b):
            each.connect(timeout=WAIT)
        orders = ["fifo", "total", "causal", "total", "total", "fifo", "causal"] * 10
        receipts = [a.broadcast(b"%d" % n, order=order) for n, order in enumerate(orders)]  # type: ignore[call-overload]
        for receipt in receipts:
            receipt.result(WAIT)
        for each in (a, b):
            stream = each.deliveries(timeout=WAIT)
            seen = [int(next(stream).payload) for _ in orders]
            assert sorted(seen) == list(range(len(orders)))
            for at, number in enumerate(seen):
                late = [earlier for earlier in seen[at:] if earlier < number]
                # A fifo message overtakes total ones, and nothing else overtakes anything.
                assert all((orders[number], orders[earlier]) == ("fifo", "total") for earlier in late)


def test_a_late_joiner_begins_with_its_view(connection: Connection, flushing: str) -> None:
    with contextlib.ExitStack() as closing:
        a, b = (closing.enter_context(with_casts(connection, flushing, name)) for name in "ab")
        for each in (a, b):
            each.connect(timeout=WAIT)
        for number in range(30):
            a.broadcast(b"old %d" % number, order="causal" if number % 3 else "total")
        late = closing.enter_context(with_casts(connection, flushing, "late"))
        late.connect(timeout=WAIT)
        a.broadcast(b"new", order="causal").result(WAIT)
        b.broadcast(b"newest", order="total").result(WAIT)
        assert sorted(texts(late.deliveries(timeout=WAIT), 2)) == ["causal new", "total newest"]
        assert late.broadcast(b"hello", order="causal").result(WAIT) == 1


def test_what_is_not_taken_comes_again(connection: Connection, flushing: str) -> None:
    with with_casts(connection, flushing, "a") as a:
        a.connect(timeout=WAIT)
        for number in range(3):
            a.broadcast(b"%d" % number, order="causal")
        assert texts(a.deliveries(timeout=WAIT), 2) == ["causal 0", "causal 1"]
        assert texts(a.deliveries(timeout=WAIT), 2) == ["causal 1", "causal 2"]


def test_synchronous(connection: Connection, flushing: str) -> None:
    """The time line: what a sends before the instant and after it, for everybody."""
    with contextlib.ExitStack() as closing:
        a, b = (closing.enter_context(with_casts(connection, flushing, name)) for name in "ab")
        for each in (a, b):
            each.connect(timeout=WAIT)
        for number in range(5):
            a.broadcast(b"before %d" % number, order="causal")
        seqno = a.broadcast_sync(b"now", timeout=WAIT)
        for number in range(5):
            a.broadcast(b"after %d" % number, order="causal")
        time_line = [*(f"causal before {n}" for n in range(5)), "total now", *(f"causal after {n}" for n in range(5))]
        for each in (a, b):
            assert texts(each.deliveries(timeout=WAIT), 11) == time_line
        assert seqno > 1


@pytest.mark.slow
def test_a_hub_that_is_late_ends_no_run(connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow hub ends no run before DATA's messages are delivered; one that never answers does not keep the run."""
    really, calls, late = CastHub.delivery_status, itertools.count(), 5

    def slowly(hub: CastHub, record: Cast | OrderedRecord, timeout: float) -> DeliveryStatus:
        if next(calls) < late:
            time.sleep(timeout)
            return DeliveryStatus.NOT_YET
        return really(hub, record, WAIT)

    with with_casts(connection, group, "a") as a:
        a.broadcast(b"total").result(WAIT)
        monkeypatch.setattr(CastHub, "delivery_status", slowly)
        assert [each.payload for each in a.deliveries(1, timeout=0.1)] == [b"total"]
        late = 10**9
        monkeypatch.setattr(
            "connectors.client.memory.member_pass.Silence", lambda limit, _: Silence(limit, patience=0.5)
        )
        assert list(a.deliveries(1, timeout=0.1)) == []


@pytest.mark.parametrize("asks", ["at once", "when it is known"])
def test_a_missing_right_is_one_sentence(
    connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asks: str
) -> None:
    """A member without the right to read casts names the topic, without a stack trace, to all its waiting callers."""
    if not isinstance(connection, MemoryConnection):
        pytest.skip("tests/secure has it on a broker")
    cast, poll = f"abcast.{group}.cast.nyc", MemoryConsumer.poll

    def refuse(consumer: MemoryConsumer, **options: Any) -> Any:
        if any(place.topic == cast for place in consumer.next):
            raise TopicAuthorizationFailedError({cast})
        return poll(consumer, **options)

    monkeypatch.setattr(MemoryConsumer, "poll", refuse)
    a = with_casts(connection, group, "a")
    if asks == "when it is known":
        with pytest.raises(KafkaRefused):
            a.broadcast(b"m", order="fifo").result(WAIT)
        eventually(lambda: f"may not READ {cast}" in caplog.text)
    with pytest.raises(KafkaRefused, match=f"may not READ {cast}"):
        a.broadcast(b"m", order="fifo").result(WAIT)
    with contextlib.suppress(AbcastError):
        a.close(timeout=0)
    assert f"may not READ {cast}" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
    assert "Traceback" not in caplog.text
