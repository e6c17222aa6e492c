"""Members read the ledger's part of the history, in memory; and the ledger continues at its own position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from kafka.structs import TopicPartition

from connectors import Delivery, Member
from connectors.client.memory.ledger_reader import read_ledger
from connectors.kafka.log.data_log import DataLog, Start
from connectors.ledger.last_row import LedgerEnd, start_after
from connectors.takeover.takeover import take_over
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import HistoryUnavailable, OvertakenByRetention
from ordering.base.reader import Reader
from ordering.base.records import EPOCH, MESSAGE, VIEW
from ordering.participant.events import Block, Event, EventReader, Unblock, ViewChange
from ordering.sequencer.sequencer import snapshot

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("group_name", "kind", "sender")),
        *((name, pa.int64()) for name in ("seqno", "epoch", "view_id", "incarnation", "local_seqno", "data_offset")),
        ("payload", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


class Retention:
    """Drops records of DATA, as Kafka's retention does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.beginning = 0

        def tell(_consumer: object, places: list[TopicPartition]) -> dict[TopicPartition, int]:
            return {place: self.beginning if ".data." in place.topic else 0 for place in places}

        monkeypatch.setattr(MemoryConsumer, "beginning_offsets", tell)


@pytest.fixture
def retention(monkeypatch: pytest.MonkeyPatch) -> Retention:
    return Retention(monkeypatch)


@pytest.fixture
def connection() -> MemoryConnection:
    connection = MemoryConnection()
    connection.create("g", "nyc")
    return connection


def ledger_rows(connection: MemoryConnection) -> list[dict[str, Any]]:
    """Return the rows that the ledger's job would have written by now."""
    with DataLog(connection, "g", "nyc") as log:
        stored = [record for record in log.records(0, log.end()) if record.data.kind != EPOCH]
    return [
        {
            "group_name": "g",
            "kind": data.kind,
            "sender": data.sender or None,
            "seqno": data.seqno,
            "epoch": data.epoch,
            "view_id": data.view,
            "incarnation": data.incarnation,
            "local_seqno": data.local_seqno,
            "data_offset": offset,
            "payload": data.payload,
            "headers": None,
        }
        for offset, _, data in stored
    ]


def without_times(what: Delivery | Event) -> Delivery | Event:
    """Remove the times of this test's rows."""
    return what._replace(forwarded_at_ms=0, sequenced_at_ms=0) if isinstance(what, Delivery) else what


@pytest.mark.slow
def test_events_come_from_the_ledger_too(connection: MemoryConnection, retention: Retention, tmp_path: Path) -> None:
    """A member that reads the ledger's part sees the views, blocks and unblocks that the others saw."""
    with SequencerThread(connection, "g", "nyc") as sequencer:
        with Member("g", "nyc/alice", connection=connection) as alice:
            alice.connect()
            with Member("g", "nyc/bob", connection=connection) as bob:
                bob.connect()
                bob.broadcast(b"hello").result(10)
                with alice.flush(10):
                    pass
            alice.broadcast(b"alone").result(10)
        with Member("g", "nyc/carol", connection=connection) as carol:
            by_kafka = list(carol.deliveries(1, timeout=0.3, events=True))
        write_deltalake(tmp_path / "ledger", pa.Table.from_pylist(ledger_rows(connection), schema=SCHEMA))
        retention.beginning = len(connection.topics.partitions[TopicPartition("abcast.g.data.nyc", 0)])
        sequencer.write([snapshot(sequencer.state)])
        with Member("g", "nyc/dave", connection=connection, ledger=tmp_path / "ledger") as dave:
            by_ledger = dave.deliveries(1, timeout=0.3, events=True)
            assert [*map(without_times, by_ledger)] == [*map(without_times, by_kafka)]
            assert len(list(dave.deliveries(1, timeout=0.3))) == 2
    assert {ViewChange, Block, Unblock} <= {type(each) for each in by_kafka}


@pytest.mark.parametrize("is_told", [True, False])
def test_a_place_names_its_offset(tmp_path: Path, is_told: bool) -> None:
    """Rows of an earlier layout have no offset: there the next seqno is searched from below."""
    view = {"members": [["nyc/a", 7]], "joined": [], "left": [], "suspected": [], "flush": 0}
    common = {"group_name": "g", "epoch": 1, "view_id": 1, "incarnation": 7, "local_seqno": 1}
    rows = pa.Table.from_pylist(
        [
            {**common, "kind": VIEW, "seqno": 1, "data_offset": 4, "payload": json.dumps(view).encode()},
            {**common, "kind": MESSAGE, "seqno": 2, "data_offset": 9, "sender": "nyc/a", "payload": b"x"},
        ],
        schema=SCHEMA,
    )
    write_deltalake(tmp_path / "ledger", rows if is_told else rows.drop_columns(["data_offset"]))
    [[first, second]] = read_ledger(tmp_path / "ledger", "g", 1, EventReader())
    assert [first[1], second[1]] == ([5, 10] if is_told else [1, 2])
    assert isinstance(first[2], ViewChange)


@pytest.mark.parametrize("packs", [(249, 14, 600), (1, 600, 3), (300, 300), (256, 256)])
def test_a_chunk_cuts_no_pack(tmp_path: Path, packs: tuple[int, ...]) -> None:
    """The rows of a pack share an offset. The place of each is the pack's, and of the last one the next record's."""
    offsets = [offset for offset, count in enumerate(packs) for _ in range(count)]
    common = {"group_name": "g", "epoch": 1, "view_id": 1, "incarnation": 7, "sender": "nyc/a", "kind": MESSAGE}
    rows = [
        {**common, "seqno": seqno, "local_seqno": seqno, "data_offset": offset, "payload": b"x"}
        for seqno, offset in enumerate(offsets, 1)
    ]
    write_deltalake(tmp_path / "ledger", pa.Table.from_pylist(rows, schema=SCHEMA))
    places = [place for chunk in read_ledger(tmp_path / "ledger", "g", 1) for place in chunk]
    assert [place[0] for place in places] == list(range(1, len(offsets) + 1))
    assert [place[1] for place in places] == [
        offset + (offset != after) for offset, after in zip(offsets, [*offsets[1:], -1], strict=True)
    ]


def test_a_ledger_that_retention_has_overtaken(
    connection: MemoryConnection, retention: Retention, tmp_path: Path
) -> None:
    """The job ends, and names the missing messages and the remedy in a sentence."""

    def begins(behind: int) -> Start:
        path = tmp_path / "ledger"
        return start_after(behind, connection, "nyc", "g", path, LedgerEnd(path))

    with (
        SequencerThread(connection, "g", "nyc") as sequencer,
        Member("g", "nyc/alice", connection=connection) as alice,
    ):
        for number in range(5):
            alice.broadcast(b"%d" % number).result(10)
        assert begins(3)[:2] == (4, Reader(1, 3))
        with DataLog(connection, "g", "nyc") as log:
            [fifth] = [record.offset for record in log.records(0, log.end()) if record.data.seqno == 5]
        sequencer.write([snapshot(sequencer.state)])
    retention.beginning = fifth
    assert begins(4)[:2] == (fifth, Reader(1, 4))
    with pytest.raises(HistoryUnavailable) as caught:
        begins(3)
    assert f"the ledger {tmp_path}/ledger ends at seqno 3 of group g, and can't go on without a gap" in str(
        caught.value
    )
    assert "no longer holds seqno 4: retention has dropped it. Put a copy" in str(caught.value)
    assert not caught.value.retriable
    with pytest.raises(HistoryUnavailable, match="has nothing of group g, and can't go on without a gap"):
        begins(0)


def test_a_purge_that_overtakes_the_start_is_no_gap(
    connection: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purge deletes the place that the start is about to read. Another snapshot stays: the job starts again."""
    take_over(connection, "g", "nyc")
    take_over(connection, "g", "nyc")
    path, topic, seek = tmp_path / "ledger", "abcast.g.data.nyc", MemoryConsumer.seek

    def overtaken(consumer: MemoryConsumer, place: Any, offset: int) -> None:
        if place.topic == topic and not connection.topics.beginnings:
            connection.topics.drop(topic, 3)
        seek(consumer, place, offset)

    monkeypatch.setattr(MemoryConsumer, "seek", overtaken)
    with pytest.raises(OvertakenByRetention):
        start_after(0, connection, "nyc", "g", path, LedgerEnd(path))
    assert start_after(0, connection, "nyc", "g", path, LedgerEnd(path)).offset == 4
