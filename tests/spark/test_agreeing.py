"""The transformation of a site that agrees, on static DataFrames: what the JVM does about it, equal to the row form.

What the operator decides, step by step and with other sites, `tests/engine/test_agreeing.py` shows without Spark.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connectors.engine.agreeing import Agreeing
from connectors.kafka.codec import codec
from connectors.kafka.codec.epochs import encode_claim, encode_exclusion
from connectors.kafka.codec.inputs import Input, Neighbours, original
from connectors.sequencer.agreeing_query import (
    FROM_TIME,
    REPORT,
    GroupStep,
    agree,
    begun,
    with_time,
)
from connectors.sequencer.blocks import HeldBlocks, Records, out_of_blocks, sizes_of
from connectors.sequencer.query import encode_decided, in_blocks
from connectors.sequencer.spill_store import SpillStore
from connectors.spark.forward_rows import FROM_EPOCH, FROM_FORWARD, FROM_LOG, forward_rows
from ordering.agreement.group import after_takeover
from ordering.agreement.site_state import first_state
from ordering.base.names import Topic
from ordering.base.records import ENTRY, EPOCH, MAX_PAYLOAD_BYTES, MESSAGE, Data, Exclusion
from ordering.sequencer.state import SequencerState
from tests.forward_corpus import CORPUS, TOPIC, RawHeaders
from tests.spark.kafka_rows import TIMESTAMP_MS, Row, SinkRow, sink_frame, source_frame
from tests.spark.static import instead_of_state

pytestmark = pytest.mark.spark

GROUP, SITE = "orders", "nyc"
"""The group and the site of the corpus."""
ALONE = Neighbours(SITE, (SITE,))
TOO_LATE = "9" * 17
LARGE = b"large " * 20_000
"""A value larger than `conf/scala/RecordsAside.scala` copies into its pages."""


def own(offset: int, key: bytes | None, value: bytes | None, headers: RawHeaders, site: str = SITE) -> Row:
    """A record of a site's FORWARD."""
    return Row(str(Topic(GROUP, "forward", site)), 0, offset, key, value, headers, TIMESTAMP_MS + offset)


def read_by_sites(spark: SparkSession, rows: list[Row]) -> DataFrame:
    """Return the operator's rows, and the time."""
    at = datetime.fromtimestamp(TIMESTAMP_MS / 1000, tz=timezone.utc)
    read = forward_rows(source_frame(spark, rows), SITE, agreed=True)
    return with_time(read, spark.createDataFrame([(at,)], "timestamp timestamp"), [GROUP])


def decide(spark: SparkSession, rows: list[Row], chunk_rows: int) -> DataFrame:
    """The first batch of a site alone, as the sink takes it."""
    group = after_takeover(first_state(GROUP, SITE, [SITE]), SequencerState(GROUP, epoch=1))
    group.start_of(f"{Topic(GROUP, 'forward', SITE)}-0", 0, is_copy=False)
    with instead_of_state(["input", "topic", "partition", "at"], chunk_rows):
        runs = agree(read_by_sites(spark, rows), ALONE, {GROUP: begun(group)})
    return encode_decided(runs.filter(runs["role"] != REPORT), SITE)


def by_the_process_engine(rows: list[Row], chunk_rows: int) -> list[SinkRow]:
    """The same rows, read in the same pieces, the same step."""
    machine = Agreeing(after_takeover(first_state(GROUP, SITE, [SITE]), SequencerState(GROUP, epoch=1)))
    place = TopicPartition(str(Topic(GROUP, "forward", SITE)), 0)
    machine.sources[place] = source = Input(SITE, f"{place.topic}-0")
    machine.group.start_of(source.place, 0, is_copy=False)
    for begin in range(0, len(rows), chunk_rows):
        machine.take(place, [row.record for row in rows[begin : begin + chunk_rows]])
    machine.tick(0)
    entry = machine.writes()
    machine.acknowledge()
    outputs = [*(entry or ()), *(machine.writes() or ())]
    return [SinkRow(topic, key, value, headers) for topic, (key, value, headers) in outputs]


@pytest.mark.parametrize("chunk_rows", [30, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_batch(spark: SparkSession, chunk_rows: int) -> None:
    """Messages, a join, and every fault of a record: entry, DATA and dead letters are the same in both forms.

    The entry's runs consist of the rows that a step reads: many messages are one row here.
    """
    good = [
        (b"nyc/alice", b"one", codec.forward_headers(1, 1)),
        (b"nyc/alice", b"", codec.forward_headers(1, 2, kind="join")),
        (b"nyc/bob", b"two", codec.forward_headers(1, 1, (("trace", b"\xff"),))),
        (b"nyc/bob", LARGE, codec.forward_headers(1, 2)),
        (b"nyc/bob", b"behind it", codec.forward_headers(1, 3)),
        (b"nyc/alice", b"again", codec.forward_headers(1, 1)),
        (b"sfo/mallory", b"of another site", codec.forward_headers(1, 1)),
    ]
    bad = [(case.key, case.value, tuple(case.headers)) for case in CORPUS if case.topic == TOPIC]
    last = (b"nyc/alice", b"x", codec.forward_headers(1, 3))
    rows = [own(offset, *each) for offset, each in enumerate([*good, *bad, last])]
    expected = by_the_process_engine(rows, chunk_rows)
    assert {row.topic for row in expected} == {"abcast.orders.data.nyc", "abcast.orders.dead-letter.nyc"}
    found = decide(spark, rows, chunk_rows)
    if chunk_rows < len(rows):
        entry = codec.encode_data(Data(ENTRY, 1, local_seqno=1))[2]
        expected = [row for row in expected if row.headers != entry]
        found = found.filter(F.coalesce(F.get("headers", F.lit(0))["value"] != entry[0][1], F.lit(True)))
    assert_df_equality(found, sink_frame(spark, expected), ignore_nullable=True)


def test_copies_are_read_as_what_they_were_made_from(spark: SparkSession) -> None:
    """A copy is judged as at its own site; records that no relay wrote are left out."""
    home, topic = str(Topic(GROUP, "forward", "sfo")), str(Topic(GROUP, "relayed", SITE, "sfo"))

    def copy(offset: int, header: str, *more: tuple[str, bytes], key: bytes = b"sfo/bob") -> Row:
        return Row(topic, 1, offset, key, b"x", [("abcast", header.encode()), *more], 5)

    rows = [
        copy(0, f"2 message 5 8 sfo/{home}-1:40 - 1700", ("k", b"v")),
        copy(1, f"2 message 5 9 sfo/{home}-1:41 - 1701 more"),
        copy(2, f"2 message 5 9 sfo/{home}-2:41 - 1701"),
        copy(3, f"2 message 5 9 lax/{home}-1:41 - 1701"),
        copy(4, f"2 message 5 9 sfo/{home}-1:x - 1701"),
        copy(5, f"2 message 5 9 sfo/{home}-1:42 -"),
        *(
            copy(20 + at, f"2 message 5 9 sfo/{home}-1:{odd} - 1701")
            for at, odd in enumerate(("+41", "041", " 41", ""))
        ),
        *(
            copy(30 + at, f"2 message 5 9 sfo/{home}-1:41 - {odd}")
            for at, odd in enumerate(("-2", "+5", "05", "9" * 17))
        ),
        copy(6, f"2 message 5 10 sfo/{home}-1:42 - 1702", key=b"nyc/eve"),
        copy(7, f"- - - - sfo/{home}-1:43 - 1703"),
        own(3, b"nyc/eve", b"y", codec.forward_headers(1, 1)),
        own(4, b"lax/eve", b"y", codec.forward_headers(1, 1), "lax"),
        own(5, b"nyc/eve", b"y", codec.forward_headers(1, 2), "lax"),
    ]
    expected = []
    for row in rows:
        raw = row.record
        is_copy = row.topic == topic
        read = original(raw, "sfo", f"{home}-1") if is_copy else raw
        if read is not None:
            forward = codec.decode_forward(row.source._replace(topic=read.topic), read.key, read.value, read.headers, 9)
            foreign = read.topic if read.topic != "abcast.orders.forward.nyc" else None
            is_good = hasattr(forward, "sender")
            expected.append((foreign, read.partition, read.offset, read.timestamp, is_good, row.offset + 1))
    found = forward_rows(source_frame(spark, rows), SITE, agreed=True).collect()
    assert {row["input"] for row in found} == {FROM_FORWARD}
    columns = ("topic", "partition", "offset", "forwarded_at_ms", "plain", "at")
    assert [tuple(row[name] for name in columns) for row in found] == expected
    assert [row["sender"] for row in found if row["plain"]] == ["sfo/bob", "sfo/bob", "nyc/eve", "lax/eve"]


def test_a_relay_that_begins_again(spark: SparkSession, tmp_path: Path) -> None:
    """A record that the relay brings again is kept once, with its own bytes, anywhere in a block."""
    home, topic = str(Topic(GROUP, "forward", "sfo")), str(Topic(GROUP, "relayed", SITE, "sfo"))
    brought = [*range(40, 45), *range(42, 47), *range(43, 46), *range(45, 51)]
    rows = [
        Row(
            topic,
            0,
            at,
            b"sfo/bob",
            b"%d" % offset,
            [("abcast", f"2 message 5 {offset} sfo/{home}-0:{offset} - 7".encode())],
        )
        for at, offset in enumerate(brought)
    ]
    placed = forward_rows(source_frame(spark, rows), SITE, agreed=True).coalesce(1)
    blocks: Any = in_blocks(placed, ["group", "input", "topic", "partition", "at"], with_records=True).toPandas()
    assert blocks["offset"].tolist() == [40, 42, 43, 45]
    group = after_takeover(first_state(GROUP, SITE, [SITE, "sfo"]), SequencerState(GROUP, epoch=1))
    group.start_of(f"{home}-0", 0, is_copy=True)
    spill = SpillStore(tmp_path / GROUP, "1")
    spill.clear()
    GroupStep(begun(group), Neighbours(SITE, (SITE, "sfo")), spill).take(blocks)
    kept = pa.ipc.open_stream(spill.get(1)).read_all().to_pandas()
    assert [offset for piece in out_of_blocks(kept) for offset in piece["offset"]] == list(range(40, 51))
    held = HeldBlocks()
    for block in zip(kept["offset"], kept["offset"] + sizes_of(kept), kept["records"], strict=True):
        held.add(Records(*block))
    packed = held.packed(40, 51)
    assert np.frombuffer(packed, "<i8", 2 * 11)[::2].tolist() == list(range(40, 51))
    assert [packed.count(b"%d" % offset + b"\0") for offset in range(40, 51)] == [2] * 11  # in value and header


def test_a_block_ends_before_it_is_too_large(spark: SparkSession) -> None:
    """Python gets large messages in several pieces, each record in one of them and whole."""
    values = [bytes([offset]) * MAX_PAYLOAD_BYTES for offset in range(18)]
    rows = [own(at, b"nyc/bob", value, codec.forward_headers(1, at + 1)) for at, value in enumerate(values)]
    placed = forward_rows(source_frame(spark, rows), SITE, agreed=True).coalesce(1)
    blocks: Any = in_blocks(placed, ["group", "input", "topic", "partition", "at"], with_records=True).toPandas()
    assert blocks["offset"].tolist() == [0, 16]
    held = HeldBlocks()
    for block in zip(blocks["offset"], [16, 18], blocks["records"], strict=True):
        held.add(Records(*block))
    packed = held.packed(0, 18)
    assert [packed.count(value) for value in values] == [1] * 18


def test_what_is_read_of_logs(spark: SparkSession) -> None:
    """Entries and seals of DATA and of copies; exclusions of EPOCH; nothing else of them. And the time."""

    def stored(role: str, offset: int, key: bytes | None, value: bytes | None, headers: RawHeaders) -> Row:
        neighbour = "sfo" if role == "entries" else ""
        topic = Topic(GROUP, role, SITE if role != "data" else "lax", neighbour)  # type: ignore[arg-type]
        return Row(str(topic), 0, offset, key, value, headers)

    entry, seal = (codec.encode_data(each) for each in (Data(ENTRY, 4, local_seqno=17, payload=b"e"), Data(EPOCH, 4)))
    message = Data(MESSAGE, 4, 1, 0, "lax/eve", 1, 1, b"x", own(0, None, None, ()).source, (), 9)
    rows = [
        stored("data", 0, *entry),
        stored("data", 1, *seal),
        stored("data", 2, *codec.encode_data(message)),
        stored("data", 3, None, b"", ()),
        stored("entries", 0, *entry),
        stored("epoch", 0, None, *encode_claim(0, "isis")),
        stored("epoch", 1, None, *encode_exclusion(Exclusion(3, ("lax",)))),
    ]
    found = read_by_sites(spark, rows).collect()
    assert [(row["group"], row["topic"], row["offset"], row["at"], row["input"]) for row in found] == [
        (GROUP, "abcast.orders.data.lax", 0, 1, FROM_LOG),
        (GROUP, "abcast.orders.data.lax", 1, 2, FROM_LOG),
        (GROUP, "abcast.orders.entries-sfo.nyc", 0, 1, FROM_LOG),
        (GROUP, "abcast.orders.epoch.nyc", 1, 2, FROM_EPOCH),
        (GROUP, None, 0, 0, FROM_TIME),
    ]
    assert found[-1]["forwarded_at_ms"] == TIMESTAMP_MS
    assert not any(row["plain"] for row in found)
