"""Rows as Spark's Kafka source and sink have them, from plain values and from the row form of the codec."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession

from connectors.kafka.codec import codec
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.takeover.rows import OutputTopics, by_rows
from ordering.base.names import Topic
from ordering.base.records import HEARTBEAT, MAX_RECORD_BYTES, MESSAGE, Data, Headers, Link, Source
from ordering.sequencer.sequencer import BAD_ADDRESS, begin_batch, end_batch
from ordering.sequencer.state import SequencerState
from tests import forward_corpus
from tests.forward_corpus import RELAYED, Case

SITE = "local"
TIMESTAMP_MS = forward_corpus.TIMESTAMP_MS
HEADERS = "headers array<struct<key:string,value:binary>>"
SOURCE_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, "
    f"timestamp timestamp, timestampType int, {HEADERS}"
)
SINK_SCHEMA = f"topic string, partition int, key binary, value binary, {HEADERS}"


class Row(NamedTuple):
    """A record of a topic, as the broker stored it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    timestamp_ms: int = TIMESTAMP_MS

    @property
    def source(self) -> Source:
        return Source(self.topic, self.partition, self.offset)

    @property
    def record(self) -> PlainRecord:
        """The row as a consumer returns it."""
        return PlainRecord(*self.source, self.timestamp_ms, self.key, self.value, list(self.headers))


class SinkRow(NamedTuple):
    """A record that is to be written, into partition 0."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


def forward(
    sender: str,
    local_seqno: int,
    offset: int,
    *,
    group: str = "g",
    partition: int = 0,
    incarnation: int = 1,
    payload: bytes = b"payload",
    application: Headers = (),
    kind: str = MESSAGE,
) -> Row:
    """A well-formed FORWARD record, as our own client writes it."""
    return Row(
        str(Topic(group, "forward", SITE)),
        partition,
        offset,
        sender.encode(),
        payload,
        codec.forward_headers(incarnation, local_seqno, application, kind),
        TIMESTAMP_MS + offset,
    )


def linked(
    sender: str,
    offset: int,
    link: Link,
    *,
    neighbour: str = "far",
    local_seqno: int = 1,
    incarnation: int = 1,
    payload: bytes = b"payload",
    application: Headers = (),
    kind: str = MESSAGE,
) -> Row:
    """Return a record that a link of a mesh has brought from this neighbour."""
    headers = codec.forward_headers(incarnation, local_seqno, application, kind, link)
    topic = str(Topic("g", "relayed", SITE, neighbour))
    return Row(topic, 0, offset, sender.encode(), payload, headers, TIMESTAMP_MS + offset)


BAD_ADDRESSES = [
    Case(
        f"address {sender}, {kind}",
        sender.encode(),
        b"x",
        codec.forward_headers(1, 1, application, kind),
        BAD_ADDRESS,
    )
    for kind in (MESSAGE, HEARTBEAT)
    for sender, application in (
        ("nyc/" + "n" * 129, ()),
        ("nyc/", (("trace", b"\xff"),)),
        ("nyc/a b", ()),
        ("nyc/a/b", ()),
        ("nyc/a\0b", ()),
    )
]
"""Records that only `ordering.sequencer.sequencer` refuses; `tests.forward_corpus` has the other bad input."""
TOO_LARGE_TO_BE_WRITTEN = [
    Case("a key", b"nyc/" + b"n" * MAX_RECORD_BYTES, b"x", codec.forward_headers(1, 1), BAD_ADDRESS),
    Case(
        "our header",
        b"sfo/a b",
        b"x",
        [("abcast", b"2 message 1 1 " + b"n" * MAX_RECORD_BYTES + b" -")],
        BAD_ADDRESS,
        RELAYED,
    ),
    Case("a value", b"nyc/a", bytes(2 * MAX_RECORD_BYTES), codec.forward_headers(1, 1), codec.PAYLOAD_TOO_LARGE),
    Case(
        "headers",
        b"nyc/a",
        b"x",
        codec.forward_headers(1, 1, (("h", bytes(MAX_RECORD_BYTES)),)),
        codec.HEADERS_TOO_LARGE,
    ),
]
"""Kafka takes them, as they are compressed."""
BAD_ADDRESSES_BY_LINK = [
    case._replace(
        name=f"linked, {case.name}",
        key=sender,
        headers=codec.forward_headers(1, 1, tuple(case.headers[1:]), link=Link(17, 4, 9, 3)),
        topic=RELAYED,
    )
    for case in BAD_ADDRESSES
    for sender in [(case.key or b"").replace(b"nyc", b"lax")]
]


def data(record: Data, offset: int, *, group: str = "g", site: str = SITE) -> Row:
    """A DATA record at this offset of the group's topic."""
    key, value, headers = codec.encode_data(record)
    return Row(str(Topic(group, "data", site)), 0, offset, key, value, headers, TIMESTAMP_MS + offset)


def source_frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """The rows as Spark's Kafka source gives them. It has no array where a record has no headers."""
    return spark.createDataFrame(list(map(_source_row, rows)), SOURCE_SCHEMA)


def source_frame_by_task(spark: SparkSession, *tasks: Iterable[Row]) -> DataFrame:
    """The same, with what each task of Spark's reads, in its order: a partition of a topic."""
    rows = [list(map(_source_row, task)) for task in tasks]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, len(rows)).flatMap(list), SOURCE_SCHEMA)


def _source_row(row: Row) -> tuple[Any, ...]:
    at = datetime.fromtimestamp(row.timestamp_ms / 1000, tz=timezone.utc)
    return row.key, row.value, row.topic, row.partition, row.offset, at, 1, list(row.headers) or None


def sink_frame(spark: SparkSession, rows: Iterable[SinkRow]) -> DataFrame:
    """The rows as Spark's Kafka sink takes them."""
    return spark.createDataFrame([(row.topic, 0, row.key, row.value, list(row.headers)) for row in rows], SINK_SCHEMA)


def decide_rows(state: SequencerState, rows: Iterable[Row], site: str = SITE) -> tuple[SequencerState, list[SinkRow]]:
    """Decide one group's batch in the row form (`connectors.takeover.rows`)."""
    topics = OutputTopics.of(state.group, site)
    in_order = sorted(rows, key=lambda row: row.source)
    state, opening = begin_batch(state)
    state, decided = by_rows(state, [(TopicPartition(*row.source[:2]), [row.record]) for row in in_order], topics)
    state, closing = end_batch(state)
    before, behind = ([topics.encode(each, None) for each in records] for records in (opening, closing))
    return state, [SinkRow(topic, *record) for topic, record in (*before, *decided, *behind)]
