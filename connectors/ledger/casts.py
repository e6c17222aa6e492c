"""The table `casts`: the messages in FIFO and causal order, each once. They have no seqno.

It is a table of its own. What makes the ledger exact is that seqnos are one line without a gap: its end says where to
go on, and a batch is held against it, row by row (`connectors.ledger.one_pass`). Casts are no such line. They stand in
several partitions, of which each brings its own numbers, some of them twice; among the ledger's rows they would take
that argument away. `abcast query` puts both together, as `messages`.

Invariant. The table has each cast that the job has read from the cast topics of its site's Kafka, once. What makes it
the same cast is (sender, incarnation, view or none, local seqno): in a view no life gives a number twice. (In the next
one it may. Then the view between them has left the first one to nobody: `ordering.casts.outgoing`.) It rests on three
things:

* what the table holds of each life's numbers is read from the table itself, as is up to which offset of a partition it
  has rows. Reading begins there, and reading more again does no harm: a number that is held is left out. So neither
  a crash nor a lost checkpoint, a sender who writes again, or a relay that repeats brings a row twice;
* an append is a compare-and-set (`connectors.ledger.appending`), and what is left out is decided by the version that it
  follows;
* rows of a partition are appended in the order of offsets, and a batch as a whole: so all before the highest offset
  in the table were looked at.

It has what was cast, not what was delivered: the last casts of a member that died may be among it, which no member of
the view has delivered. Who asks for a member's deliveries keeps a delivery log.

Where retention has dropped casts before they were read, they are missing, and the log of the job says so.

A group without casts has no table, and its cast topics are looked at, not read.
"""

from __future__ import annotations

import functools
import logging
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from connectors.kafka.codec.cast_codec import CAST_FIELDS, decode_cast
from connectors.kafka.codec.codec import HEADER, NOTHING
from connectors.ledger.answer import CASTS
from connectors.ledger.appending import (
    APPEND_ONLY,
    KEPT,
    MAX_ATTEMPTS,
    AppendOnlyTable,
    Layout,
    any_of,
    create_or_mend,
    lock_of_tables,
)
from connectors.ledger.batches import BatchWriter
from connectors.ledger.delta_files import dataset_of
from connectors.ledger.row import GROUP
from connectors.ledger.table_state import TRANSACTION, Commit, Place, TableState, digest_of, open_table
from connectors.spark import codec as spark_codec
from connectors.spark.table_store import prepare
from connectors.storage.location import Location
from ordering.base.names import Topic
from ordering.base.records import MAX_PAYLOAD_BYTES
from ordering.casts.casts import NO_VIEW, Cast

CASTS_SCHEMA = (
    "group_name string, order string, view_id long, after_seqno long, clock string, site string, sender string, "
    "incarnation long, local_seqno long, payload binary, headers array<struct<key:string,value:binary>>, "
    "cast_partition int, cast_offset long, written_at timestamp"
)
_LAYOUT = Layout(
    CASTS,
    CASTS_SCHEMA,
    [GROUP],
    {
        APPEND_ONLY: "true",
        **KEPT,
        "delta.dataSkippingStatsColumns": "view_id,sender,incarnation,local_seqno,cast_offset",
        "delta.autoOptimize.autoCompact": "true",
    },
)

_logger = logging.getLogger(__name__)

_OF_NUMBERING = [GROUP, "sender", "incarnation", "view_id"]
_OF_PLACE = [GROUP, "site", "cast_partition"]
_OF_STATE = sorted({*_OF_NUMBERING, *_OF_PLACE, "local_seqno", "cast_offset", "written_at"})


class Numbering(NamedTuple):
    """Whose numbers: a life's in a view, or in none."""

    group: str
    sender: str
    incarnation: int
    view: int


class Numbers(NamedTuple):
    """A set of numbers, as runs without a hole (first, last): few, as casts nearly always come in their order.

    What retention, or a sender that has died, leaves out costs a run more, however many follow.
    """

    runs: tuple[tuple[int, int], ...] = ()

    def has(self, number: int) -> bool:
        """Whether that is one of them."""
        at = bisect_right(self.runs, number, key=itemgetter(0))
        return at > 0 and number <= self.runs[at - 1][1]

    def with_run(self, first: int, last: int) -> Numbers:
        """These and all from `first` to `last`."""
        begin = bisect_left(self.runs, first - 1, key=itemgetter(1))
        end = bisect_right(self.runs, last + 1, key=itemgetter(0))
        touched = self.runs[begin:end]
        if touched:
            first, last = min(first, touched[0][0]), max(last, touched[-1][1])
        return Numbers((*self.runs[:begin], (first, last), *self.runs[end:]))


NONE = Numbers()


@dataclass(frozen=True, slots=True)
class CastTableState(TableState):
    """What the table holds: of each life the numbers, of each partition the offset behind its last row.

    The last row is the newest one by the broker's clock: where a topic was made anew, the table has greater offsets of
    the old one.
    """

    numbers: Mapping[Numbering, Numbers] = field(default_factory=dict)
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition."""
    written_ms: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """When the broker had the record before that offset, as the table tells; by topic and partition."""


def read_cast_state(path: Location) -> CastTableState:
    """Nothing, if there is no table. Reads no payloads. Raises LedgerDamaged."""
    table = open_table(path)
    if table is None:
        return CastTableState()
    numbers: dict[Numbering, Numbers] = {}
    last: dict[tuple[str, int], tuple[datetime, int]] = {}
    for batch in dataset_of(table, path).to_batches(columns=_OF_STATE):
        rows = pa.Table.from_batches([batch])
        for numbering, *run in _runs(rows):
            numbers[numbering] = numbers.get(numbering, NONE).with_run(*run)
        for place, at in _last_rows(rows):
            last[place] = max(last.get(place, at), at)
    offsets = {place: offset for place, (_, offset) in last.items()}
    written_ms = {place: round(at.timestamp() * 1000) for place, (at, _) in last.items()}
    version = table.version()
    newest = Commit(version, digest_of(path, version))
    return CastTableState({}, table.transaction_version(TRANSACTION) or 0, newest, numbers, offsets, written_ms)


def _runs(rows: pa.Table) -> Iterator[tuple[Numbering, int, int]]:
    """All numbers of these rows as runs: one for each numbering, unless it has holes."""
    counted = [("local_seqno", "min"), ("local_seqno", "max"), ("local_seqno", "count_distinct")]
    for row in rows.group_by(_OF_NUMBERING).aggregate(counted).to_pylist():
        numbering = Numbering(row[GROUP], row["sender"], row["incarnation"], row["view_id"] or NO_VIEW)
        first, last, count = (row[f"local_seqno_{name}"] for _, name in counted)
        if count == last - first + 1:
            yield numbering, first, last
            continue
        for number in _alike(rows, row, _OF_NUMBERING)["local_seqno"].to_pylist():
            yield numbering, number, number


def _last_rows(rows: pa.Table) -> Iterator[tuple[tuple[str, int], tuple[datetime, int]]]:
    """Of each partition, when its newest row was written, and the offset behind it."""
    for row in rows.group_by(_OF_PLACE).aggregate([("written_at", "max")]).to_pylist():
        row["written_at"] = row["written_at_max"]
        newest = _alike(rows, row, [*_OF_PLACE, "written_at"])["cast_offset"].to_pylist()
        place = str(Topic(row[GROUP], "cast", row["site"])), row["cast_partition"]
        yield place, (row["written_at"], max(newest) + 1)


def _alike(rows: pa.Table, row: Mapping[str, Any], names: Iterable[str]) -> pa.Table:
    """Those that have the same there as `row`."""
    same = (pc.field(name).is_null() if row[name] is None else pc.field(name) == row[name] for name in names)
    return rows.filter(functools.reduce(operator.and_, same))


def create_cast_table(spark: SparkSession, data: Place, is_ending: Callable[[], bool] = lambda: False) -> Place:
    """Make the table `casts` below `data` if it is missing. Raises as `connectors.ledger.table.create_tables` does."""
    prepare(spark, data)
    with lock_of_tables(spark, data).held(is_ending):
        create_or_mend(spark, data / CASTS, _LAYOUT)
    return cast(Place, data / CASTS)


def cast_rows(kafka_rows: DataFrame) -> DataFrame:
    """Rows of Spark's Kafka source over cast topics → the columns of `casts`, plus topic and offset.

    They must be casts (`decode_cast`): what the header says is not judged here.
    """
    headers = spark_codec.all_headers()
    header = spark_codec.own_header(headers)

    def said(name: str) -> Column:
        text = F.get(F.split(header.cast("string"), " ", len(CAST_FIELDS) + 1), F.lit(CAST_FIELDS.index(name)))
        return F.when((text != NOTHING) & (text != ""), text)

    sender = F.col("key").cast("string")
    return kafka_rows.select(
        spark_codec.group_of(F.col("topic")).alias(GROUP),
        said("ORDER").alias("order"),
        said("VIEW").try_cast("bigint").alias("view_id"),
        F.when(said("ORDER") == "causal", said("AFTER").try_cast("bigint")).alias("after_seqno"),
        F.when(said("ORDER") == "causal", said("CLOCK")).alias("clock"),
        F.substring_index(sender, "/", 1).alias("site"),
        sender.alias("sender"),
        said("INCARNATION").try_cast("bigint").alias("incarnation"),
        said("LOCAL_SEQNO").try_cast("bigint").alias("local_seqno"),
        F.col("value").alias("payload"),
        F.filter(headers, lambda each: ~each["key"].startswith(HEADER)).alias("headers"),
        F.col("partition").cast("int").alias("cast_partition"),
        F.col("offset").alias("cast_offset"),
        F.col("timestamp").alias("written_at"),
        "topic",
    )


class _Place(NamedTuple):
    """Where in a batch a cast stands, and which one it is."""

    topic: str
    partition: int
    offset: int
    numbering: Numbering
    local_seqno: int


class CastWriter(BatchWriter):
    """Appends batches of casts."""

    def __init__(self, path: Location, is_ending: Callable[[], bool] = lambda: False) -> None:
        super().__init__(is_ending)
        self._path = path
        self._table = AppendOnlyTable(path, read_cast_state)

    @property
    def state(self) -> CastTableState:
        """What the table holds, as far as this writer knows."""
        return self._table.state

    def check_tables(self) -> None:
        """Raise LedgerReplaced if the table is gone, or another one, since it was last read or written."""
        self._table.check()

    def _write(self, batch: DataFrame) -> None:
        batch.persist()
        try:
            found = list(_places(batch))
            if not found:
                return
            with lock_of_tables(batch.sparkSession, self._path.parent).held(self._is_ending):
                for _ in range(MAX_ATTEMPTS):
                    self._table.look_again()
                    missing, state = _missing(self._table.state, found)
                    if not missing:
                        return
                    rows = cast_rows(batch.filter(any_of(_span(*span) for span in _spans(missing)))).drop("topic")
                    if self._table.append_once(rows):
                        self._table.has_appended(state)
                        return
                raise self._table.contended()
        finally:
            batch.unpersist()


def _places(batch: DataFrame) -> Iterable[_Place]:
    """The rows of a batch, in the order of their offsets. The payload of none is read here."""
    size = F.octet_length("value").alias("size")
    at = F.unix_millis("timestamp").alias("at")
    columns = batch.select("topic", "partition", "offset", "key", size, "headers", at)
    for row in sorted(columns.toArrow().to_pylist(), key=lambda row: (row["topic"], row["partition"], row["offset"])):
        topic = Topic.parse(row["topic"])
        assert topic is not None
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
        # Of the payload, only whether it is there and too large is judged.
        value = None if row["size"] is None else bytes(row["size"] if row["size"] > MAX_PAYLOAD_BYTES else 0)
        cast = decode_cast(row["key"], value, headers, row["at"], topic.site)
        place = row["topic"], row["partition"], row["offset"]
        if isinstance(cast, Cast):
            yield _Place(*place, Numbering(topic.group, *cast.life, cast.view), cast.local_seqno)
        else:
            _logger.warning("passed over what is no cast at %s-%d:%d: %s", *place, cast)


def _missing(state: CastTableState, found: Iterable[_Place]) -> tuple[list[_Place], CastTableState]:
    """Of these casts, those that the table lacks, each once; and what it holds with them."""
    numbers, offsets, written_ms = dict(state.numbers), dict(state.offsets), dict(state.written_ms)
    missing = []
    for place in found:
        held, number = numbers.get(place.numbering, NONE), place.local_seqno
        if not held.has(number):
            numbers[place.numbering] = held.with_run(number, number)
            offsets[place.topic, place.partition] = place.offset + 1
            written_ms.pop((place.topic, place.partition), None)
            missing.append(place)
    return missing, replace(state, numbers=numbers, offsets=offsets, written_ms=written_ms)


def _spans(places: Iterable[_Place]) -> list[tuple[str, int, int, int]]:
    """Topic, partition, first and last offset of rows that stand next to each other."""
    spans: list[tuple[str, int, int, int]] = []
    for place in places:
        if spans and spans[-1][:2] == place[:2] and spans[-1][3] + 1 == place.offset:
            spans[-1] = (*spans[-1][:3], place.offset)
        else:
            spans.append((*place[:3], place.offset))
    return spans


def _span(topic: str, partition: int, first: int, last: int) -> Column:
    return (F.col("topic") == topic) & (F.col("partition") == partition) & F.col("offset").between(first, last)
