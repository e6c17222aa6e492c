"""Deliveries in Arrow: the same messages in the same order as one by one, each batch taken as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

from connectors import AsyncMember, Member
from connectors.client.deliveries import in_arrow
from connectors.client.deliveries.deliveries import deliveries_of, delivery_of
from connectors.client.values.delivery import Delivery
from connectors.kafka.codec.codec import decode_data, encode_data
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log import effective
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.effective import Effective, Messages, Pack, PackedMessages, with_packs
from connectors.kafka.topics.upgrade import upgrade
from connectors.kafka.transport import TRANSPORTS
from connectors.ledger.process.rows import LEDGER_ARROW
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import UsageError
from ordering.base.packs import encode_pack, unpacked
from ordering.base.records import MESSAGE, MESSAGES, Data
from tests.client.conftest import ON_A_BROKER
from tests.client.members import with_casts
from tests.packed import packed
from tests.waiting import WAIT

SENT = 90
DATA = TopicPartition("abcast.g.data.nyc", 0)


def made(seed: int) -> MemoryConnection:
    """Return a group whose DATA has views, singles, packs, and what readers pass over: see `untidy`."""
    dice, kafka = random.Random(seed), MemoryConnection()
    kafka.create("g", "nyc")
    with SequencerThread(kafka, "g", "nyc"), Member("g", "nyc/alice", connection=kafka) as alice:
        for number in range(SENT):
            alice.broadcast(
                dice.randbytes(dice.choice((0, 1, 30))), {"kind": b"%d" % (number // 40)} if seed % 2 else {}
            )
            if number in (20, 70):
                alice.wait_ordered(WAIT)
                with Member("g", f"nyc/guest-{number}", connection=kafka) as guest:
                    guest.connect(timeout=WAIT)
                    guest.broadcast(b"hello")
    log = [decode_data(record.key, record.value, record.headers) for record in kafka.topics.partitions[DATA]]
    kafka.topics.partitions[DATA].clear()
    for record in untidy(packed(log, dice, 20), dice):
        kafka.topics.append(DATA, *encode_data(record))
    return kafka


def untidy(log: list[Data], dice: random.Random) -> list[Data]:
    """Return the log with repeats, records of a lower epoch or behind gaps, packs that begin with taken messages."""
    found: list[Data] = []
    for at, record in enumerate(log):
        if record.kind == MESSAGES and dice.random() < 0.4:
            found += itertools.islice(unpacked(record), dice.randint(1, record.count))
        found.append(record)
        numbered = [each for each in log if each.seqno]
        if dice.random() < 0.2:
            found.append(dice.choice([each for each in numbered if each in log[: at + 1]] or [record]))
        if dice.random() < 0.2:
            found.append(replace(dice.choice(numbered), epoch=record.epoch - 1, payload=record.payload))
        if at + 2 < len(log) and dice.random() < 0.2 and numbered[-1].seqno > record.seqno + 50:
            found.append(replace(numbered[-1], epoch=record.epoch))
    return found


def rows_of(deliveries: list[Delivery]) -> list[dict[str, Any]]:
    """Return the rows that these deliveries should have."""
    return [
        {
            "seqno": each.seqno,
            "sender": each.sender,
            "incarnation": each.incarnation,
            "local_seqno": each.local_seqno,
            "payload": each.payload,
            "headers": [{"key": key, "value": value} for key, value in each.headers],
            "view_id": each.view_id,
            "epoch": each.epoch,
            "forwarded_at": each.forwarded_at if each.forwarded_at_ms else None,
            "sequenced_at": each.sequenced_at if each.sequenced_at_ms else None,
            "order": each.order,
        }
        for each in deliveries
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_rows_are_the_deliveries(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run begins and ends anywhere, in a pack, too. The application changes between batches and single items."""
    monkeypatch.setattr(effective, "WHOLE_FROM", seed % 3)
    kafka, dice = made(seed), random.Random(seed)
    with contextlib.ExitStack() as closing:
        bob = closing.enter_context(Member("g", "nyc/bob", connection=kafka))
        wanted = rows_of(list(bob.deliveries(from_seqno=1, timeout=0)))
        assert len(wanted) == SENT + 2
        for _ in range(6):
            first = dice.randint(1, wanted[-1]["seqno"])
            batches = list(bob.deliveries_arrow(first, timeout=0, most=dice.choice((1, 7, 1000))))
            assert timeless(rows(batches)) == timeless([row for row in wanted if row["seqno"] >= first])
        assert batches[0].schema == in_arrow.schema()
        found: list[dict[str, Any]] = []
        for _ in range(100):
            carol = closing.enter_context(Member("g", "nyc/carol", connection=kafka))
            run = carol.deliveries_arrow(timeout=0, most=dice.choice((3, 10, 40)))
            in_hand: list[pa.RecordBatch] = []
            for _ in range(dice.randint(1, 3)):
                batch = next(run, None)
                found += rows(in_hand)
                in_hand = [batch] if batch is not None else []
            if dice.random() < 0.5:
                run.taken()
                found += rows(in_hand)
            run.close()
            items = carol.deliveries(timeout=0)
            one = list(itertools.islice(items, dice.randint(0, 2)))
            items.taken()
            items.close()
            found += rows_of(one)
            if len(found) >= len(wanted):
                break
        assert timeless(found) == timeless(wanted)


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def timeless(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without times: a reader that begins elsewhere may get a message from a repeat of its record."""
    return [{name: value for name, value in row.items() if not name.endswith("_at")} for row in found]


@pytest.mark.parametrize("seed", range(8))
def test_packs_are_their_messages_wherever_they_are_cut(seed: int) -> None:
    dice, records, seqno = random.Random(seed), list[Effective | Pack](), 0
    for offset in range(dice.randint(1, 9)):
        lengths = dice.choice(((0, 3), (3,), (0,)))
        payloads = [dice.randbytes(dice.choice(lengths)) for _ in range(dice.choice((1, 1, 2, 30)))]
        whole = encode_pack(payloads)
        first = Effective(seqno + 1, offset, MESSAGE, b"nyc/%d" % offset, 5, seqno, 6, 7, 8, (("h", b"1"),), whole, 9)
        alone = first._replace(value=dice.choice((payloads[0], None)))
        records.append(Pack.of(first, len(payloads)) if len(payloads) > 1 or dice.random() < 0.2 else alone)
        seqno += len(payloads)
    each = [one for record in records for one in (record.messages() if isinstance(record, Pack) else (record,))]
    messages = PackedMessages([record if isinstance(record, Pack) else Pack.alone(record) for record in records])
    assert (list(messages), len(messages)) == (each, seqno)
    assert [one.seqno for one in each] == list(range(1, seqno + 1))
    assert [messages[at] for at in range(-seqno, seqno)] == [*each, *each]
    for at in (seqno, -seqno - 1):
        with pytest.raises(IndexError):
            messages[at]
    for _ in range(20):
        begin, end = dice.randint(-2, seqno + 1), dice.randint(0, seqno + 2)
        part = messages[begin:end]
        assert list(part) == each[begin:end]
        if part:
            columns = Messages.of(each[begin:end])
            assert (part.first, part.last) == (columns.first, columns.last) == (part[0][:2], part[-1][:2])
            assert part.columns == columns.columns
            assert list(deliveries_of(part)) == list(map(delivery_of, each[begin:end]))
            further = list(map(delivery_of, each))
            wanted = rows_of([*map(delivery_of, each[begin:end]), *further])
            assert rows([in_arrow.record_batch([part, further])]) == wanted
            assert rows([in_arrow.record_batch([part])]) == wanted[: len(part)]
    assert list(with_packs(records, seqno, are_messages=True)) == list(messages[::1]) == each
    assert list(messages[::2]) == each[::2]
    assert [one.key for one in messages.of_senders({b"nyc/0"})] == [b"nyc/0"]


def test_all_orders_and_no_events() -> None:
    """Casts make rows of their order, without a seqno; views make none."""
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    with SequencerThread(kafka, "g", "nyc"), with_casts(kafka, "g", "a") as a, with_casts(kafka, "g", "b") as b:
        for each in (a, b):
            each.connect(timeout=WAIT)
        run = b.deliveries_arrow(most=1)
        for number, order in enumerate(("total", "fifo", "fifo", "total")):
            a.broadcast(b"%d" % number, order=order).result(WAIT)  # type: ignore[call-overload]
            (row,) = rows([next(run)])
            assert (row["payload"], row["order"]) == (b"%d" % number, order)
            assert (row["seqno"] > 0, row["sequenced_at"] is not None) == (order == "total",) * 2
        run.close()


def test_the_types_are_the_ledgers() -> None:
    for field in in_arrow.schema():
        assert field.name == "order" or field.type == LEDGER_ARROW.field(field.name).type


def test_a_batch_that_nobody_got_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while a batch is made, and a member that closes while one grows, take nothing."""
    kafka = made(1)
    with Member("g", "nyc/bob", connection=kafka) as bob:
        run = bob.deliveries_arrow(most=5)
        taken = rows([next(run)])
        with monkeypatch.context() as patch:
            patch.setattr(in_arrow, "schema", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                next(run)
        assert list(run) == []
        growing = bob.deliveries_arrow(most=10_000, wait_s=None)
        waiting = threading.Thread(target=lambda: taken.extend(rows(list(growing))))
        waiting.start()
    waiting.join(WAIT)
    with Member("g", "nyc/bob", connection=kafka) as bob:
        taken += rows(list(bob.deliveries_arrow(timeout=0)))
        assert taken == rows_of(list(bob.deliveries(1, timeout=0)))


def test_a_batch_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("values.gathering", "deliveries.deliveries"):
        monkeypatch.setattr(f"connectors.client.{module}.MOST_BYTES", 200)
    monkeypatch.setattr("connectors.kafka.log.data_cursor._AT_ONCE", 10)
    with Member("g", "nyc/bob", connection=made(1)) as bob:
        sizes = [sum(map(len, batch["payload"].to_pylist())) for batch in bob.deliveries_arrow(timeout=0)]
        assert len(sizes) > 3
        assert max(sizes) < 200 + 30 * 30


def test_misuse(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    with Member("g", "nyc/bob", connection=kafka) as bob:
        with pytest.raises(UsageError, match="most is 0"):
            bob.deliveries_arrow(most=0)
        with pytest.raises(UsageError, match="wait_s"):
            bob.deliveries_arrow(wait_s="soon")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="is a batch by itself"):
            bob.deliveries_arrow().batches()
        monkeypatch.setattr(in_arrow, "find_spec", lambda _: None)
        with pytest.raises(UsageError, match=r"pip install 'abcast\[arrow\]'"):
            bob.deliveries_arrow()


@pytest.mark.parametrize("transport", TRANSPORTS)
@ON_A_BROKER
def test_on_a_broker(connection: Connection, group: str, transport: str) -> None:
    """Packs in DATA and their messages, by both libraries: each receipt has its own seqno, whatever pack it is in."""
    upgrade(connection, group, "nyc")
    at, sent = replace(connection, transport=transport), [b"%d" % n for n in range(500)]
    with SequencerThread(at, group), Member(group, "nyc/a", connection=at) as a:
        a.broadcast(b"begin").result(WAIT)
        many = a.broadcast_many(sent[:250])
        receipts = [a.broadcast(payload) for payload in sent[250:]]
        last = many.result(WAIT)
        assert [receipt.result(WAIT) for receipt in receipts] == list(range(last + 1, last + 251))
        wanted = rows_of(list(a.deliveries(1, timeout=0)))
        found = rows(list(a.deliveries_arrow(1, timeout=0, most=64)))
        assert found == wanted
        assert [row["payload"] for row in found] == [b"begin", *sent]
        with contextlib.closing(a.deliveries_arrow(last, timeout=0)) as run:  # in a pack
            assert rows([next(run)])[0] == wanted[250]
        with DataLog(at, group, "nyc") as log:
            assert any(record.data.kind == MESSAGES for record in log.records(0, log.end()))


def test_asyncio() -> None:
    kafka = made(3)

    async def work() -> None:
        async with AsyncMember("g", "nyc/bob", connection=kafka) as bob:
            found = [row async for batch in bob.deliveries_arrow(timeout=0, most=7) for row in batch.to_pylist()]
            assert found == rows_of([delivery async for delivery in bob.deliveries(1, timeout=0)])

    asyncio.run(asyncio.wait_for(work(), WAIT))


def test_a_time_that_no_timestamp_takes_is_null() -> None:
    """DATA of a foreign client may have it. Its microseconds would pass an int64, and come out as another time."""
    late = Effective(1, 0, MESSAGE, b"nyc/a", 1, 1, 1, 0, 10**17, (), b"x", 5)
    (row,) = in_arrow.record_batch([Messages.of([late])]).to_pylist()
    assert (row["forwarded_at"], row["sequenced_at"].microsecond) == (None, 5000)
