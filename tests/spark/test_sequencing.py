"""The sequencing transformation on static DataFrames: FORWARD rows in, DATA and dead letters out, equal to the core."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from connectors.kafka.codec import codec
from connectors.kafka.codec.codec import decode_data
from connectors.sequencer.query import READERS_A_GROUP_AT_ONCE, encode_decided, read_by_few, sequence
from connectors.spark.forward_rows import forward_rows
from connectors.spark.query_failure import explain, failed_group
from ordering.base.errors import ProtocolViolation
from ordering.base.packs import MAX_PACK_HEADERS_BYTES, encode_pack
from ordering.base.records import EPOCH, Forward, Headers, Link, Malformed, Partition
from ordering.membership.membership import MemberIncarnation, Membership, ReceivedRow
from ordering.membership.settings import Settings
from ordering.sequencer.links import LinkRow
from ordering.sequencer.sequencer import SNAPSHOT_EVERY_RECORDS
from ordering.sequencer.state import SequencerState
from tests.ordering.linked import LinkedLog
from tests.spark.kafka_rows import (
    SITE,
    SOURCE_SCHEMA,
    Row,
    SinkRow,
    decide_rows,
    forward,
    linked,
    sink_frame,
    source_frame,
)
from tests.spark.static import decide

pytestmark = pytest.mark.spark

START = SequencerState("g", epoch=3, seqno=41, view=2, received={"local/old": ReceivedRow(7, 5)})


def of_senders(lengths: Mapping[str, int], *, partitions: int = 1, group: str = "g") -> list[Row]:
    """Return messages 1 … n of each sender, taking turns; a sender stays in one partition."""
    rows, ends = [], [0] * partitions
    for local_seqno in range(1, max(lengths.values()) + 1):
        for index, (sender, length) in enumerate(lengths.items()):
            if local_seqno <= length:
                partition = index % partitions
                payload = f"{sender} says {local_seqno}".encode()
                rows.append(
                    forward(sender, local_seqno, ends[partition], partition=partition, payload=payload, group=group)
                )
                ends[partition] += 1
    return rows


class Broken(SequencerState):
    """A state that no worker can load."""

    def to_bytes(self) -> bytes:
        return b"no state"


def test_an_error_of_a_group_names_it(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise it would end the query of all groups."""
    rows = source_frame(spark, [*of_senders({"local/a": 2}), *of_senders({"local/b": 2}, group="h")])
    with pytest.raises(PySparkException) as raised:
        decide(rows, START, Broken("h", epoch=1)).collect()
    error = explain(raised.value, tmp_path)
    assert isinstance(error, ProtocolViolation)
    assert failed_group(error) == "h"


def assert_decided(spark: SparkSession, frame: DataFrame, expected: Iterable[SinkRow]) -> None:
    """Expect these records in this order."""
    assert_df_equality(frame, sink_frame(spark, expected), ignore_nullable=True)


@pytest.mark.parametrize(
    ("chunk_rows", "closed"),
    [
        *((1, True), (3, False), (100, True)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, False), (3, True), (100, False))),
    ],
)
def test_membership(spark: SparkSession, chunk_rows: int, closed: bool) -> None:
    """Control records, heartbeats, refusals and views come out as the row form has them, however the rows are cut."""
    alice, bob, eve = "local/alice", "local/bob", "local/eve"
    state = replace(
        START,
        received={alice: ReceivedRow(1, 1), bob: ReceivedRow(1, 1)},
        membership=Membership(
            settings=Settings(closed=closed), members=(MemberIncarnation(alice, 1), MemberIncarnation(bob, 1))
        ),
    )
    rows = [
        forward(sender, local_seqno, offset, payload=payload, kind=kind, application=(("trace", b"1"),))
        for offset, (sender, local_seqno, kind, payload) in enumerate(
            [
                (alice, 2, "message", b"one"),
                (alice, 1, "heartbeat", b""),
                (alice, 3, "join", b""),
                (bob, 2, "message", b"two"),
                (bob, 3, "leave", b""),
                (eve, 1, "message", b"a stranger"),
                (eve, 1, "leave", b""),
                (eve, 2, "join", b""),
                (alice, 4, "settings", b'{"suspect_after_ms":5000}'),
                (alice, 5, "start-flush", b""),
                (alice, 6, "flush-ok", b"%d" % (48 if closed else 49)),
                (alice, 7, "message", b"behind its FLUSH_OK"),
                (alice, 8, "stop-flush", b"wrong"),
            ]
        )
    ]
    after, expected = decide_rows(state, rows)
    assert after.membership.members
    decided = decide(source_frame(spark, rows), state, chunk_rows=chunk_rows)
    assert_decided(spark, decided, expected)


def test_data_rows(spark: SparkSession) -> None:
    """Each next message of a sender gets the next number, with everything that a reader needs in the headers."""
    rows = [
        forward("local/alice", 1, 10, payload=b"one"),
        forward("local/bob", 1, 11, payload=b"", application=(("trace", b"\x00\xff"), ("trace", b"2"))),
    ]
    expected = [
        SinkRow(
            "abcast.g.data.local",
            b"local/alice",
            b"one",
            [("abcast", b"2 message 1 1 42 3 2 abcast.g.forward.local-0:10 1700000000133")],
        ),
        SinkRow(
            "abcast.g.data.local",
            b"local/bob",
            b"",
            [
                ("abcast", b"2 message 1 1 43 3 2 abcast.g.forward.local-0:11 1700000000134"),
                ("trace", b"\x00\xff"),
                ("trace", b"2"),
            ],
        ),
    ]
    assert_decided(spark, decide(source_frame(spark, rows), START), expected)


def test_data_rows_of_a_link(spark: SparkSession) -> None:
    """The link's text is the last field."""
    state = replace(START, links={"far": LinkRow(7, 2, 90)})
    rows = [
        forward("local/alice", 1, 10, payload=b"one", application=(("trace", b"1"),)),
        linked("far/bob", 8, Link(7, 2, 91, 91), payload=b"two"),
        linked("far/abcast.relay", 9, Link(7, 2, 92, 0), payload=b"", kind="skip"),
        linked("lax/eve", 10, Link(7, 3, 93, 55), payload=b"three", application=(("trace", b"\xff"), ("trace", b""))),
        linked("lax/eve", 11, Link(7, 3, 93, 55), payload=b"three"),  # a repeat
        linked("lax/eve", 12, Link(6, 3, 94, 56), payload=b"of a session that is over"),
    ]
    state = replace(state, positions={Partition(rows[1].topic, rows[1].partition): 8})
    after, expected = decide_rows(state, rows)
    assert after.links == {"far": LinkRow(7, 3, 93)}
    assert after.origins == {"far": 91, "lax": 55}
    assert after.duplicates == 2
    assert [[text.split(b" ")[9:] if name == "abcast" else name for name, text in row.headers] for row in expected] == [
        [[], "trace"],
        [[b"7.2.91.91"]],
        [[b"7.3.93.55"], "trace", "trace"],
    ]
    assert_decided(spark, decide(source_frame(spark, rows), state), expected)


@pytest.mark.parametrize(("seed", "chunk_rows"), [(1, 7), (2, 10_000)])
def test_links(spark: SparkSession, seed: int, chunk_rows: int) -> None:
    """Sessions of two neighbours, malformed records in between, however the rows are cut."""
    rows = [row_of(record) for record in LinkedLog(seed, malformed=0.01).records]
    state = SequencerState("g", epoch=1)
    after, expected = decide_rows(state, rows, "s")
    assert set(after.origins) == {"far", "lax"}
    assert any(row.topic == "abcast.g.dead-letter.s" for row in expected)
    decided = decide(source_frame(spark, rows).repartition(3), state, site="s", chunk_rows=chunk_rows)
    assert_decided(spark, decided, expected)


def row_of(record: Forward | Malformed) -> Row:
    """Return the record as our client or relay writes it; a malformed one has no headers."""
    if isinstance(record, Malformed):
        return Row(*record.source, b"x", b"y", (), 1)
    numbers = record.incarnation, record.local_seqno
    headers = codec.forward_headers(*numbers, record.headers, record.kind, record.link)
    return Row(*record.source, record.sender.encode(), record.payload, headers, record.timestamp_ms)


def test_go_back_n_and_incarnations(spark: SparkSession) -> None:
    """Duplicates, what follows a gap, and late incarnations take no number; a new incarnation starts at 1."""
    rows = [
        forward("local/old", 5, 0, incarnation=7),  # already accepted
        forward("local/old", 6, 1, incarnation=7),
        forward("local/old", 6, 2, incarnation=7),  # a resend
        forward("local/old", 8, 3, incarnation=7),  # 7 is missing
        forward("local/old", 7, 4, incarnation=7),
        forward("local/old", 8, 5, incarnation=7),
        forward("local/old", 1, 6, incarnation=9),
        forward("local/old", 9, 7, incarnation=7),  # late
        forward("local/new", 2, 8),  # 1 is missing
        forward("local/new", 1, 9),
    ]
    _, expected = decide_rows(START, rows)
    assert [row.headers[0][1].split()[7].decode().rpartition(":")[2] for row in expected] == ["1", "4", "5", "6", "9"]
    assert_decided(spark, decide(source_frame(spark, rows), START), expected)


@pytest.mark.parametrize("chunk_rows", [3, 10_000])
@pytest.mark.parametrize("of_format", [2, 3])
def test_packs(spark: SparkSession, of_format: int, chunk_rows: int) -> None:
    """Packs beside messages: resent, cut to their last messages or to one, behind a gap, with headers."""
    trace = (("trace", b"7"),)
    rows = [
        forward("local/a", 1, 0),
        pack("local/a", 2, 3, 1),
        pack("local/a", 5, 2, 2, trace),
        pack("local/b", 1, 4, 3),
        pack("local/a", 3, 6, 4),  # two of them are new
        pack("local/a", 3, 6, 5),  # none
        pack("local/a", 7, 3, 6, trace),  # one
        pack("local/a", 20, 2, 7),
        pack("local/b", 5, 1_000, 8),
        pack("local/b", 900, 1_000, 16, trace),  # a large value, cut
        pack("local/b", 1_005, 2, 9)._replace(value=b"no pack"),
        pack("local/b", 1_005, 2, 10, (("large", b"x" * MAX_PACK_HEADERS_BYTES),)),
        *(pack(f"local/{name}", 1, 2, 11 + at) for at, name in enumerate("cdcd")),
        forward("local/b", 1_005, 15),
    ]
    state = replace(START, format=of_format)
    rows.sort(key=lambda row: row.offset)
    after, expected = decide_rows(state, rows)
    assert (after.seqno - state.seqno > 1_000) == (of_format == 3)
    assert_decided(spark, decide(source_frame(spark, rows), state, chunk_rows=chunk_rows), expected)
    plain = [row["plain"] for row in forward_rows(source_frame(spark, rows), SITE).orderBy("offset").collect()]
    assert plain == [True] * 9 + [False] * 2 + [True] * 6


@pytest.mark.parametrize("chunk_rows", [2, 10_000])
def test_packs_beside_a_flush(spark: SparkSession, chunk_rows: int) -> None:
    """A pack behind its member's FLUSH_OK is dropped whole, until STOP_FLUSH; others are ordered whole, or cut."""
    alice, bob = "local/alice", "local/bob"
    members = (MemberIncarnation(alice, 1), MemberIncarnation(bob, 1))
    received = {name: ReceivedRow(1, 1) for name in (alice, bob)}
    state = replace(START, format=3, received=received, membership=Membership(members=members))
    sent: list[tuple[str, int, int | str, bytes]] = [
        (alice, 2, 3, b""),
        (alice, 5, "start-flush", b""),  # seqno 45
        (alice, 6, 2, b""),
        (bob, 2, 3, b""),
        (alice, 8, "flush-ok", b"45"),
        (alice, 9, 2, b""),  # dropped
        (alice, 7, 4, b""),  # dropped: two are duplicates
        (bob, 3, 4, b""),  # two of them are new
        (bob, 7, "flush-ok", b"45"),
        (bob, 6, 5, b""),  # dropped
        ("local/eve", 1, 2, b""),  # a stranger's
        (alice, 9, "stop-flush", b"45"),
        (bob, 8, 3, b""),
        (alice, 10, 2, b""),
    ]
    rows = [
        pack(sender, first, what, offset)
        if isinstance(what, int)
        else forward(sender, first, offset, kind=what, payload=payload)
        for offset, (sender, first, what, payload) in enumerate(sent)
    ]
    _, expected = decide_rows(state, rows)
    packs = [text.split() for row in expected for _, text in row.headers if text.startswith(b"2 messages ")]
    assert_decided(spark, decide(source_frame(spark, rows), state, chunk_rows=chunk_rows), expected)
    assert [int(words[7].rpartition(b":")[2]) for words in packs] == [0, 2, 3, 7, 10, 12, 13]


def pack(sender: str, first: int, count: int, offset: int, application: Headers = ()) -> Row:
    """Return a pack of so many messages from this local seqno on."""
    payloads = [f"{sender} says {first + number}".encode() * (number % 3) for number in range(count)]
    headers = codec.pack_headers(1, first, count, application)
    return forward(sender, first, offset)._replace(value=encode_pack(payloads), headers=headers)


@pytest.mark.parametrize(("seed", "chunk_rows"), [(1, 2), pytest.param(2, 5, marks=pytest.mark.slow), (3, 10_000)])
def test_rows_in_any_order(spark: SparkSession, seed: int, chunk_rows: int) -> None:
    """In whatever order and pieces Spark hands out the rows, the numbers are the log's."""
    rows = of_senders({"local/a": 9, "local/b": 4, "local/c": 7}, partitions=2)
    _, expected = decide_rows(START, rows)
    shuffled = random.Random(seed).sample(rows, len(rows))
    assert_decided(spark, decide(source_frame(spark, shuffled).repartition(3), START, chunk_rows=chunk_rows), expected)


def test_many_groups_in_one_batch(spark: SparkSession) -> None:
    """Each group has its own state and its own numbers, also a group whose name has dots and dashes."""
    states = [SequencerState(name, epoch=index, seqno=10 * index) for index, name in enumerate(["g", "a.b-c.d", "z"])]
    rows, expected = [], []
    for state in states:
        own = of_senders({"local/a": 3, "local/b": 2}, group=state.group)
        rows += own
        expected += decide_rows(state, own)[1]
    random.Random(7).shuffle(rows)
    frame = decide(source_frame(spark, rows).repartition(2), *states)
    assert_df_equality(frame, sink_frame(spark, expected), ignore_nullable=True, ignore_row_order=True)


def test_streaming(spark: SparkSession, tmp_path: Path) -> None:
    """The log cut into micro-batches gives the same numbers: Spark's state carries on from one to the next."""
    rows = [*of_senders({"local/a": 4, "local/b": 3}), *of_senders({"local/a": 2}, group="h")]
    states = {"g": START, "h": SequencerState("h", epoch=8)}
    expected = {
        group: decide_rows(state, [row for row in rows if f".{group}." in row.topic])[1]
        for group, state in states.items()
    }
    for number, part in enumerate([rows[:2], rows[2:8], rows[8:]]):
        directory = tmp_path / f"part-{number}"
        source_frame(spark, part).coalesce(1).write.parquet(str(directory))
        (file,) = directory.glob("*.parquet")
        os.utime(file, (number, number))  # the file source takes the oldest first
    batches: list[list[SinkRow]] = []

    def collect(batch: DataFrame, _number: int) -> None:
        batches.append(
            [
                SinkRow(row["topic"], row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"]])
                for row in batch.collect()
            ]
        )

    stream = spark.readStream.schema(SOURCE_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "part-*"))
    query = (
        encode_decided(sequence(stream, SITE, states), SITE)
        .writeStream.foreachBatch(collect)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    assert [len(batch) for batch in batches] == [2, 6, 1]
    for group in states:
        written = [row for batch in batches for row in batch if f".{group}." in row.topic]
        assert written == expected[group]


def test_a_snapshot_comes_first(spark: SparkSession) -> None:
    """A batch with a due snapshot begins with an epoch record: the state before the batch, no key and no seqno."""
    due = SequencerState("g", epoch=5, seqno=100, unsnapped=SNAPSHOT_EVERY_RECORDS)
    rows = of_senders({"local/a": 2})
    _, expected = decide_rows(due, rows)
    written = decide(source_frame(spark, rows), due).collect()
    assert [row["key"] for row in written] == [None, b"local/a", b"local/a"]
    headers = [(header["key"], bytes(header["value"])) for header in written[0]["headers"]]
    assert headers == [("abcast", b"2 epoch - - - 5 - - -")]
    record = decode_data(None, bytes(written[0]["value"]), headers)
    assert record.kind == EPOCH
    assert SequencerState.from_bytes(record.payload) == replace(due, unsnapped=0)
    assert_decided(spark, decide(source_frame(spark, rows), due), expected)


def test_nothing_to_write(spark: SparkSession) -> None:
    """A batch of duplicates writes nothing."""
    rows = [forward("local/old", local, local, incarnation=7) for local in (3, 4, 5)]
    assert_decided(spark, decide(source_frame(spark, rows), START), [])


def test_many_partitions_of_kafka_are_read_by_few_tasks(spark: SparkSession) -> None:
    """Spark would plan a task for each, which with a message in each of a thousand groups is nearly all its work."""
    rows = source_frame(spark, []).repartition(50, "offset").filter("offset > 0")
    decoded = forward_rows(read_by_few(rows, 2), SITE).repartition(2, "group")
    plan = decoded._jdf.queryExecution().executedPlan().toString()
    assert f"Coalesce {2 * READERS_A_GROUP_AT_ONCE}" in plan
