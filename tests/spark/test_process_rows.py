"""The process engine's ledger writes the rows that Spark's writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession

from connectors.kafka.codec.cast_codec import cast_headers
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import Start
from connectors.ledger.casts.state import read_cast_state
from connectors.ledger.casts.writer import CastWriter, cast_rows, create_cast_table
from connectors.ledger.one_pass import Follower, effective_rows
from connectors.ledger.process.casts import CastTable
from connectors.ledger.process.job import _Headers
from connectors.ledger.process.rows import ledger_rows, view_rows
from connectors.ledger.table import ledger_rows as rows_by_spark
from connectors.ledger.table import view_rows as views_by_spark
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.packs import encode_pack
from ordering.base.reader import Lost, Reader
from ordering.base.records import MESSAGE, MESSAGES, RESTORED, VIEW, Data, Source
from ordering.casts.casts import CAUSAL, FIFO, Cast
from tests.ledger.ledger_of import decided
from tests.spark.kafka_rows import TIMESTAMP_MS, Row, source_frame

pytestmark = pytest.mark.spark

PLACE = TopicPartition("abcast.g.data.nyc", 0)
VIEW_TEXT = b'{"members": [["nyc/a", 1], ["nyc/b", 1]], "joined": [], "left": [], "suspected": []}'


def log() -> list[Data]:
    """Messages with and without headers, of links, views, other kinds that take several numbers; many messages."""
    records = [record for record in decided(linked=True) if record.kind not in WITHOUT_SEQNO]
    last, epoch = records[-1].seqno, records[-1].epoch
    source = Source("abcast.g.forward.nyc", 2, 77)
    more = [
        Data("later", epoch, last + 1, 3, "nyc/a", 1, 90, b"three", source, (("n", b"1"),), 1_700_000_000_500, count=3),
        Data("later-own", epoch, last + 4, 3, payload=b"own", count=2),
        Data(VIEW, epoch, last + 6, 4, payload=VIEW_TEXT),
        Data(MESSAGES, epoch, last + 7, 4, "nyc/a", 1, 93, encode_pack([b"x", b"", b"y" * 300]), source, count=3),
        Data(MESSAGES, epoch, last + 10, 4, "nyc/a", 1, 96, encode_pack([b"alone"]), source, (("n", b"1"),)),
        Data(RESTORED, epoch, last + 11, 4, payload=Lost(last + 11, last + 14).to_json(), count=4),
    ]
    many = [
        Data(MESSAGE, epoch, last + 15 + n, 4, "nyc/a", 1, 100 + n, b"%d" % n, source, (), 1_700_000_001_000 + n)
        for n in range(100)
    ]
    return [*records, *more, *many]


def test_the_rows_are_the_same(spark: SparkSession, tmp_path: Path) -> None:
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    for record in log():
        kafka.topics.append(PLACE, *encode_data(record))
    last = log()[-1]
    added: tuple[tuple[int, list[tuple[str, Any]]], ...] = ((1, [("null", None), ("n", b"")]), (2, []))
    for n, headers in added:
        key, _, [(name, text)] = encode_data(replace(last, seqno=last.seqno + n, local_seqno=last.local_seqno + n))
        kafka.topics.append(PLACE, key, None, [(name, text + b" - \xff later\n "), *headers])
    consumer = _Headers(kafka.consumer())
    cursor = DataCursor(consumer, PLACE, Start(0, Reader()))
    ours: list[dict[str, Any]] = []
    our_views: list[dict[str, Any]] = []
    reached = 0
    while records := cursor.poll(0.0):
        ours += ledger_rows("g", reached, records, consumer.by_offset).to_pylist()
        reached = records[-1].seqno
        our_views += view_rows("g", "nyc", records).to_pylist()
    stored = [
        Row(r.topic, r.partition, r.offset, r.key, r.value, r.headers, r.timestamp)
        for r in kafka.topics.partitions[PLACE]
    ]
    batches = rows_by_spark(source_frame(spark, stored)).orderBy("offset").toArrow().to_batches()
    followers = {"g": Follower(0, Reader()).looking()}
    by_spark = effective_rows(batches, followers=followers, report=lambda _: None)
    wanted = pa.Table.from_batches(by_spark).to_pylist()
    assert [row["seqno"] for row in ours] == list(range(1, len(ours) + 1))
    for mine, theirs in zip(ours, wanted, strict=True):
        assert {name: mine[name] for name in theirs} == theirs
    views = views_by_spark(rows_by_spark(source_frame(spark, stored))).orderBy("seqno").toArrow().to_pylist()
    assert our_views == views
    assert our_views


def test_the_casts_are_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """Every field, in both orders, with headers, and with one that a relay adds."""
    casts = [
        *(Cast("nyc/a", 7, n, b"%d" % n, headers=(("h", b"v"),)) for n in range(1, 4)),
        Cast("nyc/b", 7, 1, b"x", CAUSAL, 3, 12, "0,4"),
        Cast("nyc/b", 7, 2, b"", CAUSAL, 3, 0, "+1"),
        Cast("nyc/c", 8, 1, b"y", FIFO, 4),
    ]
    rows = [
        Row("abcast.g.cast.nyc", 0, at, cast.sender.encode(), cast.payload, cast_headers(cast), TIMESTAMP_MS + at)
        for at, cast in enumerate(casts)
    ]
    CastTable(tmp_path, lambda: False).append([row.record for row in rows])
    ours = DeltaTable(str(tmp_path / "casts")).to_pyarrow_table().sort_by("cast_offset").to_pylist()
    theirs = cast_rows(source_frame(spark, rows)).drop("topic").orderBy("cast_offset").toArrow().to_pylist()
    assert [{name: row[name] for name in theirs[0]} for row in ours] == theirs


def test_each_engine_follows_the_casts_of_the_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads the files that the other one has added, and the whole table never again."""
    light = CastTable(tmp_path, lambda: False)
    on_spark = CastWriter(create_cast_table(spark, tmp_path))
    tables = light._table, on_spark._table
    for table in tables:
        monkeypatch.setattr(table, "_read_state", None)
    rows = [
        Row("abcast.g.cast.nyc", 0, at, b"nyc/a", b"x", cast_headers(Cast("nyc/a", 7, at + 1, b"x")), TIMESTAMP_MS + at)
        for at in range(8)
    ]
    for reached in (2, 4, 6, 8):
        if reached % 4:
            on_spark.write(source_frame(spark, rows[:reached]), reached)
            on_spark.check()
        else:
            light.append([row.record for row in rows[:reached]])
    whole = read_cast_state(tmp_path / "casts")
    assert whole.offsets == {("abcast.g.cast.nyc", 0): 8}
    for table in tables:
        table.look_again()
        assert (table.state.numbers, table.state.offsets) == (whole.numbers, whole.offsets)
        assert (table.state.version, table.state.newest) == (whole.version, whole.newest)
